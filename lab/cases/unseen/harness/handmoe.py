"""Experts by hand: top two of sixteen, a loop with where and index_add, a balance loss, bf16 weights."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D, H, K, L = 1024, 16, 16, 6
class MoE(nn.Module):
    def __init__(s): super().__init__(); s.g = nn.Linear(D, K, bias=False); s.e = nn.ModuleList(nn.ModuleList((nn.Linear(D, 2816, bias=False), nn.Linear(D, 2816, bias=False), nn.Linear(2816, D, bias=False))) for _ in range(K))
    def forward(s, x):
        z = x.flatten(0, 1); p = s.g(z).float().softmax(-1); w, i = p.topk(2, -1); w = (w / w.sum(-1, keepdim=True)).to(z.dtype); out = torch.zeros_like(z)
        for k, (a, b, c) in enumerate(s.e): t, n = torch.where(i == k); out.index_add_(0, t, c(F.silu(a(z[t])) * b(z[t])) * w[t, n, None])
        return out.view_as(x), (p.mean(0) * F.one_hot(i[:, 0], K).float().mean(0)).sum() * K
class Block(nn.Module):
    def __init__(s): super().__init__(); s.n1, s.n2 = nn.RMSNorm(D), nn.RMSNorm(D); s.q, s.o, s.m = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False), MoE()
    def forward(s, x): q, k, v = s.q(s.n1(x)).unflatten(-1, (3, H, 64)).permute(2, 0, 3, 1, 4); x = x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)); y, a = s.m(s.n2(x)); return x + y, a
e = nn.Embedding(32000, D).cuda().bfloat16(); bs = nn.ModuleList(Block() for _ in range(L)).cuda().bfloat16(); h = nn.Linear(D, 32000, bias=False).cuda().bfloat16(); o = torch.optim.AdamW([*e.parameters(), *bs.parameters(), *h.parameters()], fused=True)
for step in range(40):
    i = torch.randint(0, 32000, (8, 2048), device="cuda"); x, aux = e(i), 0.0
    for b in bs: x, a = b(x); aux = aux + a
    loss = F.cross_entropy(h(x).float().flatten(0, 1), i.roll(-1, 1).flatten()) + 0.01 * aux; loss.backward(); o.step(); o.zero_grad()
