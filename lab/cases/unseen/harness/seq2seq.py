"""torch.nn.Transformer for translation: padding masks, label smoothing, Noam schedule, bf16 autocast."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); D, V = 512, 32000
class Net(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(V, D, padding_idx=0); s.t = nn.Transformer(D, 8, 6, 6, 2048, 0.1, batch_first=True); s.o = nn.Linear(D, V)
    def forward(s, x, y): m = nn.Transformer.generate_square_subsequent_mask(y.shape[1], device=y.device); return s.o(s.t(s.e(x) * D ** 0.5, s.e(y) * D ** 0.5, tgt_mask=m, src_key_padding_mask=x == 0, tgt_key_padding_mask=y == 0, memory_key_padding_mask=x == 0))
m = Net().cuda(); o = torch.optim.Adam(m.parameters(), 1e-3, betas=(0.9, 0.98)); sch = torch.optim.lr_scheduler.LambdaLR(o, lambda n: min((n + 1) ** -0.5, (n + 1) * 4000 ** -1.5))
n = torch.randint(64, 129, (128, 1), device="cuda"); a = torch.arange(128, device="cuda")
for step in range(40):
    x = torch.randint(1, V, (128, 128), device="cuda") * (a < n); y = torch.randint(1, V, (128, 128), device="cuda") * (a < n)
    with torch.autocast("cuda", dtype=torch.bfloat16): z = m(x, y[:, :-1])
    loss = F.cross_entropy(z.flatten(0, 1).float(), y[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1); o.zero_grad(); loss.backward(); o.step(); sch.step()
