"""States of sharded optimizers that programs gather to save them. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.sim.errors import InputError
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.capture.recording import Recording

pytestmark = pytest.mark.slow

STEPS = """
for _ in range(4):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""
HEAD = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl"); rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 128)).cuda()
"""
SPLIT = """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
"""
SPLIT_SAVED = """
optimizer.consolidate_state_dict(to=0)
if rank == 0:
    states = optimizer.state_dict()["state"]
    for number, weight in enumerate(model.parameters()):
        assert states[number]["exp_avg"].shape == weight.shape, number
"""
FLAT = """
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, FullOptimStateDictConfig
model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.cuda.current_device())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
"""
FLAT_SAVED = """
full = FullOptimStateDictConfig(rank0_only=True)
with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, None, full):
    states = FullyShardedDataParallel.optim_state_dict(model, optimizer)
if rank == 0:
    shapes = {name: tuple(state["exp_avg"].shape) for name, state in states["state"].items()}
    assert shapes == {"0.weight": (64, 64), "0.bias": (64,), "1.weight": (128, 64), "1.bias": (128,)}, shapes
"""


def capture(folder: Path, text: str, world: int) -> Recording:
    path = folder / "train.py"
    path.write_text(text)
    captured((str(path),), path.with_suffix(".capture"), world=world, quiet=True)
    return recording.read(path.with_suffix(".capture"))


@pytest.mark.parametrize(
    ("sharded", "saved"),
    [(SPLIT, SPLIT_SAVED), (FLAT, FLAT_SAVED)],
    ids=["zero", "fsdp"],
)
def test_gathered_states_of_an_optimizer_are_those_of_all_parameters(
    tmp_path: Path, sharded: str, saved: str
) -> None:
    """Also of the parameters that only other ranks update: they have the shapes of their parameters."""
    recorded = capture(tmp_path, HEAD + sharded + STEPS + saved, world=2)
    assert {rank for each in recorded.ranks for rank in each.represents} == {0, 1}


PARALLEL = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""


def test_several_gpus_of_one_process_are_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message says where, and what to do instead, without a traceback; on one rank such a program is one like any other."""
    path = tmp_path / "train.py"
    path.write_text(PARALLEL + STEPS)
    with pytest.raises(InputError, match="exit code 1"):
        captured((str(path),), path.with_suffix(".capture"), world=8)
    said = capfd.readouterr().err
    assert f"{path}:3: prestep capture: torch.nn.DataParallel runs 8 GPUs" in said
    assert "Traceback" not in said
    assert said.strip().endswith("--world 1")
    captured((str(path),), path.with_suffix(".capture"), quiet=True)


ON_HOST = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.zeros(8, 64)).sum().backward()
    optimizer.step()
"""


def test_a_program_that_trains_on_the_host_alone_is_refused_soon(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    path.write_text(ON_HOST)
    with pytest.raises(InputError, match="no operation on a GPU"):
        captured((str(path),), path.with_suffix(".capture"), stop=True, quiet=True)


def test_a_program_that_leaves_without_a_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import os\nos._exit(0)\n")
    with pytest.raises(InputError, match="an end without a recording"):
        captured((str(path),), path.with_suffix(".capture"), quiet=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise ValueError(1)", ""),
        ("import urllib.request; urllib.request.urlopen('http://no.invalid')", "downloads"),
        ("torch.nn.Linear(2, 2).cuda().share_memory()", "shares tensors of the GPU"),
    ],
)  # fmt: skip
def test_what_ends_a_program_is_said_in_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\n{line}\n")
    with pytest.raises(InputError, match="exit code 1"):
        captured((str(path),), path.with_suffix(".capture"))
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert said in last and ("prestep capture: " in last) is bool(said)
