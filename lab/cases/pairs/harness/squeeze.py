"""A ViT-L under DDP whose gradients travel as bf16 by a communication hook, buckets of 10 MB, static graph, a moving average of weights."""
import copy, os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(0)
D, L, H, B, P = 1024, 24, 16, 96, 196


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D); self.qkv = nn.Linear(D, 3 * D); self.o = nn.Linear(D, D); self.a = nn.Linear(D, 4 * D); self.b = nn.Linear(4 * D, D); self.s1 = nn.Parameter(torch.full((D,), 1e-4)); self.s2 = nn.Parameter(torch.full((D,), 1e-4))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.s1 * self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, D))
        return x + self.s2 * self.b(F.gelu(self.a(self.n2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 16, 16); self.cls = nn.Parameter(torch.zeros(1, 1, D)); self.pos = nn.Parameter(torch.zeros(1, P + 1, D)); self.b = nn.Sequential(*(Block() for _ in range(L))); self.n = nn.LayerNorm(D); self.head = nn.Linear(D, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2); x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.n(self.b(x))[:, 0])


net = ViT().cuda(); mean = copy.deepcopy(net).requires_grad_(False)
model = DDP(net, device_ids=[rank], bucket_cap_mb=10, static_graph=True); model.register_comm_hook(None, default_hooks.bf16_compress_hook)
opt = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
for step in range(40):
    x = torch.randn(B, 3, 224, 224, device="cuda"); y = torch.randint(0, 1000, (B,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16): loss = F.cross_entropy(model(x), y)
    loss.backward(); opt.step(); opt.zero_grad()
    torch._foreach_lerp_(list(mean.parameters()), [p.detach() for p in net.parameters()], 0.001)
