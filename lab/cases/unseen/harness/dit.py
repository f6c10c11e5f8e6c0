"""A diffusion transformer: patches of latents, adaptive layer norms, noise as the target."""
import math, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D, L, H = 1152, 14, 16
class Block(nn.Module):
    def __init__(s): super().__init__(); s.n1 = nn.LayerNorm(D, elementwise_affine=False); s.n2 = nn.LayerNorm(D, elementwise_affine=False); s.qkv, s.o = nn.Linear(D, 3 * D), nn.Linear(D, D); s.m = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(approximate="tanh"), nn.Linear(4 * D, D)); s.c = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
    def forward(s, x, c):
        a, b, g, d, e, f = s.c(c).unsqueeze(1).chunk(6, -1); h = s.n1(x) * (1 + a) + b
        q, k, v = s.qkv(h).reshape(x.shape[0], -1, 3, H, D // H).permute(2, 0, 3, 1, 4); x = x + g * s.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)); return x + f * s.m(s.n2(x) * (1 + d) + e)
class DiT(nn.Module):
    def __init__(s): super().__init__(); s.p = nn.Conv2d(4, D, 2, 2); s.pos = nn.Parameter(torch.zeros(1, 256, D)); s.t = nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D)); s.y = nn.Embedding(1001, D); s.b = nn.ModuleList(Block() for _ in range(L)); s.n = nn.LayerNorm(D, elementwise_affine=False); s.c = nn.Sequential(nn.SiLU(), nn.Linear(D, 2 * D)); s.o = nn.Linear(D, 16)
    def forward(s, x, t, y):
        f = torch.exp(-math.log(1e4) * torch.arange(128, device=x.device) / 128); a = t[:, None].float() * f; c = s.t(torch.cat([a.cos(), a.sin()], -1)) + s.y(y); x = s.p(x).flatten(2).transpose(1, 2) + s.pos
        for b in s.b: x = b(x, c)
        a, b = s.c(c).unsqueeze(1).chunk(2, -1); x = s.o(s.n(x) * (1 + a) + b); return x.reshape(-1, 16, 16, 2, 2, 4).permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 32, 32)
m = DiT().cuda(); ema = [p.detach().clone() for p in m.parameters()]; o = torch.optim.AdamW(m.parameters(), 1e-4); ac = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
for step in range(40):
    x = torch.randn(48, 4, 32, 32, device="cuda"); t = torch.randint(0, 1000, (48,), device="cuda"); y = torch.randint(0, 1000, (48,), device="cuda"); n = torch.randn_like(x); a = ac[t][:, None, None, None]
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.mse_loss(m(a.sqrt() * x + (1 - a).sqrt() * n, t, y).float(), n)
    loss.backward(); o.step(); o.zero_grad()
    with torch.no_grad(): torch._foreach_lerp_(ema, list(m.parameters()), 1e-4)
