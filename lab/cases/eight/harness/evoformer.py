"""Proteins: pairs of residues by triangle products and attention along rows and columns, under bf16 autocast."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
N, C, B = 192, 128, 1


class Triangle(nn.Module):
    def __init__(self, outgoing):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(C), nn.LayerNorm(C)
        self.left, self.right, self.gates, self.out = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.how = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"

    def forward(self, z):
        z = self.norm(z)
        a, b, c = self.gates(z).sigmoid().chunk(3, -1)
        return c * self.out(self.last(torch.einsum(self.how, self.left(z) * a, self.right(z) * b)))


class Rows(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(C), heads
        self.qkv, self.bias, self.gate, self.out = nn.Linear(C, 3 * C), nn.Linear(C, heads, bias=False), nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, z):
        z = self.norm(z)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for x in self.qkv(z).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + self.bias(z).permute(0, 3, 1, 2)[:, None]
        return self.gate(z).sigmoid() * self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(-2, -3).flatten(-2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Triangle(True), Triangle(False), Rows(), Rows()])
        self.moves = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.ReLU(), nn.Linear(4 * C, C))

    def forward(self, z):
        for at, part in enumerate(self.parts):
            z = z + (part(z) if at < 3 else part(z.transpose(1, 2)).transpose(1, 2))
        return z + self.moves(z)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers, self.out = nn.Linear(64, C), nn.ModuleList([Layer() for _ in range(4)]), nn.Linear(C, 40)

    def forward(self, x):
        z = self.first(x)
        for layer in self.layers:
            z = layer(z)
        return self.out(z + z.transpose(1, 2))


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(60):
    x, y = torch.randn(B, N, N, 64, device="cuda"), torch.randint(0, 40, (B, N, N), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x).float().flatten(0, 2), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
