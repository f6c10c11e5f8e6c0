"""Detection by queries: a convolutional backbone in frozen statistics, a transformer of nn.Transformer, boxes and classes; fp32 and TF32."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
D, Q = 256, 100


def stage(i, o, s):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Detr(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(stage(3, 64, 2), stage(64, 128, 2), stage(128, 256, 2), stage(256, 512, 2), stage(512, 512, 2))
        self.body.eval()
        self.narrow, self.queries = nn.Conv2d(512, D, 1), nn.Embedding(Q, D)
        self.place = nn.Parameter(torch.randn(1, 256, D) * 0.02)
        self.transformer = nn.Transformer(D, 8, 6, 6, 2048, 0.1, batch_first=True)
        self.cls, self.box = nn.Linear(D, 92), nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, x):
        z = self.narrow(self.body(x)).flatten(2).transpose(1, 2) + self.place
        z = self.transformer(z, self.queries.weight[None].expand(x.shape[0], -1, -1))
        return self.cls(z), self.box(z).sigmoid()


model = Detr().cuda()
optimizer = torch.optim.AdamW([{"params": model.body.parameters(), "lr": 1e-5}, {"params": [p for n, p in model.named_parameters() if not n.startswith("body")]}], 1e-4)
for step in range(60):
    x = torch.randn(8, 3, 512, 512, device="cuda")
    cls, box = model(x)
    label, goal = torch.randint(0, 92, (8, Q), device="cuda"), torch.rand(8, Q, 4, device="cuda")
    loss = F.cross_entropy(cls.flatten(0, 1), label.flatten()) + 5 * F.l1_loss(box, goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
