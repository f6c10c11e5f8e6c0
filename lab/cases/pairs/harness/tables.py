"""Embedding tables spread over GPUs (each owns half of them), their outputs exchanged, dense parts by DDP; SGD on tables, Adam on the rest."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); W = dist.get_world_size(); torch.manual_seed(rank)
N, D, B, HOT, ROWS = 26, 128, 16384, 8, 500_000


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, D)); n = N + 1
        self.top = nn.Sequential(nn.Linear(n * (n - 1) // 2 + D, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)); self.register_buffer("low", torch.tril_indices(n, n, -1))

    def forward(self, dense, sparse):
        x = self.bottom(dense); z = torch.cat([x[:, None], sparse], 1); pairs = torch.bmm(z, z.transpose(1, 2))[:, self.low[0], self.low[1]]
        return self.top(torch.cat([x, pairs], 1)).squeeze(1)


tables = nn.ModuleList(nn.EmbeddingBag(ROWS, D, mode="sum") for _ in range(N // W)).cuda(); model = DDP(Dense().cuda(), device_ids=[rank])
opt = torch.optim.Adam(model.parameters(), 1e-3); slow = torch.optim.SGD(tables.parameters(), 0.1)
for step in range(40):
    ids = torch.randint(0, ROWS, (N // W, B * W, HOT), device="cuda"); dense = torch.rand(B, 13, device="cuda"); y = torch.randint(0, 2, (B,), device="cuda").float()
    own = torch.stack([t(i) for t, i in zip(tables, ids)], 1)
    swapped = all_to_all_single(torch.empty_like(own), own); sparse = swapped.view(W, B, N // W, D).transpose(0, 1).reshape(B, N, D)
    loss = F.binary_cross_entropy_with_logits(model(dense, sparse), y); loss.backward(); slow.step(); opt.step(); opt.zero_grad(); slow.zero_grad()
