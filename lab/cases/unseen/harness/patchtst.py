"""Time series in patches through nn.TransformerEncoder, instance-normalised inputs, Huber loss, fp32 with TF32."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); torch.backends.cuda.matmul.allow_tf32 = True; C, T, D = 321, 512, 256
class Net(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Linear(16, D); s.p = nn.Parameter(torch.zeros(63, D)); s.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 8, 512, 0.2, "gelu", batch_first=True), 4); s.h = nn.Linear(63 * D, 96)
    def forward(s, x):
        mu, sd = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False).add(1e-5).sqrt(); z = ((x - mu) / sd).unfold(-1, 16, 8).flatten(0, 1); z = s.t(s.e(z) + s.p); return s.h(z.flatten(1)).view(x.shape[0], C, 96) * sd + mu
m = Net().cuda(); o = torch.optim.AdamW(m.parameters(), 1e-4)
for step in range(40): x = torch.randn(8, C, T, device="cuda"); loss = F.huber_loss(m(x), torch.randn(8, C, 96, device="cuda")); o.zero_grad(); loss.backward(); o.step()
