"""Graph attention over edges with index_add and a softmax by scattered maxima; fp32."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
NODES, EDGES, HEADS, WIDTH = 60_000, 900_000, 4, 32


class Gat(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.lin = nn.Linear(inputs, HEADS * WIDTH, bias=False)
        self.a, self.b = nn.Parameter(torch.randn(HEADS, WIDTH) * 0.1), nn.Parameter(torch.randn(HEADS, WIDTH) * 0.1)

    def forward(self, x, source, goal):
        h = self.lin(x).view(-1, HEADS, WIDTH)
        score = F.leaky_relu((h * self.a).sum(-1)[source] + (h * self.b).sum(-1)[goal], 0.2)
        most = torch.full((NODES, HEADS), -1e9, device=x.device)
        most = most.scatter_reduce(0, goal[:, None].expand(-1, HEADS), score.detach(), "amax")
        e = (score - most[goal]).exp()
        total = torch.zeros(NODES, HEADS, device=x.device).index_add(0, goal, e)
        share = e / (total[goal] + 1e-9)
        out = torch.zeros_like(h).index_add(0, goal, h[source] * share[..., None])
        return out.flatten(1)


layers = nn.ModuleList([Gat(128), Gat(128)]).cuda()
head = nn.Linear(128, 47).cuda()
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], 5e-3, weight_decay=5e-4)
x, y = torch.randn(NODES, 128, device="cuda"), torch.randint(0, 47, (NODES,), device="cuda")
source, goal = (torch.randint(0, NODES, (EDGES,), device="cuda") for _ in range(2))
for step in range(60):
    h = x
    for layer in layers:
        h = F.elu(layer(F.dropout(h, 0.3), source, goal))
    loss = F.cross_entropy(head(h), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
