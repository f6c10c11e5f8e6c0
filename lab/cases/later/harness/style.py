"""Style transfer: a picture is trained through a network that is not, by Gram matrices and smoothness."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
parts, before = nn.ModuleList(), 3
for width, count in ((64, 2), (128, 2), (256, 4), (512, 2)):
    layers = []
    for _ in range(count):
        layers += [nn.Conv2d(before, width, 3, 1, 1), nn.ReLU(True)]
        before = width
    parts.append(nn.Sequential(*layers))
parts = parts.cuda().requires_grad_(False)


def features(x):
    kept = []
    for at, part in enumerate(parts):
        x = part(F.avg_pool2d(x, 2) if at else x)
        kept.append(x)
    return kept


def gram(x):
    flat = x.flatten(2)
    return flat @ flat.transpose(1, 2) / flat.shape[2]


content, styled = torch.rand(4, 3, 384, 384, device="cuda"), torch.rand(4, 3, 384, 384, device="cuda")
with torch.no_grad():
    goals, shape = [gram(f) for f in features(styled)], features(content)[2]
picture = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([picture], 0.02)
for step in range(60):
    kept = features(picture)
    loss = sum(F.mse_loss(gram(f), g) for f, g in zip(kept, goals)) * 1e3 + F.mse_loss(kept[2], shape)
    loss = loss + (picture[..., 1:] - picture[..., :-1]).abs().mean() + (picture[..., 1:, :] - picture[..., :-1, :]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        picture.clamp_(0, 1)
