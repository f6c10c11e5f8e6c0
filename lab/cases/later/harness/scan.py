"""A selective state space: short depthwise convolutions, a scan in chunks by cumulative sums, gates; bf16 autocast."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D, N, T, CHUNK, V = 768, 16, 1024, 64, 16000


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inp, self.conv = nn.RMSNorm(D), nn.Linear(D, 2 * D, bias=False), nn.Conv1d(D, D, 4, groups=D, padding=3)
        self.bc, self.dt, self.out = nn.Linear(D, 2 * N, bias=False), nn.Linear(D, D), nn.Linear(D, D, bias=False)
        self.decay = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        u, gate = self.inp(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :T].transpose(1, 2))
        b, c = self.bc(u).float().chunk(2, -1)
        dt = F.softplus(self.dt(u).float())
        fall, y = -dt * self.decay.exp(), []
        state = torch.zeros(x.shape[0], D, N, device=x.device)
        for at in range(0, T, CHUNK):
            part = slice(at, at + CHUNK)
            total = fall[:, part].cumsum(1).clamp(-20, 0)
            inside = torch.einsum("btn,bsn->bts", c[:, part], b[:, part]).tril()
            own = (inside @ (dt[:, part] * u[:, part].float() * (-total).exp())) * total.exp()
            y.append(own + torch.einsum("btn,bdn->btd", c[:, part], state) * total.exp())
            last = total[:, -1:]
            state = state * last.transpose(1, 2).exp() + torch.einsum("btd,btn->bdn", dt[:, part] * u[:, part].float() * (last - total).exp(), b[:, part])
        return x + self.out(torch.cat(y, 1).to(gate.dtype) * F.silu(gate))


embed, blocks, head = nn.Embedding(V, D).cuda(), nn.ModuleList(Mixer() for _ in range(6)).cuda(), nn.Linear(D, V, bias=False).cuda()
params = [*embed.parameters(), *blocks.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(params, 3e-4, fused=True)
for step in range(60):
    x = torch.randint(0, V, (8, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        h = embed(x[:, :-1])
        for block in blocks:
            h = block(h)
        loss = F.cross_entropy(head(h).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
