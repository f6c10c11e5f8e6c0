"""A masked autoencoder of picture patches: random subsets by argsort and gather, bf16 autocast."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
N, D, KEEP = 196, 768, 49


class Mae(nn.Module):
    def __init__(self):
        super().__init__()
        layer = lambda d, h: nn.TransformerEncoderLayer(d, h, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.patch, self.place = nn.Conv2d(3, D, 16, 16), nn.Parameter(torch.zeros(1, N, D))
        self.encoder = nn.ModuleList(layer(D, 12) for _ in range(8))
        self.narrow, self.mask = nn.Linear(D, 512), nn.Parameter(torch.zeros(1, 1, 512))
        self.place2 = nn.Parameter(torch.zeros(1, N, 512))
        self.decoder = nn.ModuleList(layer(512, 16) for _ in range(4))
        self.out = nn.Linear(512, 768)

    def forward(self, x):
        z = self.patch(x).flatten(2).transpose(1, 2) + self.place
        order = torch.rand(x.shape[0], N, device=x.device).argsort(1)
        back = order.argsort(1)
        z = z.gather(1, order[:, :KEEP, None].expand(-1, -1, D))
        for block in self.encoder:
            z = block(z)
        z = self.narrow(z)
        z = torch.cat([z, self.mask.expand(x.shape[0], N - KEEP, -1).to(z.dtype)], 1)
        z = z.gather(1, back[..., None].expand(-1, -1, 512)) + self.place2
        for block in self.decoder:
            z = block(z)
        return self.out(z), (back >= KEEP).float()


model = Mae().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
for step in range(60):
    x = torch.randn(64, 3, 224, 224, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out, hidden = model(x)
    target = F.unfold(x, 16, stride=16).transpose(1, 2)
    target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
    loss = (((out.float() - target) ** 2).mean(-1) * hidden).sum() / hidden.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
