"""DPO with low-rank adapters by hand on a frozen bf16 decoder: chosen and rejected in one batch, a reference without adapters."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D, L, V = 2048, 12, 32000
class Lo(nn.Module):
    def __init__(s, i, o): super().__init__(); s.w = nn.Linear(i, o, bias=False, dtype=torch.bfloat16).requires_grad_(False); s.a, s.b = nn.Linear(i, 16, bias=False, dtype=torch.bfloat16), nn.Linear(16, o, bias=False, dtype=torch.bfloat16); nn.init.zeros_(s.b.weight); s.on = True
    def forward(s, x): y = s.w(x); return y + 2.0 * s.b(s.a(x)) if s.on else y
class Block(nn.Module):
    def __init__(s): super().__init__(); s.n1, s.n2 = nn.RMSNorm(D, dtype=torch.bfloat16), nn.RMSNorm(D, dtype=torch.bfloat16); s.q, s.k, s.v, s.o, s.g, s.u, s.d = Lo(D, D), Lo(D, D), Lo(D, D), Lo(D, D), Lo(D, 5632), Lo(D, 5632), Lo(5632, D)
    def forward(s, x): h = s.n1(x); q, k, v = (f(h).unflatten(-1, (16, 128)).transpose(1, 2) for f in (s.q, s.k, s.v)); x = x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)); h = s.n2(x); return x + s.d(F.silu(s.g(h)) * s.u(h))
e, bs, h = nn.Embedding(V, D, dtype=torch.bfloat16).cuda().requires_grad_(False), nn.Sequential(*[Block() for _ in range(L)]).cuda(), nn.Linear(D, V, bias=False, dtype=torch.bfloat16).cuda().requires_grad_(False)
for n, p in bs.named_parameters():
    if ".a." not in n and ".b." not in n: p.requires_grad_(False)
o = torch.optim.AdamW([p for p in bs.parameters() if p.requires_grad], 1e-4)
def lp(i, on):
    for x in bs.modules():
        if isinstance(x, Lo): x.on = on
    return h(bs(e(i)))[:, :-1].float().log_softmax(-1).gather(2, i[:, 1:, None])[..., 0].sum(1)
for step in range(40):
    i = torch.randint(0, V, (8, 1024), device="cuda")
    with torch.no_grad(): r = lp(i, False)
    d = lp(i, True) - r; loss = -F.logsigmoid(0.1 * (d[:4] - d[4:])).mean(); o.zero_grad(); loss.backward(); o.step()
