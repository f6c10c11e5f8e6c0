"""A physics-informed network for Burgers' equation: second derivatives by autograd, fp32."""
import torch, torch.nn as nn
torch.manual_seed(0); m = nn.Sequential(nn.Linear(2, 512), nn.Tanh(), *[l for _ in range(6) for l in (nn.Linear(512, 512), nn.Tanh())], nn.Linear(512, 1)).cuda(); o = torch.optim.Adam(m.parameters(), 1e-3)
g = lambda u, x: torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
for step in range(60):
    x = torch.rand(32768, 1, device="cuda").requires_grad_(); t = torch.rand(32768, 1, device="cuda").requires_grad_(); u = m(torch.cat([x, t], 1)); ux, ut = g(u, x), g(u, t); r = ut + u * ux - 0.01 / 3.14159 * g(ux, x); b = m(torch.cat([torch.rand(4096, 1, device="cuda"), torch.zeros(4096, 1, device="cuda")], 1)); loss = (r ** 2).mean() + (b ** 2).mean(); o.zero_grad(set_to_none=True); loss.backward(); o.step()
