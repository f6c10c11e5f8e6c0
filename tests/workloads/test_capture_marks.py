"""Where a step of a program begins, programs that fail after it, kernels that they ask for by name. Needs PyTorch, which CI installs for these alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.capture.recording import Recording

pytestmark = pytest.mark.slow

OWN_UPDATES = """
import torch
model = torch.nn.Linear(64, 64).cuda()
for step in range(5):
    torch.cuda.nvtx.range_push(f"iteration {step}")
    with torch.profiler.record_function("forward"):
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters(): weight.sub_(weight.grad, alpha=0.1); weight.grad = None
    torch.cuda.nvtx.range_pop()
"""


def capture(folder: Path, text: str, mark: str = "") -> Recording:
    path = folder / "train.py"
    path.write_text(text)
    out = path.with_suffix(".capture")
    captured((str(path),), out, quiet=True, mark=mark)
    return recording.read(out)


@pytest.mark.parametrize("mark", ["iteration *", "forward"])
def test_steps_begin_where_the_program_marks_them(tmp_path: Path, mark: str) -> None:
    """From one range to the next of the name, for programs whose weights no optimizer of PyTorch updates."""
    recorded = capture(tmp_path, OWN_UPDATES, mark)
    names = [recorded.operations[n].name for n in _operations(recorded)]
    assert names.count("aten.sub_.Tensor") == 2
    assert sum(name.startswith(("aten.mm.", "aten.addmm.")) for name in names) == 2
    assert predict(load_scenario(tmp_path / "train.capture")).step_time > 0


def _operations(recorded: Recording) -> list[int]:
    events = recorded.ranks[0].events
    return [e.values["operation"] for e in events if e.kind == "operate"]


def test_a_program_that_never_steps_names_its_ranges(tmp_path: Path) -> None:
    """Whoever has to choose a mark sees which there are, numbers left out."""
    no_updates = OWN_UPDATES.replace("weight.sub_(weight.grad, alpha=0.1); ", "")
    with pytest.raises(InputError, match=r"--mark NAME, one of iteration \*"):
        capture(tmp_path, no_updates)
    with pytest.raises(InputError, match="0 ranges named batch"):
        capture(tmp_path, OWN_UPDATES, "batch")


def test_a_program_that_fails_after_its_step_has_its_recording(tmp_path: Path) -> None:
    """Its exit code and its error are its own; what was recorded is in the file."""
    text = OWN_UPDATES + "\nraise ValueError('no room for checkpoints')"
    with pytest.raises(InputError, match="no room for checkpoints"):
        capture(tmp_path, text, "iteration *")
    assert recording.read(tmp_path / "train.capture").step == 3


GATHERED = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad()
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(object_list=objects, obj=step)
    dist.gather_object(obj=step, object_gather_list=objects if dist.get_rank() == 0 else None, dst=0)
    dist.broadcast_object_list(object_list=objects, src=0)
    dist.scatter_object_list(scatter_object_output_list=[None], scatter_object_input_list=objects, src=0)
    assert objects == [step] * dist.get_world_size()
"""


def test_objects_are_exchanged_by_the_names_of_pytorch_s_arguments(
    tmp_path: Path,
) -> None:
    """Arguments may be given by name."""
    (tmp_path / "train.py").write_text(GATHERED)
    out = tmp_path / "train.capture"
    captured((str(tmp_path / "train.py"),), out, world=2, quiet=True)
    assert recording.read(out).world == 2


ATTENTION = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 512, 512, device="cuda")
flex = torch.compile(flex_attention)
layer = torch.nn.Linear(64, 192, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(4):
    x = torch.randn(2, 512, 64, device="cuda", dtype=torch.bfloat16)
    q, k, v = layer(x).view(2, 512, 3, 1, 64).permute(2, 0, 3, 1, 4)
    y = flex(q, k, v, block_mask=mask)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        z = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    (y + z).float().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def test_attention_runs_in_the_kernels_that_a_program_asks_for(tmp_path: Path) -> None:
    """Flexible attention is one kernel over the blocks that its mask leaves; others of choice are those switched on."""
    recorded = capture(tmp_path, ATTENTION)
    called = {o.name.split(".")[1]: o for o in recorded.operations}
    assert {"flex_attention", "flex_attention_backward"} <= called.keys()
    # Of 4 x 4 blocks a causal mask leaves those on the diagonal and below it.
    assert called["flex_attention"].arguments[-1] == pytest.approx(10 / 16)
    assert "_scaled_dot_product_flash_attention_backward" in called
    assert "_scaled_dot_product_cudnn_attention" not in called
