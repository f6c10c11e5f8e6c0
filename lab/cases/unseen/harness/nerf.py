"""A radiance field: 4,096 rays of 192 points, an 8-layer perceptron with a skip, volume rendering, TF32."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); torch.set_float32_matmul_precision("high")
def enc(x, n): f = 2.0 ** torch.arange(n, device=x.device); a = (x[..., None] * f).flatten(-2); return torch.cat([x, a.sin(), a.cos()], -1)
class Field(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.ModuleList([nn.Linear(63, 256)] + [nn.Linear(256, 256) for _ in range(3)]); s.b = nn.ModuleList([nn.Linear(319, 256)] + [nn.Linear(256, 256) for _ in range(3)]); s.d = nn.Linear(256, 1); s.f = nn.Linear(256, 256); s.v = nn.Linear(283, 128); s.c = nn.Linear(128, 3)
    def forward(s, x, d):
        h = e = enc(x, 10)
        for l in s.a: h = F.relu(l(h))
        h = torch.cat([e, h], -1)
        for l in s.b: h = F.relu(l(h))
        return F.softplus(s.d(h)[..., 0]), s.c(F.relu(s.v(torch.cat([s.f(h), enc(d, 4)], -1)))).sigmoid()
m = Field().cuda(); o = torch.optim.Adam(m.parameters(), 5e-4)
for step in range(60):
    r = torch.rand(4096, 3, device="cuda"); d = F.normalize(torch.randn(4096, 3, device="cuda"), dim=-1); t = torch.linspace(2, 6, 192, device="cuda") + torch.rand(4096, 192, device="cuda") * 4 / 192; x = r[:, None] + d[:, None] * t[..., None]
    s, c = m(x, d[:, None].expand_as(x)); a = 1 - torch.exp(-s * torch.diff(t, append=t[:, -1:] + 0.02)); w = a * torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a[:, :-1] + 1e-10], 1), 1); loss = F.mse_loss((w[..., None] * c).sum(1), torch.rand(4096, 3, device="cuda")); o.zero_grad(); loss.backward(); o.step()
