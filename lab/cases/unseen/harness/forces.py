"""A message-passing potential: energies of molecules, forces by autograd, a loss on both (second derivatives)."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); N, E, D = 12800, 256000, 128
class Net(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(100, D); s.f = nn.ModuleList(nn.Sequential(nn.Linear(50, D), nn.SiLU(), nn.Linear(D, D)) for _ in range(4)); s.u = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D)) for _ in range(4)); s.o = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, 1))
    def forward(s, z, r, i, j):
        d = (r[i] - r[j]).norm(dim=-1); b = torch.exp(-10 * (d[:, None] - torch.linspace(0, 5, 50, device=r.device)) ** 2); h = s.e(z)
        for f, u in zip(s.f, s.u): h = h + u(torch.zeros_like(h).index_add(0, i, f(b) * h[j]))
        return s.o(h)
m = Net().cuda(); o = torch.optim.Adam(m.parameters(), 1e-3)
for step in range(60):
    z = torch.randint(1, 10, (N,), device="cuda"); r = (torch.rand(N, 3, device="cuda") * 10).requires_grad_(); i = torch.randint(0, N, (E,), device="cuda"); j = (i + torch.randint(1, 50, (E,), device="cuda")) % N; e = m(z, r, i, j).sum(); f = -torch.autograd.grad(e, r, create_graph=True)[0]; loss = F.mse_loss(f, torch.randn_like(f)) + (e / N) ** 2; o.zero_grad(); loss.backward(); o.step()
