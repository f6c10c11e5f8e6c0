"""A vector-quantised autoencoder: distances to a codebook, straight-through gradients, codes by moving averages."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D, CODES = 64, 1024


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n = nn.Sequential(nn.ReLU(), nn.Conv2d(c, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, c, 1))

    def forward(self, x):
        return x + self.n(x)


encoder = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 1, 1), Res(128), Res(128), nn.Conv2d(128, D, 1)).cuda()
decoder = nn.Sequential(nn.Conv2d(D, 128, 3, 1, 1), Res(128), Res(128), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1)).cuda()
book = torch.randn(CODES, D, device="cuda")
counts, sums = torch.ones(CODES, device="cuda"), book.clone()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 3e-4)
for step in range(60):
    x = torch.rand(64, 3, 128, 128, device="cuda")
    z = encoder(x).permute(0, 2, 3, 1).contiguous()
    flat = z.view(-1, D)
    with torch.no_grad():
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ book.t() + book.pow(2).sum(1)
        code = distance.argmin(1)
        chosen = F.one_hot(code, CODES).float()
        counts.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
        sums.mul_(0.99).add_(chosen.t() @ flat, alpha=0.01)
        book.copy_(sums / (counts + 1e-5)[:, None])
    q = F.embedding(code, book).view_as(z)
    loss = 0.25 * F.mse_loss(q.detach(), z)
    q = z + (q - z).detach()
    loss = loss + F.mse_loss(decoder(q.permute(0, 3, 1, 2).contiguous()), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
