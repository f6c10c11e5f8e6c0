"""Sums of gradients that autograd makes: in the memory of the first one, where nothing else has that. Needs PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured

pytestmark = pytest.mark.slow

#: Values with several uses: residuals, parts, a sum with itself, one whose gradient a hook keeps, views, weights that
#: are used twice, a function with a backward of its own, and checkpoints of both kinds.
PROGRAM = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 1
    @staticmethod
    def backward(context, g):
        return g + g * 2

layer, kept = nn.Linear(8, 8).to(DEVICE), []

def block(x):
    return layer(x).relu()

def value():
    return block(torch.zeros(4, 8, device=DEVICE))

def losses():
    h = layer(torch.zeros(2, 4, 8, device=DEVICE))
    yield h + block(h)
    h = value()
    yield h + h
    h = value()
    yield sum(h[i].sin() for i in range(4))
    h = value()
    y = h * 1 + block(h) + h
    y.register_hook(kept.append)
    yield y
    yield Doubled.apply(value().sin())
    h = value()
    y = h + checkpoint(block, h, use_reentrant=False)
    yield y + checkpoint(block, y, use_reentrant=True)

optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
for _ in range(STEPS):
    for loss in losses():
        (loss * loss.sin()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: Runs it on the processor, and prints the sums that PyTorch's profiler saw, in their order.
PROFILED = """
import torch
with torch.profiler.profile() as profile:
    exec(compile({program!r}, "program", "exec"))
events = (e for e in profile.events() if e.name in ("aten::add", "aten::add_"))
within = [e for e in sorted(events, key=lambda e: e.time_range.start) if "Optimizer" not in str(e.cpu_parent)]
print(*(e.name.partition("::")[2] for e in within))
"""


def test_gradients_are_summed_as_where_nobody_looks_on(tmp_path: Path) -> None:
    """A recording has "add_" and "add" where PyTorch itself calls these, on a processor and without a mode."""
    alone = PROFILED.format(
        program=PROGRAM.replace("STEPS", "1").replace("DEVICE", "'cpu'")
    )
    command = [sys.executable, "-c", alone]
    real = subprocess.run(command, capture_output=True, text=True, check=True)
    script, out = tmp_path / "sums.py", tmp_path / "sums.capture"
    script.write_text(PROGRAM.replace("STEPS", "4").replace("DEVICE", "'cuda'"))
    captured((str(script),), out, quiet=True)
    step = recording.read(out)
    names = [
        step.operations[event.values["operation"]].operator
        for event in step.ranks[0].events
        if event.kind == "operate"
    ]
    sums = [name.partition("::")[2] for name in names if name.startswith("aten::add")]
    # SGD's own, one for each parameter, are the last.
    seen = [name for name in sums if name in ("add", "add_")][:-2]
    assert seen == real.stdout.split()
    assert {"add", "add_"} <= set(seen)
