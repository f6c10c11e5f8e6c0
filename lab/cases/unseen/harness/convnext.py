"""A ConvNeXt trained with label smoothing, stochastic depth and layer scale, bf16 autocast, channels last."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
class LN(nn.LayerNorm):
    def forward(s, x): return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
class Block(nn.Module):
    def __init__(s, c, p): super().__init__(); s.d = nn.Conv2d(c, c, 7, padding=3, groups=c); s.n = nn.LayerNorm(c, eps=1e-6); s.a, s.b = nn.Linear(c, 4 * c), nn.Linear(4 * c, c); s.g = nn.Parameter(torch.full((c,), 1e-6)); s.p = p
    def forward(s, x): h = s.g * s.b(F.gelu(s.a(s.n(s.d(x).permute(0, 2, 3, 1))))); k = torch.empty(x.shape[0], 1, 1, 1, device=x.device).bernoulli_(1 - s.p) / (1 - s.p); return x + k.to(h.dtype) * h.permute(0, 3, 1, 2)
w, n = (96, 192, 384, 768), (3, 3, 9, 3); ls = [nn.Conv2d(3, 96, 4, 4), LN(96)]
for k in range(4):
    if k: ls += [LN(w[k - 1]), nn.Conv2d(w[k - 1], w[k], 2, 2)]
    ls += [Block(w[k], 0.1) for _ in range(n[k])]
m = nn.Sequential(*ls, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000)).cuda().to(memory_format=torch.channels_last); o = torch.optim.AdamW(m.parameters(), 4e-3, weight_decay=0.05, foreach=True)
for step in range(40):
    x = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last); y = torch.randint(0, 1000, (128,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.cross_entropy(m(x), y, label_smoothing=0.1)
    o.zero_grad(); loss.backward(); o.step()
