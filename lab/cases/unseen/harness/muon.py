"""Muon: five Newton-Schulz iterations on each matrix of a small transformer in bf16, AdamW for the rest."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D, L, T, V = 768, 12, 1024, 32768
class Muon(torch.optim.Optimizer):
    def __init__(s, p, lr=0.02, momentum=0.95): super().__init__(p, dict(lr=lr, momentum=momentum))
    @torch.no_grad()
    def step(s):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if "m" not in st: st["m"] = torch.zeros_like(p.grad)
                st["m"].lerp_(p.grad, 1 - g["momentum"]); u = p.grad.lerp(st["m"], g["momentum"]); x = u.bfloat16(); t = x.size(0) > x.size(1)
                if t: x = x.T
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T; b = -4.775 * a + 2.0315 * a @ a; x = 3.4445 * x + b @ x
                if t: x = x.T
                p.add_(x.to(p.dtype), alpha=-g["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)
class Block(nn.Module):
    def __init__(s): super().__init__(); s.q, s.k, s.v, s.o = (nn.Linear(D, D, bias=False) for _ in range(4)); s.a, s.b = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
    def forward(s, x):
        h = F.rms_norm(x, (D,)); q, k, v = (f(h).unflatten(-1, (12, 64)).transpose(1, 2) for f in (s.q, s.k, s.v)); q, k = F.rms_norm(q, (64,)), F.rms_norm(k, (64,))
        x = x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)); h = F.rms_norm(x, (D,)); return x + s.b(F.relu(s.a(h)).square())
e = nn.Embedding(V, D).cuda().bfloat16(); bs = nn.ModuleList(Block() for _ in range(L)).cuda().bfloat16(); h = nn.Linear(D, V, bias=False).cuda().bfloat16()
om, oa = Muon(list(bs.parameters())), torch.optim.AdamW([*e.parameters(), *h.parameters()], fused=True)
for step in range(80):
    i = torch.randint(0, V, (16, T), device="cuda"); x = e(i)
    for b in bs: x = b(x)
    loss = F.cross_entropy(h(F.rms_norm(x, (D,))).float().flatten(0, 1), i.roll(-1, 1).flatten()); loss.backward(); om.step(); oa.step(); om.zero_grad(); oa.zero_grad()
