"""A compiled Llama-like model inside DDP (buckets split the graph), bf16 parameters, fused AdamW."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(0)
D, L, H, I, V, B, T = 1792, 12, 14, 4864, 32768, 8, 2048


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D); self.qkv = nn.Linear(D, 3 * D, bias=False); self.o = nn.Linear(D, D, bias=False); self.g = nn.Linear(D, I, bias=False); self.u = nn.Linear(D, I, bias=False); self.d = nn.Linear(I, D, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (z.view(B, T, H, D // H).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True).transpose(1, 2).reshape(B, T, D)); h = self.n2(x)
        return x + self.d(F.silu(self.g(h)) * self.u(h))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D); self.b = nn.ModuleList(Block() for _ in range(L)); self.n = nn.RMSNorm(D); self.head = nn.Linear(D, V, bias=False)
        f = torch.outer(torch.arange(T), 10000 ** (-torch.arange(0, D // H, 2) / (D // H))); self.register_buffer("cos", f.cos().bfloat16()); self.register_buffer("sin", f.sin().bfloat16())

    def forward(self, i):
        x = self.e(i)
        for b in self.b: x = b(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.n(x)).float().view(-1, V), i.view(-1))


model = torch.compile(DDP(LM().cuda().bfloat16(), device_ids=[rank])); opt = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
for step in range(40):
    model(torch.randint(0, V, (B, T), device="cuda")).backward(); opt.step(); opt.zero_grad()
