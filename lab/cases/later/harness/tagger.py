"""A tagger: a bidirectional LSTM and a conditional random field whose forward pass is a loop over words."""
import torch
from torch import nn

torch.manual_seed(0)
V, E, H, K, B, T = 30000, 200, 256, 24, 64, 48
embed, lstm, out = nn.Embedding(V, E).cuda(), nn.LSTM(E, H, bidirectional=True, batch_first=True).cuda(), nn.Linear(2 * H, K).cuda()
moves = nn.Parameter(torch.randn(K, K, device="cuda") * 0.1)
optimizer = torch.optim.Adam([*embed.parameters(), *lstm.parameters(), *out.parameters(), moves], 1e-3)
for step in range(60):
    x, y = torch.randint(0, V, (B, T), device="cuda"), torch.randint(0, K, (B, T), device="cuda")
    scores = out(lstm(embed(x))[0])
    alpha = scores[:, 0]
    for t in range(1, T):
        alpha = torch.logsumexp(alpha[:, :, None] + moves[None], 1) + scores[:, t]
    gold = scores.gather(2, y[..., None]).sum((1, 2)) + moves[y[:, :-1], y[:, 1:]].sum(1)
    loss = (torch.logsumexp(alpha, 1) - gold).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([*embed.parameters(), *lstm.parameters(), *out.parameters(), moves], 5.0)
    optimizer.step()
