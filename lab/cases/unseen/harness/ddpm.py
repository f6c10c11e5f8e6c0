"""A pixel diffusion U-Net: group norms, SiLU, attention at 16 x 16, nearest upsampling, EMA, channels last."""
import math, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
class Res(nn.Module):
    def __init__(s, i, o): super().__init__(); s.n1, s.c1, s.t, s.n2, s.c2 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1), nn.Linear(512, o), nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1); s.k = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
    def forward(s, x, t): h = s.c1(F.silu(s.n1(x))) + s.t(t)[:, :, None, None]; return s.k(x) + s.c2(F.dropout(F.silu(s.n2(h)), 0.1, s.training))
class Att(nn.Module):
    def __init__(s, c): super().__init__(); s.n, s.q, s.o = nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)
    def forward(s, x, t): b, c, h, w = x.shape; q, k, v = s.q(s.n(x)).view(b, 3, c // 64, 64, h * w).permute(1, 0, 2, 4, 3); return x + s.o(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w))
class UNet(nn.Module):
    def __init__(s):
        super().__init__(); w = (128, 256, 256); s.i = nn.Conv2d(3, 128, 3, padding=1); s.t = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512)); s.d, s.dn, s.u = nn.ModuleList(), nn.ModuleList(), nn.ModuleList(); c = 128; sk = [128]
        for k, n in enumerate(w):
            for _ in range(2): s.d.append(nn.ModuleList([Res(c, n)] + ([Att(n)] if k == 2 else []))); c = n; sk.append(c)
            if k < 2: s.dn.append(nn.Conv2d(c, c, 3, 2, 1)); sk.append(c)
        s.m = nn.ModuleList([Res(c, c), Att(c), Res(c, c)])
        for k, n in list(enumerate(w))[::-1]:
            for _ in range(3): s.u.append(nn.ModuleList([Res(c + sk.pop(), n)] + ([Att(n)] if k == 2 else []))); c = n
        s.uc = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in range(2)); s.o = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))
    def forward(s, x, t):
        f = torch.exp(-math.log(1e4) * torch.arange(64, device=x.device) / 64); a = t[:, None] * f; t = s.t(torch.cat([a.sin(), a.cos()], 1)); x = s.i(x); sk = [x]
        for k in range(3):
            for b in s.d[2 * k:2 * k + 2]:
                for l in b: x = l(x, t)
                sk.append(x)
            if k < 2: x = s.dn[k](x); sk.append(x)
        for l in s.m: x = l(x, t)
        for k in range(3):
            for b in s.u[3 * k:3 * k + 3]:
                x = torch.cat([x, sk.pop()], 1)
                for l in b: x = l(x, t)
            if k < 2: x = s.uc[k](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return s.o(x)
m = UNet().cuda().to(memory_format=torch.channels_last); ema = [p.detach().clone() for p in m.parameters()]; o = torch.optim.AdamW(m.parameters(), 2e-4)
for step in range(40):
    x = torch.randn(64, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last); t = torch.rand(64, device="cuda") * 1000
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.mse_loss(m(x, t).float(), x)
    loss.backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.0); o.step(); o.zero_grad()
    with torch.no_grad():
        for e, p in zip(ema, m.parameters()): e.mul_(0.999).add_(p, alpha=0.001)
