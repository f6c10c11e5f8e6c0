"""A neural differential equation: Runge and Kutta's fourth-order steps of a small network, through all of which gradients go."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D = 128


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D + 1, 512), nn.Linear(512, 512), nn.Linear(512, D)

    def forward(self, t, x):
        x = torch.cat([x, t.expand(x.shape[0], 1)], 1)
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


slope, read = Slope().cuda(), nn.Linear(D, 10).cuda()
optimizer = torch.optim.Adam([*slope.parameters(), *read.parameters()], 1e-3)
times = torch.linspace(0, 1, 13, device="cuda")
for step in range(60):
    x, y = torch.randn(2048, D, device="cuda"), torch.randint(0, 10, (2048,), device="cuda")
    for a, b in zip(times[:-1], times[1:]):
        h = b - a
        k1 = slope(a, x)
        k2 = slope(a + h / 2, x + h / 2 * k1)
        k3 = slope(a + h / 2, x + h / 2 * k2)
        k4 = slope(b, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    loss = F.cross_entropy(read(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
