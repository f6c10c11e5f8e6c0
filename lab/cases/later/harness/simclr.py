"""Contrastive learning: a residual network over two views, all pairs' similarities, a layer-wise optimizer of its own."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad + 1e-6 * p
                ratio = torch.where(p.norm() > 0, 1e-3 * p.norm() / (g.norm() + 1e-9), 1.0)
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(0.9).add_(g * ratio)
                p.add_(state["m"], alpha=-group["lr"])


class Block(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.a, self.b = nn.Conv2d(i, o, 3, s, 1, bias=False), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
        self.skip = nn.Conv2d(i, o, 1, s, bias=False) if i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + self.skip(x))


blocks = [Block(i, o, s) for i, o, s in ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))]
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128),
).cuda()
optimizer = Lars(model.parameters(), 0.3)
for step in range(60):
    x = torch.randn(512, 3, 32, 32, device="cuda")
    views = torch.cat([x + 0.1 * torch.randn_like(x), x.flip(-1)])
    with torch.autocast("cuda", torch.bfloat16):
        z = model(views)
    z = F.normalize(z.float(), dim=1)
    alike = (z @ z.t() / 0.1).masked_fill(torch.eye(1024, dtype=torch.bool, device="cuda"), -1e9)
    goal = (torch.arange(1024, device="cuda") + 512) % 1024
    loss = F.cross_entropy(alike, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
