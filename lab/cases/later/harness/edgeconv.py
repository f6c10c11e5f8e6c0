"""Dynamic graph convolutions over point clouds: distances, nearest neighbours, gathered edges, maxima."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
K = 20


def edges(x):
    inner = -2 * x.transpose(1, 2) @ x
    square = (x**2).sum(1, keepdim=True)
    near = (-square - inner - square.transpose(1, 2)).topk(K, -1).indices
    b, c, n = x.shape
    flat = (near + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
    rows = x.transpose(1, 2).reshape(b * n, c)
    there = rows[flat].view(b, n, K, c)
    here = rows.view(b, n, 1, c).expand(-1, -1, K, -1)
    return torch.cat([there - here, here], 3).permute(0, 3, 1, 2).contiguous()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        part = lambda i, o: nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))
        self.parts = nn.ModuleList([part(3, 64), part(64, 64), part(64, 128), part(128, 256)])
        self.join = nn.Sequential(nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(
            nn.Linear(2048, 512, bias=False), nn.BatchNorm1d(512), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(512, 40)
        )

    def forward(self, x):
        kept = []
        for part in self.parts:
            x = part(edges(x)).amax(-1)
            kept.append(x)
        x = self.join(torch.cat(kept, 1))
        return self.head(torch.cat([x.amax(-1), x.mean(-1)], 1))


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for step in range(60):
    x, y = torch.randn(16, 3, 1024, device="cuda"), torch.randint(0, 40, (16,), device="cuda")
    loss = F.cross_entropy(model(x), y, label_smoothing=0.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
