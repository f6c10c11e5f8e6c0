"""Text in pictures: convolutions, two bidirectional LSTMs and a CTC loss, in fp32."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
B, H, W, CLASSES = 96, 32, 160, 80


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        widths, layers = [1, 48, 96, 192, 192, 384], []
        for at, (a, b) in enumerate(zip(widths, widths[1:])):
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
            if at < 2:
                layers.append(nn.MaxPool2d(2))
            elif at % 2 == 0:
                layers.append(nn.MaxPool2d((2, 1)))
        self.features = nn.Sequential(*layers)
        self.lstm = nn.LSTM(384 * 2, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(512, CLASSES)

    def forward(self, x):
        x = self.features(x)
        x = x.flatten(1, 2).transpose(1, 2)
        return self.out(self.lstm(x)[0]).log_softmax(-1)


model = Reader().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
lengths = torch.full((B,), W // 4, dtype=torch.long)
sizes = torch.full((B,), 12, dtype=torch.long)
for step in range(60):
    x = torch.rand(B, 1, H, W, device="cuda")
    y = torch.randint(1, CLASSES, (B, 12), device="cuda")
    loss = F.ctc_loss(model(x).transpose(0, 1), y, lengths, sizes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
