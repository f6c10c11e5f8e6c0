"""A 3D U-Net for volumes: instance norms, leaky ReLU, dice and cross entropy, fp16 with a scaler."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
def conv(i, o, s=1): return nn.Sequential(nn.Conv3d(i, o, 3, s, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True))
class UNet(nn.Module):
    def __init__(s, w=(32, 64, 128, 256)):
        super().__init__(); s.d = nn.ModuleList(); i = 4
        for k, c in enumerate(w): s.d.append(nn.Sequential(conv(i, c, 1 if k == 0 else 2), conv(c, c))); i = c
        s.u = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in zip(w[:0:-1], w[-2::-1])); s.c = nn.ModuleList(nn.Sequential(conv(2 * b, b), conv(b, b)) for b in w[-2::-1]); s.o = nn.Conv3d(w[0], 3, 1)
    def forward(s, x):
        skip = []
        for d in s.d: x = d(x); skip.append(x)
        skip.pop()
        for u, c in zip(s.u, s.c): x = c(torch.cat([u(x), skip.pop()], 1))
        return s.o(x)
m = UNet().cuda(); o = torch.optim.SGD(m.parameters(), 0.01, momentum=0.99, nesterov=True); sc = torch.amp.GradScaler("cuda")
for step in range(40):
    x = torch.randn(2, 4, 96, 96, 96, device="cuda"); y = torch.randint(0, 3, (2, 96, 96, 96), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        p = m(x); q = p.softmax(1); t = F.one_hot(y, 3).permute(0, 4, 1, 2, 3).float(); dice = 1 - (2 * (q * t).sum((2, 3, 4)) + 1) / (q.sum((2, 3, 4)) + t.sum((2, 3, 4)) + 1); loss = F.cross_entropy(p, y) + dice.mean()
    o.zero_grad(); sc.scale(loss).backward(); sc.unscale_(o); nn.utils.clip_grad_norm_(m.parameters(), 12); sc.step(o); sc.update()
