"""Experts by hand over two GPUs: top-2 of 16, tokens sorted, counts exchanged, uneven all-to-alls of tokens, experts one after the other; the rest by an all-reduce of flat gradients."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); W = dist.get_world_size(); torch.manual_seed(0)
D, L, H, I, E, V, B, T = 1536, 8, 12, 2816, 16, 32000, 8, 2048
MINE = E // W


class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out, to):
        ctx.counts = (out, to); y = x.new_empty(sum(out), x.shape[1]); dist.all_to_all_single(y, x.contiguous(), out, to); return y

    @staticmethod
    def backward(ctx, g):
        out, to = ctx.counts; y = g.new_empty(sum(to), g.shape[1]); dist.all_to_all_single(y, g.contiguous(), to, out); return y, None, None


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False); self.up = nn.Parameter(torch.randn(MINE, D, 2 * I) * 0.02); self.down = nn.Parameter(torch.randn(MINE, I, D) * 0.02)

    def forward(self, x):
        flat = x.view(-1, D); score, pick = self.gate(flat).float().softmax(-1).topk(2, -1); order = pick.view(-1).argsort(); rows = flat[order // 2]
        counts = torch.bincount(pick.view(-1), minlength=E); theirs = torch.empty_like(counts); dist.all_to_all_single(theirs, counts)
        send = counts.view(W, MINE).sum(1).tolist(); recv = theirs.view(W, MINE).sum(1).tolist()
        got = Swap.apply(rows, recv, send); which = torch.arange(MINE, device=x.device).repeat(W).repeat_interleave(theirs); by = which.argsort(stable=True); sizes = theirs.view(W, MINE).sum(0).tolist()
        parts = []
        for i, part in enumerate(got[by].split(sizes)):
            a, u = (part @ self.up[i]).chunk(2, -1); parts.append((F.silu(a) * u) @ self.down[i])
        back = Swap.apply(torch.cat(parts)[by.argsort()], send, recv)
        y = torch.zeros_like(flat).index_add(0, order // 2, back * score.view(-1)[order, None].to(back.dtype))
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D); self.qkv = nn.Linear(D, 3 * D, bias=False); self.o = nn.Linear(D, D, bias=False); self.x = Experts()

    def forward(self, x):
        q, k, v = (z.view(B, T, H, D // H).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.x(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D); self.b = nn.ModuleList(Block() for _ in range(L)); self.n = nn.RMSNorm(D); self.head = nn.Linear(D, V, bias=False)

    def forward(self, i):
        x = self.e(i)
        for b in self.b: x = b(x)
        return self.head(self.n(x))


model = LM().cuda().bfloat16(); shared = [p for n, p in model.named_parameters() if ".up" not in n and ".down" not in n]
opt = torch.optim.AdamW(model.parameters(), 1e-4, foreach=True)
for step in range(40):
    x = torch.randint(0, V, (B, T), device="cuda"); loss = F.cross_entropy(model(x).float().view(-1, V), x.view(-1)); loss.backward()
    flat = torch.cat([p.grad.view(-1) for p in shared]); dist.all_reduce(flat); flat /= W
    for p, g in zip(shared, flat.split([p.numel() for p in shared])): p.grad.copy_(g.view_as(p))
    opt.step(); opt.zero_grad()
