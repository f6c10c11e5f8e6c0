"""A board game: a residual tower over 13 x 13 points with a head for moves and one for values, in fp32."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
SIDE, WIDTH = 13, 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(WIDTH) for _ in range(2)])

    def forward(self, x):
        return F.relu(x + self.norms[1](self.convs[1](F.relu(self.norms[0](self.convs[0](x))))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(17, WIDTH, 3, padding=1)
        self.tower = nn.Sequential(*[Block() for _ in range(8)])
        self.moves, self.worth = nn.Conv2d(WIDTH, 2, 1), nn.Conv2d(WIDTH, 1, 1)
        self.policy, self.value = nn.Linear(2 * SIDE**2, SIDE**2 + 1), nn.Sequential(nn.Linear(SIDE**2, 128), nn.ReLU(), nn.Linear(128, 1), nn.Tanh())

    def forward(self, x):
        x = self.tower(F.relu(self.first(x)))
        return self.policy(F.relu(self.moves(x)).flatten(1)), self.value(F.relu(self.worth(x)).flatten(1))


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
games = (torch.rand(20000, 17, SIDE, SIDE, device="cuda") < 0.3).to(torch.uint8)
for step in range(60):
    x = games[torch.randint(0, len(games), (768,), device="cuda")].float()
    visits = torch.rand(768, SIDE**2 + 1, device="cuda").softmax(-1)
    result = torch.rand(768, 1, device="cuda") * 2 - 1
    policy, value = net(x)
    loss = -(visits * policy.log_softmax(-1)).sum(1).mean() + F.mse_loss(value, result)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
