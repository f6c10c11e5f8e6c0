"""Objects in pictures: a network with split stages, pyramids and three scales of boxes, in fp16 with a scaler."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
CLASSES = 20


def conv(c, k, size=1, stride=1):
    return nn.Sequential(nn.Conv2d(c, k, size, stride, size // 2, bias=False), nn.BatchNorm2d(k), nn.SiLU())


class Stage(nn.Module):
    def __init__(self, c, k, depth):
        super().__init__()
        self.first, self.last = conv(c, k), conv(k // 2 * (2 + depth), k)
        self.parts = nn.ModuleList([nn.Sequential(conv(k // 2, k // 2, 3), conv(k // 2, k // 2, 3)) for _ in range(depth)])

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for part in self.parts:
            parts.append(parts[-1] + part(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        w = [24, 48, 96, 192, 384]
        self.stem = conv(3, w[0], 3, 2)
        self.down = nn.ModuleList([conv(a, b, 3, 2) for a, b in zip(w, w[1:])])
        self.stages = nn.ModuleList([Stage(b, b, d) for b, d in zip(w[1:], (1, 2, 2, 1))])
        self.up = nn.ModuleList([Stage(w[4] + w[3], w[3], 1), Stage(w[3] + w[2], w[2], 1)])
        self.heads = nn.ModuleList([nn.Sequential(conv(c, 64, 3), nn.Conv2d(64, 5 + CLASSES, 1)) for c in (w[2], w[3], w[4])])

    def forward(self, x):
        x, maps = self.stem(x), []
        for down, stage in zip(self.down, self.stages):
            x = stage(down(x))
            maps.append(x)
        middle = self.up[0](torch.cat([F.interpolate(maps[3], scale_factor=2.0), maps[2]], 1))
        near = self.up[1](torch.cat([F.interpolate(middle, scale_factor=2.0), maps[1]], 1))
        return [head(x) for head, x in zip(self.heads, (near, middle, maps[3]))]


model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
for step in range(60):
    x = torch.rand(24, 3, 320, 320, device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = 0.0
        for out in model(x):
            out = out.permute(0, 2, 3, 1).float()
            goal = (torch.rand(out.shape[:-1], device="cuda") < 0.02).float()
            boxes = torch.rand(*out.shape[:-1], 4, device="cuda")
            kinds = torch.randint(0, CLASSES, out.shape[:-1], device="cuda")
            loss = loss + F.binary_cross_entropy_with_logits(out[..., 4], goal)
            loss = loss + (goal[..., None] * (out[..., :4].sigmoid() - boxes).abs()).sum() / goal.sum().clamp(min=1)
            loss = loss + (goal * F.cross_entropy(out[..., 5:].permute(0, 3, 1, 2), kinds, reduction="none")).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
