"""Temporal convolutions with weight normalisation over series, fp32, a one-cycle schedule."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, i, o, dilation):
        super().__init__()
        self.pad = 4 * dilation
        self.a = weight_norm(nn.Conv1d(i, o, 5, dilation=dilation))
        self.b = weight_norm(nn.Conv1d(o, o, 5, dilation=dilation))
        self.skip = nn.Conv1d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        z = F.dropout(F.relu(self.a(F.pad(x, (self.pad, 0)))), 0.1, self.training)
        z = F.dropout(F.relu(self.b(F.pad(z, (self.pad, 0)))), 0.1, self.training)
        return F.relu(z + self.skip(x))


model = nn.Sequential(*(Block(24 if at == 0 else 160, 160, 2**at) for at in range(7)), nn.Conv1d(160, 24, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=1000)
for step in range(60):
    x = torch.randn(64, 24, 512, device="cuda")
    loss = F.huber_loss(model(x[..., :-1]), x[..., 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
