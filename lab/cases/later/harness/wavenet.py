"""Gated dilated convolutions over raw sound with skip connections, mu-law classes, bf16 autocast."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
R, S = 128, 256


class Block(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.pad, self.gated = dilation, nn.Conv1d(R, 2 * R, 2, dilation=dilation)
        self.skip, self.rest = nn.Conv1d(R, S, 1), nn.Conv1d(R, R, 1)

    def forward(self, x):
        a, b = self.gated(F.pad(x, (self.pad, 0))).chunk(2, 1)
        z = torch.tanh(a) * torch.sigmoid(b)
        return x + self.rest(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, R)
        self.blocks = nn.ModuleList(Block(2**i) for _ in range(2) for i in range(9))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(S, S, 1), nn.ReLU(), nn.Conv1d(S, 256, 1))

    def forward(self, x):
        x, total = self.embed(x).transpose(1, 2), 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return self.head(total)


model = WaveNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
for step in range(60):
    x = torch.randint(0, 256, (8, 8001), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x[:, :-1]), x[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
