"""An encoder and decoder of nn.Transformer under the older FSDP: SHARD_GRAD_OP, original parameters, size-based wrapping, bf16, masks of padding."""
import functools, os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(0)
D, V, B, S, T = 1280, 40000, 32, 256, 256


class Translate(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.tgt = nn.Embedding(V, D), nn.Embedding(V, D); self.body = nn.Transformer(D, 20, 10, 10, 4 * D, 0.1, F.gelu, batch_first=True, norm_first=True); self.head = nn.Linear(D, V)

    def forward(self, s, t, pad):
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=s.device), 1)
        return self.head(self.body(self.src(s), self.tgt(t), tgt_mask=mask, src_key_padding_mask=pad, memory_key_padding_mask=pad, tgt_is_causal=True))


bf = torch.bfloat16
model = FSDP(Translate().cuda(), auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=15_000_000), mixed_precision=MixedPrecision(bf, bf, bf), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True, device_id=rank)
opt = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98)); sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min((n + 1) ** -0.5, (n + 1) * 4000 ** -1.5))
for step in range(40):
    s, t = torch.randint(0, V, (B, S), device="cuda"), torch.randint(0, V, (B, T), device="cuda"); pad = torch.zeros(B, S, dtype=torch.bool, device="cuda"); pad[:, -20:] = True
    loss = F.cross_entropy(model(s, t, pad).flatten(0, 1).float(), t.flatten(), label_smoothing=0.1); loss.backward(); opt.step(); sched.step(); opt.zero_grad()
