"""A llama-like decoder in bf16 whose blocks are checkpointed, loss in chunks of the sequence, Adafactor-free AdamW."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0); D, L, V, T = 2048, 16, 64000, 4096
def rope(x): t = torch.arange(x.shape[2], device=x.device)[:, None] * (1e4 ** (-torch.arange(0, 64, device=x.device) / 64)); c, s = t.cos().to(x.dtype), t.sin().to(x.dtype); a, b = x.chunk(2, -1); return torch.cat([a * c - b * s, a * s + b * c], -1)
class Block(nn.Module):
    def __init__(s): super().__init__(); s.n1, s.n2 = nn.RMSNorm(D), nn.RMSNorm(D); s.q, s.k, s.v, s.o = nn.Linear(D, D, bias=False), nn.Linear(D, 512, bias=False), nn.Linear(D, 512, bias=False), nn.Linear(D, D, bias=False); s.g, s.u, s.d = nn.Linear(D, 6144, bias=False), nn.Linear(D, 6144, bias=False), nn.Linear(6144, D, bias=False)
    def forward(s, x): h = s.n1(x); q, k, v = (f(h).unflatten(-1, (-1, 128)).transpose(1, 2) for f in (s.q, s.k, s.v)); x = x + s.o(F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)); h = s.n2(x); return x + s.d(F.silu(s.g(h)) * s.u(h))
m = nn.ModuleDict(dict(e=nn.Embedding(V, D), b=nn.ModuleList(Block() for _ in range(L)), n=nn.RMSNorm(D), h=nn.Linear(D, V, bias=False))).cuda().bfloat16(); o = torch.optim.AdamW(m.parameters(), 1e-4)
for step in range(40):
    i = torch.randint(0, V, (2, T), device="cuda"); x = m["e"](i)
    for b in m["b"]: x = checkpoint(b, x, use_reentrant=False)
    x = m["n"](x); loss = sum(F.cross_entropy(m["h"](c).flatten(0, 1).float(), y.flatten()) for c, y in zip(x.chunk(4, 1), i.roll(-1, 1).chunk(4, 1))) / 4; o.zero_grad(); loss.backward(); o.step()
