"""Residual blocks with squeeze and excitation, channels last, bf16 autocast, SGD."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        m = o // 4
        self.a, self.b, self.c = nn.Conv2d(i, m, 1, bias=False), nn.Conv2d(m, m, 3, stride, 1, bias=False), nn.Conv2d(m, o, 1, bias=False)
        self.na, self.nb, self.nc = nn.BatchNorm2d(m), nn.BatchNorm2d(m), nn.BatchNorm2d(o)
        self.s = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(o, o // 16, 1), nn.ReLU(True), nn.Conv2d(o // 16, o, 1), nn.Sigmoid())
        self.skip = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if i != o or stride > 1 else nn.Identity()

    def forward(self, x):
        z = F.relu(self.na(self.a(x)), True)
        z = F.relu(self.nb(self.b(z)), True)
        z = self.nc(self.c(z))
        return F.relu(z * self.s(z) + self.skip(x), True)


layers, before = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
for width, count, stride in ((256, 3, 1), (512, 4, 2), (1024, 5, 2), (2048, 3, 2)):
    for at in range(count):
        layers.append(Block(before, width, stride if at == 0 else 1))
        before = width
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-5)
for step in range(60):
    x = torch.randn(64, 3, 176, 176, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
