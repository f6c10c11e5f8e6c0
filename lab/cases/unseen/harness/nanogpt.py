"""A GPT of 350M parameters in the manner of nanoGPT: autocast, fused AdamW, tied head, clipping, 4 microbatches."""
import math, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); V, T, D, L, H = 50304, 1024, 1024, 24, 16
class Block(nn.Module):
    def __init__(s):
        super().__init__(); s.n1, s.n2 = nn.LayerNorm(D), nn.LayerNorm(D); s.qkv, s.o = nn.Linear(D, 3 * D), nn.Linear(D, D); s.up, s.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
    def forward(s, x):
        b, t, d = x.shape; q, k, v = s.qkv(s.n1(x)).split(D, 2)
        q, k, v = (z.view(b, t, H, d // H).transpose(1, 2) for z in (q, k, v))
        x = x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(b, t, d))
        return x + s.down(F.gelu(s.up(s.n2(x))))
class GPT(nn.Module):
    def __init__(s):
        super().__init__(); s.e, s.p = nn.Embedding(V, D), nn.Embedding(T, D); s.b = nn.ModuleList(Block() for _ in range(L)); s.n = nn.LayerNorm(D); s.h = nn.Linear(D, V, bias=False); s.h.weight = s.e.weight
    def forward(s, i, y):
        x = s.e(i) + s.p(torch.arange(i.shape[1], device=i.device))
        for b in s.b: x = b(x)
        return F.cross_entropy(s.h(s.n(x)).view(-1, V), y.view(-1))
m = GPT().cuda(); o = torch.optim.AdamW(m.parameters(), 3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
for step in range(40):
    for micro in range(4):
        i = torch.randint(0, V, (8, T), device="cuda"); y = torch.randint(0, V, (8, T), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16): loss = m(i, y) / 4
        loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0); o.step(); o.zero_grad(set_to_none=True)
