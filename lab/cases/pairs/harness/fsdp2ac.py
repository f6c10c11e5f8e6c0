"""FSDP2 with a policy of mixed precision, units that stay gathered after the forward pass, selective checkpoints and four accumulated micro-batches without reduction."""
import functools, os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),)); torch.manual_seed(0)
D, L, H, K, I, V, B, T = 2560, 14, 20, 5, 6912, 48000, 2, 4096
KEEP = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_cudnn_attention.default}


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in KEEP else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        hd = D // H
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D); self.q = nn.Linear(D, D, bias=False); self.kv = nn.Linear(D, 2 * K * hd, bias=False); self.o = nn.Linear(D, D, bias=False)
        self.g, self.u, self.d = nn.Linear(D, I, bias=False), nn.Linear(D, I, bias=False), nn.Linear(I, D, bias=False)

    def inner(self, x):
        h = self.n1(x); q = self.q(h).view(B, T, H, -1).transpose(1, 2); k, v = self.kv(h).view(B, T, 2 * K, -1).transpose(1, 2).chunk(2, 1)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(B, T, D))
        h = self.n2(x)
        return x + self.d(F.silu(self.g(h)) * self.u(h))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, policy))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D); self.b = nn.ModuleList(Block() for _ in range(L)); self.n = nn.RMSNorm(D); self.head = nn.Linear(D, V, bias=False)

    def forward(self, i):
        x = self.e(i)
        for b in self.b: x = b(x)
        return self.head(self.n(x))


model = LM().cuda(); mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for b in model.b: fully_shard(b, mesh=mesh, mp_policy=mp, reshard_after_forward=False)
fully_shard(model, mesh=mesh, mp_policy=mp)
opt = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95), foreach=True)
for step in range(40):
    for micro in range(4):
        model.set_requires_gradient_sync(micro == 3)
        x = torch.randint(0, V, (B, T), device="cuda"); loss = F.cross_entropy(model(x).float().view(-1, V), x.view(-1)) / 4; loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
