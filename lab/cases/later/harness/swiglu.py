"""A language model with rotary positions, grouped keys and SwiGLU in bf16 weights; two accumulated batches, clipped."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D, HEADS, KV, L, T, V = 1280, 20, 4, 14, 1024, 32000


def rotate(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        h = D // HEADS
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, n, bias=False) for n in (D, KV * h, KV * h, D))
        self.gate, self.up, self.down = nn.Linear(D, 3456, bias=False), nn.Linear(D, 3456, bias=False), nn.Linear(3456, D, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        z = self.n1(x)
        q, k, v = (f(z).view(b, t, -1, D // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(z.transpose(1, 2).reshape(b, t, D))
        z = self.n2(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks, self.norm = nn.Embedding(V, D), nn.ModuleList(Block() for _ in range(L)), nn.RMSNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        angle = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, D // HEADS, 2) / (D // HEADS))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        return self.head(self.norm(h))


model = Model().cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
for step in range(60):
    for _ in range(2):
        x = torch.randint(0, V, (4, T + 1), device="cuda")
        loss = F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten()) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
