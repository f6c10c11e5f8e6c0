"""Two stages of torch.distributed.pipelining under 1F1B with eight micro-batches, parameters in bf16."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(0)
D, L, H, V, B, T, N = 2048, 16, 16, 32000, 2, 2048, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D); self.qkv = nn.Linear(D, 3 * D); self.o = nn.Linear(D, D); self.f = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        q, k, v = (z.view(B, T, H, D // H).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.f(self.n2(x))


class Stage(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first
        self.e = nn.Embedding(V, D) if first else None
        self.b = nn.ModuleList(Block() for _ in range(L // 2))
        self.n, self.head = (None, None) if first else (nn.LayerNorm(D), nn.Linear(D, V, bias=False))

    def forward(self, x):
        if self.first: x = self.e(x)
        for b in self.b: x = b(x)
        return x if self.first else self.head(self.n(x))


model = Stage(rank == 0).cuda().bfloat16()
stage = PipelineStage(model, rank, 2, torch.device("cuda", rank))
schedule = Schedule1F1B(stage, N, loss_fn=lambda y, t: F.cross_entropy(y.float().view(-1, V), t.reshape(-1)))
opt = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(40):
    x = torch.randint(0, V, (B * N, T), device="cuda")
    if rank == 0: schedule.step(x)
    else: schedule.step(target=x)
    opt.step(); opt.zero_grad()
