"""Super-resolution by residual convolutions and pixel shuffling, channels last, fp16 with a scaler, averaged weights."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
C = 128


class Res(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(C, C, 3, 1, 1), nn.Conv2d(C, C, 3, 1, 1)

    def forward(self, x):
        return x + 0.1 * self.b(F.relu(self.a(x)))


model = nn.Sequential(
    nn.Conv2d(3, C, 3, 1, 1), *(Res() for _ in range(12)), nn.Conv2d(C, 4 * C, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(C, 3, 3, 1, 1)
).cuda().to(memory_format=torch.channels_last)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-4), torch.amp.GradScaler("cuda")
for step in range(60):
    small = torch.rand(16, 3, 96, 96, device="cuda").to(memory_format=torch.channels_last)
    large = torch.rand(16, 3, 192, 192, device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = F.l1_loss(model(small), large)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    averaged.update_parameters(model)
