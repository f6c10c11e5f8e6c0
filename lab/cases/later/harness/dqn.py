"""Double DQN over stacked frames: a replay memory on the GPU in uint8, a target network, Huber's loss."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
    nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18),
).cuda()
target = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.RMSprop(net.parameters(), 2.5e-4, alpha=0.95, eps=0.01)
frames = torch.randint(0, 256, (4096, 4, 84, 84), dtype=torch.uint8, device="cuda")
actions, rewards = torch.randint(0, 18, (4096,), device="cuda"), torch.randn(4096, device="cuda")
for step in range(80):
    rows = torch.randint(0, 4095, (1024,), device="cuda")
    now, later = frames[rows].float() / 255, frames[rows + 1].float() / 255
    with torch.no_grad():
        best = net(later).argmax(1, keepdim=True)
        goal = rewards[rows] + 0.99 * target(later).gather(1, best).squeeze(1)
    chosen = net(now).gather(1, actions[rows, None]).squeeze(1)
    loss = F.smooth_l1_loss(chosen, goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    optimizer.step()
    if step % 100 == 99:
        target.load_state_dict(net.state_dict())
