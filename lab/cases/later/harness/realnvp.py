"""A normalising flow of affine couplings over vectors: many small operations, fp32."""
import math

import torch
from torch import nn

torch.manual_seed(0)
D, H = 64, 256


class Coupling(nn.Module):
    def __init__(self, flipped):
        super().__init__()
        mask = (torch.arange(D) % 2 == int(flipped)).float()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(D, H), nn.LeakyReLU(), nn.Linear(H, H), nn.LeakyReLU(), nn.Linear(H, 2 * D))
        self.scale = nn.Parameter(torch.zeros(D))

    def forward(self, x, logdet):
        kept = x * self.mask
        s, t = self.net(kept).chunk(2, -1)
        s = torch.tanh(s) * self.scale.exp() * (1 - self.mask)
        t = t * (1 - self.mask)
        return kept + (1 - self.mask) * (x * s.exp() + t), logdet + s.sum(-1)


flow = nn.ModuleList(Coupling(at % 2) for at in range(16)).cuda()
optimizer = torch.optim.Adam(flow.parameters(), 1e-4)
for step in range(80):
    x, logdet = torch.randn(4096, D, device="cuda"), torch.zeros(4096, device="cuda")
    for layer in flow:
        x, logdet = layer(x, logdet)
    loss = -(-0.5 * (x**2).sum(-1) - 0.5 * D * math.log(2 * math.pi) + logdet).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(loss.item())
