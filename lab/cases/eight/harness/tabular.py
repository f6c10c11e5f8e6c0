"""Tables: every column a token, a small transformer over the columns of many rows, under bf16 autocast."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
B, NUMBERS, KINDS, D = 2048, 24, 12, 96


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(NUMBERS, D) * 0.1), nn.Parameter(torch.zeros(NUMBERS + KINDS, D))
        self.kinds = nn.Embedding(KINDS * 50, D)
        self.first = nn.Parameter(torch.randn(1, 1, D) * 0.1)
        layer = nn.TransformerEncoderLayer(D, 8, 256, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(D), nn.ReLU(), nn.Linear(D, 1))

    def forward(self, numbers, kinds):
        kinds = self.kinds(kinds + 50 * torch.arange(KINDS, device=kinds.device))
        x = torch.cat([numbers[..., None] * self.scale, kinds], 1) + self.shift
        x = self.layers(torch.cat([self.first.expand(len(x), -1, -1), x], 1))
        return self.out(x[:, 0])


model = Table().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5)
for step in range(60):
    numbers, kinds, y = torch.randn(B, NUMBERS, device="cuda"), torch.randint(0, 50, (B, KINDS), device="cuda"), torch.randn(B, 1, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.mse_loss(model(numbers, kinds), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
