"""Calls of Python that a recording counts are those of the program without a recorder. Needs PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured

pytestmark = pytest.mark.slow

#: Trains on the GPU that is recorded; where there is none it counts its own calls, and prints them.
PROGRAM = """
import dis, functools, sys, torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)) for _ in range(6)]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
x = torch.randn(8, 64, device=device)

def policy(context, function, *args, **kwargs):
    saved = function == torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

contexts = functools.partial(create_selective_checkpoint_contexts, policy)

def step():
    hidden = x
    for layer in layers:
        hidden = FORWARD
    hidden.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(4): step()
# Checkpointing's hooks and regions, which a recording has as events, and those of them that call what is checkpointed.
OWN, CALLING = ("checkpoint", "recompute_fn", "pack_hook", "unpack_hook"), ("checkpoint", "recompute_fn")

def is_own(code, kept_from_compiler):
    wraps = code.co_name == "_fn" and getattr(kept_from_compiler.get("fn"), "__name__", "") == "pack_hook"
    return wraps or (code.co_filename.endswith("torch/utils/checkpoint.py") and code.co_name in OWN)

def of_hooks(frame):
    # Whether they are nearer than what they call, of which modules are all that there is here.
    below = None
    while frame is not None:
        if is_own(frame.f_code, frame.f_locals):
            calls = frame.f_code.co_name in CALLING and below is not None
            return not (calls and "torch/nn/" in below.f_code.co_filename)
        below, frame = frame, frame.f_back
    return False

@functools.cache
def beginning(code):
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")

if not gpu:
    calls = 0
    def count(frame, event, _):
        global calls
        # PyTorch looks rules of a mode up for every operation; a recorder has a mode of its own.
        if event == "call" and "simple_registry" not in frame.f_code.co_filename and not of_hooks(frame):
            calls += 1 / 8 if frame.f_lasti > beginning(frame.f_code) else 1  # a generator's item, or a call
    sys.setprofile(count); step(); sys.setprofile(None)
    print(round(calls))
"""
FORWARD = {
    "plain": "layer(hidden)",
    "recomputed": "checkpoint(layer, hidden, use_reentrant=False)",
    "selectively": "checkpoint(layer, hidden, use_reentrant=False, context_fn=contexts)",
}


@pytest.mark.parametrize("forward", FORWARD)
def test_a_recording_counts_the_calls_that_the_program_makes_without_it(
    tmp_path: Path, forward: str
) -> None:
    """Also those of hooks and modes that PyTorch calls back, and of no question that only the recorder makes it ask."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.replace("FORWARD", FORWARD[forward]))
    alone = int(_printed(path))
    captured((str(path),), path.with_suffix(".capture"), quiet=True)
    recorded = recording.read(path.with_suffix(".capture"))
    counted = sum(event.calls for event in recorded.ranks[0].events)
    assert counted == pytest.approx(alone, rel=0.05)


def _printed(path: Path) -> str:
    """What the program prints on this machine's processor."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
    run = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return run.stdout
