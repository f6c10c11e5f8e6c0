"""Speech recognition: mel frames, strided convolutions, conformer-like blocks, CTC, bf16 autocast."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D = 512
class Block(nn.Module):
    def __init__(s): super().__init__(); s.n = nn.ModuleList(nn.LayerNorm(D) for _ in range(4)); s.f1 = nn.Sequential(nn.Linear(D, 2048), nn.SiLU(), nn.Dropout(0.1), nn.Linear(2048, D)); s.f2 = nn.Sequential(nn.Linear(D, 2048), nn.SiLU(), nn.Dropout(0.1), nn.Linear(2048, D)); s.a = nn.MultiheadAttention(D, 8, batch_first=True, dropout=0.1); s.p = nn.Conv1d(D, 2 * D, 1); s.w = nn.Conv1d(D, D, 31, padding=15, groups=D); s.b = nn.BatchNorm1d(D); s.q = nn.Conv1d(D, D, 1)
    def forward(s, x):
        x = x + 0.5 * s.f1(s.n[0](x)); h = s.n[1](x); x = x + s.a(h, h, h, need_weights=False)[0]; h = F.glu(s.p(s.n[2](x).transpose(1, 2)), 1); x = x + s.q(F.silu(s.b(s.w(h)))).transpose(1, 2); return s.n[3](x + 0.5 * s.f2(x))
m = nn.ModuleDict(dict(c=nn.Sequential(nn.Conv2d(1, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 2, 1), nn.ReLU()), i=nn.Linear(128 * 20, D), b=nn.Sequential(*[Block() for _ in range(12)]), o=nn.Linear(D, 1024))).cuda(); o = torch.optim.AdamW(m.parameters(), 1e-3)
for step in range(40):
    x = torch.randn(32, 1, 1200, 80, device="cuda"); y = torch.randint(1, 1024, (32, 80), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): h = m.c(x) if hasattr(m, "c") else m["c"](x); h = m["i"](h.transpose(1, 2).flatten(2)); z = m["o"](m["b"](h))
    loss = F.ctc_loss(z.float().log_softmax(-1).transpose(0, 1), y, torch.full((32,), z.shape[1], dtype=torch.long), torch.full((32,), 80, dtype=torch.long), zero_infinity=True); o.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(m.parameters(), 5.0); o.step()
