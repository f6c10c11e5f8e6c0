"""A two-tower recommender: embedding bags with sparse gradients, SparseAdam, in-batch softmax."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); B, D = 16384, 128
u, v = nn.EmbeddingBag(2_000_000, D, mode="mean", sparse=True).cuda(), nn.EmbeddingBag(1_000_000, D, mode="mean", sparse=True).cuda(); a = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 256)).cuda(); b = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
os, od = torch.optim.SparseAdam([*u.parameters(), *v.parameters()], 1e-3), torch.optim.Adam([*a.parameters(), *b.parameters()], 1e-3); y = torch.arange(B, device="cuda")
for step in range(80):
    i = torch.randint(0, 2_000_000, (B, 20), device="cuda"); j = torch.randint(0, 1_000_000, (B, 5), device="cuda"); p, q = F.normalize(a(u(i)), dim=1), F.normalize(b(v(j)), dim=1); loss = F.cross_entropy(p @ q.T / 0.05, y); os.zero_grad(); od.zero_grad(); loss.backward(); os.step(); od.step()
