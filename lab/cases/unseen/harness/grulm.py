"""A word language model of three GRU layers with dropout, truncated backpropagation, SGD with clipping, fp32."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); V, D = 33278, 1024; e, r, h, d = nn.Embedding(V, D).cuda(), nn.GRU(D, D, 3, dropout=0.3).cuda(), nn.Linear(D, V).cuda(), nn.Dropout(0.3); ps = [*e.parameters(), *r.parameters(), *h.parameters()]; o = torch.optim.SGD(ps, 1.0); s = torch.zeros(3, 64, D, device="cuda")
for step in range(60):
    x = torch.randint(0, V, (70, 64), device="cuda"); z, s = r(d(e(x)), s.detach()); loss = F.cross_entropy(h(d(z)).flatten(0, 1), x.roll(-1, 0).flatten()); o.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(ps, 0.25); o.step()
