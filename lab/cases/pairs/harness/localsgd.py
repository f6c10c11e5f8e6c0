"""Local steps of a WaveNet-like stack, parameters averaged every four updates by coalesced all-reduces (a row is one update)."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(0)
D, L, B, T = 512, 16, 8, 8192


class Layer(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.gap = dilation * 2; self.conv = nn.Conv1d(D, 2 * D, 3, dilation=dilation); self.out = nn.Conv1d(D, 2 * D, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.gap, 0))).chunk(2, 1); y, skip = self.out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
        return (x + y) * 0.7071, skip


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(256, D); self.layers = nn.ModuleList(Layer(2 ** (i % 8)) for i in range(L)); self.a, self.b = nn.Conv1d(D, D, 1), nn.Conv1d(D, 256, 1)

    def forward(self, x):
        h = self.e(x).transpose(1, 2); total = 0
        for layer in self.layers: h, skip = layer(h); total = total + skip
        return self.b(F.relu(self.a(F.relu(total))))


model = Wave().cuda(); opt = torch.optim.RMSprop(model.parameters(), 1e-4)
for step in range(160):
    x = torch.randint(0, 256, (B, T), device="cuda")
    with torch.autocast("cuda", torch.bfloat16): loss = F.cross_entropy(model(x)[..., :-1].float(), x[:, 1:])
    loss.backward(); opt.step(); opt.zero_grad()
    if step % 4 == 3:
        with torch.no_grad():
            grads = [p.data for p in model.parameters()]
            with dist._coalescing_manager(device=torch.device("cuda", rank)):
                for g in grads: dist.all_reduce(g, op=dist.ReduceOp.AVG)
