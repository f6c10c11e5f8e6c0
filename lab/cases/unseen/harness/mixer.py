"""An MLP-mixer under torch.compile, bf16 autocast, AdamW with foreach."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D, S = 768, 196
class Block(nn.Module):
    def __init__(s): super().__init__(); s.n1, s.n2 = nn.LayerNorm(D), nn.LayerNorm(D); s.t = nn.Sequential(nn.Linear(S, 384), nn.GELU(), nn.Linear(384, S)); s.c = nn.Sequential(nn.Linear(D, 3072), nn.GELU(), nn.Linear(3072, D))
    def forward(s, x): x = x + s.t(s.n1(x).transpose(1, 2)).transpose(1, 2); return x + s.c(s.n2(x))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.p = nn.Conv2d(3, D, 16, 16); s.b = nn.Sequential(*[Block() for _ in range(12)]); s.n = nn.LayerNorm(D); s.h = nn.Linear(D, 1000)
    def forward(s, x): return s.h(s.n(s.b(s.p(x).flatten(2).transpose(1, 2))).mean(1))
m = Net().cuda(); f = torch.compile(m); o = torch.optim.AdamW(m.parameters(), 1e-3)
for step in range(40):
    x = torch.randn(128, 3, 224, 224, device="cuda"); y = torch.randint(0, 1000, (128,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.cross_entropy(f(x), y)
    o.zero_grad(); loss.backward(); o.step()
