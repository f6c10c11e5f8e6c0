"""Long convolutions by Fourier transforms in place of attention, with short depthwise ones, under bf16 autocast."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
B, L, D, V = 4, 4096, 512, 256


class Hyena(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.short, self.out = nn.Linear(D, 3 * D), nn.Conv1d(3 * D, 3 * D, 3, padding=2, groups=3 * D), nn.Linear(D, D)
        self.filter = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, D))
        self.decay, self.bias = nn.Parameter(torch.linspace(1, 8, D)), nn.Parameter(torch.zeros(D))
        t = torch.linspace(0, 1, L)[:, None]
        waves = t * torch.arange(1, 5) * 6.2832
        self.register_buffer("places", torch.cat([t, waves.sin(), waves.cos()], -1))

    def forward(self, x):
        u = self.short(self.project(x).transpose(1, 2))[..., :L]
        a, b, v = u.chunk(3, 1)
        h = (self.filter(self.places).float() * torch.exp(-self.places[:, :1] * self.decay)).t()
        z = (v * b).float()
        y = torch.fft.irfft(torch.fft.rfft(z, 2 * L) * torch.fft.rfft(h, 2 * L), 2 * L)[..., :L]
        y = (y + z * self.bias[:, None]) * a
        return self.out(y.transpose(1, 2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms, self.mix = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)]), Hyena()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        x = x + self.mix(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


model = nn.Sequential(nn.Embedding(V, D), *[Block() for _ in range(6)], nn.LayerNorm(D), nn.Linear(D, V)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
for step in range(60):
    x = torch.randint(0, V, (B, L + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1).float(), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
