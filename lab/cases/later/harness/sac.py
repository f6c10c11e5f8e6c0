"""Soft actor-critic: two critics, a squashed Gaussian policy, a temperature; three optimizers and slow targets."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
O, A, H, B = 111, 8, 512, 1024
mlp = lambda i, o: nn.Sequential(nn.Linear(i, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, o)).cuda()
actor, critics = mlp(O, 2 * A), nn.ModuleList(mlp(O + A, 1) for _ in range(2))
targets = copy.deepcopy(critics).requires_grad_(False)
alpha = torch.zeros((), device="cuda", requires_grad=True)
of_actor, of_critics = torch.optim.Adam(actor.parameters(), 3e-4), torch.optim.Adam(critics.parameters(), 3e-4)
of_alpha = torch.optim.Adam([alpha], 3e-4)
memory = [torch.randn(100_000, n, device="cuda") for n in (O, A, 1, O, 1)]


def act(state):
    mean, spread = actor(state).chunk(2, -1)
    spread = spread.clamp(-5, 2).exp()
    raw = mean + spread * torch.randn_like(mean)
    action = torch.tanh(raw)
    chance = -0.5 * ((raw - mean) / spread) ** 2 - spread.log() - torch.log(1 - action**2 + 1e-6)
    return action, chance.sum(-1, keepdim=True)


for step in range(120):
    rows = torch.randint(0, 100_000, (B,), device="cuda")
    state, action, reward, following, ended = (m[rows] for m in memory)
    with torch.no_grad():
        ahead, chance = act(following)
        both = torch.cat([following, ahead], -1)
        least = torch.min(*(t(both) for t in targets)) - alpha.exp() * chance
        goal = reward + 0.99 * (1 - ended) * least
    both = torch.cat([state, action], -1)
    loss = sum(F.mse_loss(c(both), goal) for c in critics)
    of_critics.zero_grad()
    loss.backward()
    of_critics.step()
    new, chance = act(state)
    both = torch.cat([state, new], -1)
    loss = (alpha.exp().detach() * chance - torch.min(*(c(both) for c in critics))).mean()
    of_actor.zero_grad()
    loss.backward()
    of_actor.step()
    loss = -(alpha.exp() * (chance.detach() - A)).mean()
    of_alpha.zero_grad()
    loss.backward()
    of_alpha.step()
    with torch.no_grad():
        for slow, quick in zip(targets.parameters(), critics.parameters()):
            slow.lerp_(quick, 0.005)
