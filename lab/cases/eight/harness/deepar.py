"""Forecasts: a GRU over many series with categories and a Student-t likelihood, in fp32."""
import torch
from torch import nn
from torch.distributions import StudentT

torch.manual_seed(0)
B, T, SERIES = 256, 120, 3000


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.series = nn.Embedding(SERIES, 32)
        self.gru = nn.GRU(32 + 8, 160, num_layers=3, batch_first=True, dropout=0.1)
        self.out = nn.Linear(160, 3)

    def forward(self, past, extra, ids):
        x = torch.cat([past[..., None], extra, self.series(ids)[:, None].expand(-1, T, -1)], -1)
        freedom, middle, scale = self.out(self.gru(x)[0]).unbind(-1)
        return StudentT(2 + nn.functional.softplus(freedom), middle, nn.functional.softplus(scale) + 1e-3, validate_args=False)


model = Forecaster().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(60):
    values = torch.randn(B, T + 1, device="cuda").cumsum(1)
    scale = values.abs().mean(1, keepdim=True) + 1
    values = values / scale
    extra, ids = torch.randn(B, T, 7, device="cuda"), torch.randint(0, SERIES, (B,), device="cuda")
    loss = -model(values[:, :-1], extra, ids).log_prob(values[:, 1:]).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
