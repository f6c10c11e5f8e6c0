"""A GPT of 0.6B whose AdamW is spread by ZeroRedundancyOptimizer, gradients as views of buckets, autocast to bf16."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(0)
D, L, H, V, B, T = 1536, 18, 12, 50304, 8, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D); self.qkv = nn.Linear(D, 3 * D); self.o = nn.Linear(D, D); self.up = nn.Linear(D, 4 * D); self.down = nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = (z.view(B, T, H, D // H).transpose(1, 2) for z in self.qkv(self.n1(x)).split(D, 2))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.p = nn.Embedding(V, D), nn.Embedding(T, D); self.b = nn.ModuleList(Block() for _ in range(L)); self.n = nn.LayerNorm(D); self.head = nn.Linear(D, V, bias=False)

    def forward(self, i):
        x = self.w(i) + self.p(torch.arange(T, device=i.device))
        for b in self.b: x = b(x)
        return self.head(self.n(x))


model = DDP(GPT().cuda(), device_ids=[rank], gradient_as_bucket_view=True, bucket_cap_mb=50)
opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-4, fused=True, parameters_as_bucket_view=False)
for step in range(40):
    x = torch.randint(0, V, (B, T), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x).view(-1, V), x.view(-1))
    loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(set_to_none=True)
