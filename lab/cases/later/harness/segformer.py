"""Segmentation by a hierarchical transformer: fewer keys by strided convolutions, depthwise mixing, fp16 with a scaler."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d, heads, fewer):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.fewer = nn.Conv2d(d, d, fewer, fewer) if fewer > 1 else None
        self.n3 = nn.LayerNorm(d)
        self.a, self.w, self.b = nn.Linear(d, 4 * d), nn.Conv2d(4 * d, 4 * d, 3, 1, 1, groups=4 * d), nn.Linear(4 * d, d)

    def forward(self, x, h, w):
        b, n, d = x.shape
        z = self.n1(x)
        q = self.q(z).view(b, n, self.heads, -1).transpose(1, 2)
        if self.fewer is not None:
            z = self.n3(self.fewer(z.transpose(1, 2).reshape(b, d, h, w)).flatten(2).transpose(1, 2))
        k, v = self.kv(z).view(b, z.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        z = self.a(self.n2(x)).transpose(1, 2).reshape(b, 4 * d, h, w)
        return x + self.b(F.gelu(self.w(z).flatten(2).transpose(1, 2)))


class Net(nn.Module):
    def __init__(self, widths=(32, 64, 160, 256), fewer=(8, 4, 2, 1)):
        super().__init__()
        before, self.heads = 3, nn.ModuleList(nn.Linear(w, 256) for w in widths)
        self.down, self.norms, self.blocks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for at, (w, f) in enumerate(zip(widths, fewer)):
            self.down.append(nn.Conv2d(before, w, 7 if at == 0 else 3, 4 if at == 0 else 2, 3 if at == 0 else 1))
            self.norms.append(nn.LayerNorm(w))
            self.blocks.append(nn.ModuleList(Block(w, max(1, w // 32), f) for _ in range(2)))
            before = w
        self.fuse = nn.Sequential(nn.Conv2d(1024, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 19, 1))

    def forward(self, x):
        maps = []
        for down, norm, blocks, head in zip(self.down, self.norms, self.blocks, self.heads):
            x = down(x)
            b, c, h, w = x.shape
            z = norm(x.flatten(2).transpose(1, 2))
            for block in blocks:
                z = block(z, h, w)
            x = z.transpose(1, 2).reshape(b, c, h, w)
            flat = head(z).transpose(1, 2).reshape(b, 256, h, w)
            maps.append(F.interpolate(flat, scale_factor=2 ** len(maps), mode="bilinear"))
        return self.fuse(torch.cat(maps, 1))


model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 6e-5, weight_decay=0.01)
scaler = torch.amp.GradScaler("cuda")
for step in range(60):
    x, y = torch.randn(8, 3, 512, 512, device="cuda"), torch.randint(0, 19, (8, 128, 128), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(x), y, ignore_index=255)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
