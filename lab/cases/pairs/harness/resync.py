"""ResNet-like residual tower in channels last, synchronized batch norms, DDP that looks for unused parameters, two accumulated micro-batches under no_sync."""
import contextlib, os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(rank)


class Block(nn.Module):
    def __init__(self, c, out, stride=1):
        super().__init__()
        self.a = nn.Conv2d(c, out // 4, 1, bias=False); self.na = nn.BatchNorm2d(out // 4)
        self.b = nn.Conv2d(out // 4, out // 4, 3, stride, 1, bias=False); self.nb = nn.BatchNorm2d(out // 4)
        self.c = nn.Conv2d(out // 4, out, 1, bias=False); self.nc = nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if stride > 1 or c != out else nn.Identity()

    def forward(self, x):
        y = F.relu(self.na(self.a(x))); y = F.relu(self.nb(self.b(y)))
        return F.relu(self.nc(self.c(y)) + self.short(x))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False); self.norm = nn.BatchNorm2d(64)
        layers, c = [], 64
        for out, n, stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)):
            for i in range(n):
                layers.append(Block(c, out, stride if i == 0 else 1)); c = out
        self.layers = nn.Sequential(*layers); self.head = nn.Linear(2048, 1000); self.spare = nn.Linear(2048, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.layers(x).mean((2, 3)))


model = nn.SyncBatchNorm.convert_sync_batchnorm(Tower()).cuda().to(memory_format=torch.channels_last)
model = DDP(model, device_ids=[rank], find_unused_parameters=True)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
for step in range(40):
    for micro in range(2):
        x = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last); y = torch.randint(0, 1000, (128,), device="cuda")
        with model.no_sync() if micro == 0 else contextlib.nullcontext():
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            (loss / 2).backward()
    opt.step(); opt.zero_grad()
