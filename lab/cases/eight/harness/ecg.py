"""Heart beats: a residual network over twelve leads with wide kernels, in fp32."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.first, self.second = nn.Conv1d(c, k, 17, stride, 8, bias=False), nn.Conv1d(k, k, 17, 1, 8, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm1d(k), nn.BatchNorm1d(k)])
        self.skip = nn.Sequential(nn.AvgPool1d(stride), nn.Conv1d(c, k, 1, bias=False))
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        y = self.drop(F.relu(self.norms[0](self.first(x))))
        return F.relu(self.norms[1](self.second(y)) + self.skip(x))


model = nn.Sequential(
    nn.Conv1d(12, 64, 17, padding=8, bias=False), nn.BatchNorm1d(64), nn.ReLU(),
    Block(64, 128, 4), Block(128, 192, 4), Block(192, 256, 4), Block(256, 320, 4), nn.Flatten(), nn.Linear(320 * 16, 27),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(60):
    x, y = torch.randn(64, 12, 4096, device="cuda"), (torch.rand(64, 27, device="cuda") < 0.1).float()
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
