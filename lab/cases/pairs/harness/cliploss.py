"""Two towers whose embeddings are gathered with gradients for a loss over all pairs, DDP, gradient scaler in fp16."""
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); torch.manual_seed(rank)
B = 256


class Tower(nn.Module):
    def __init__(self, d, layers, heads, out=512):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False); self.out = nn.Linear(d, out, bias=False)

    def forward(self, x, mask=None):
        return F.normalize(self.out(self.body(x, mask=mask, is_causal=mask is not None)[:, -1]), dim=-1)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 768, 32, 32); self.pos = nn.Parameter(torch.zeros(49, 768)); self.see = Tower(768, 12, 12)
        self.word = nn.Embedding(49408, 512); self.wpos = nn.Parameter(torch.zeros(77, 512)); self.read = Tower(512, 12, 8); self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, image, text):
        a = self.see(self.patch(image).flatten(2).transpose(1, 2) + self.pos)
        mask = torch.triu(torch.full((77, 77), float("-inf"), device=text.device), 1)
        return a, self.read(self.word(text) + self.wpos, mask), self.scale.exp()


model = DDP(Pair().cuda(), device_ids=[rank]); opt = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.2); scaler = torch.amp.GradScaler("cuda")
for step in range(40):
    image = torch.randn(B, 3, 224, 224, device="cuda"); text = torch.randint(0, 49408, (B, 77), device="cuda")
    with torch.autocast("cuda", torch.float16):
        a, b, scale = model(image, text)
        every_a, every_b = torch.cat(all_gather(a)), torch.cat(all_gather(b)); truth = torch.arange(B, device="cuda") + rank * B
        loss = (F.cross_entropy(scale * a @ every_b.t(), truth) + F.cross_entropy(scale * b @ every_a.t(), truth)) / 2
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); opt.zero_grad()
