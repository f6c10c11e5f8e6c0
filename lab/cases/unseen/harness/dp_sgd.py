"""Per-sample gradients by vmap of a small convolutional network, clipped one by one, with noise (DP-SGD)."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, grad, vmap
torch.manual_seed(0); m = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.GroupNorm(8, 64), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.GroupNorm(8, 128), nn.ReLU(), nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda(); o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
p = dict(m.named_parameters())
def loss(q, x, y): return F.cross_entropy(functional_call(m, q, (x[None],)), y[None])
for step in range(60):
    x = torch.randn(512, 3, 32, 32, device="cuda"); y = torch.randint(0, 10, (512,), device="cuda"); g = vmap(grad(loss), in_dims=(None, 0, 0))({k: v.detach() for k, v in p.items()}, x, y); n = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0); c = (1.0 / (n + 1e-6)).clamp(max=1.0)
    for k, v in p.items(): v.grad = torch.einsum("b,b...->...", c, g[k]) / 512 + torch.randn_like(v) * 1e-3
    o.step()
