"""Context parallel attention by the context_parallel manager over two GPUs, 24,576 tokens, gradients all-reduced one by one."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); mesh = init_device_mesh("cuda", (2,)); torch.manual_seed(0)
D, L, H, V, T = 2048, 8, 16, 32000, 24576


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D); self.qkv = nn.Linear(D, 3 * D, bias=False); self.o = nn.Linear(D, D, bias=False); self.g = nn.Linear(D, 2 * 5632, bias=False); self.d = nn.Linear(5632, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, D // H).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D))
        a, u = self.g(self.n2(x)).chunk(2, -1)
        return x + self.d(F.silu(a) * u)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D); self.b = nn.ModuleList(Block() for _ in range(L)); self.n = nn.RMSNorm(D); self.head = nn.Linear(D, V, bias=False)

    def forward(self, i):
        x = self.e(i)
        for b in self.b: x = b(x)
        return self.head(self.n(x))


model = LM().cuda().bfloat16(); opt = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
for step in range(40):
    x = torch.randint(0, V, (1, T), device="cuda"); y = x.roll(-1, 1)
    with context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1], no_restore_buffers={x, y}), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        loss = F.cross_entropy(model(x).float().view(-1, V), y.view(-1)); loss.backward()
    for p in model.parameters(): dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    opt.step(); opt.zero_grad()
