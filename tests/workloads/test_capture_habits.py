"""What programs do beside training: print, save, ask, load, place. Needs PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.sim.errors import InputError
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.capture.recording import Recording

pytestmark = pytest.mark.slow

HABITS = """
import copy, torch
device = torch.device(0)
assert device.type == "cuda" and isinstance(device, torch.device) and copy.deepcopy(device) == device
torch.backends.cuda.matmul.fp32_precision = "tf32"
model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(16, 32, 2, batch_first=True), "head": torch.nn.Linear(32, 8)})
for weight in model.parameters(): weight.data = weight.data.cuda()
with torch.cuda.device(0): scaler = torch.amp.GradScaler()
optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
x, y = torch.randn(4, 10, 16).to(0), torch.randint(0, 8, (4,)).cuda()
kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
with torch.profiler.profile(activities=kinds, with_stack=True):
    for step in range(5):
        scores = model["head"](model["rnn"](x)[0][:, -1])
        loss = torch.nn.functional.cross_entropy(scores, y)
        chosen = scores[scores.argmax(1) == y]
        chosen = torch.log_softmax(scores.bfloat16(), -1, dtype=torch.float32).sum() + chosen.sum()
        optimizer.zero_grad(); scaler.scale(loss + 0 * chosen).backward(); scaler.step(optimizer); scaler.update()
        assert scaler.get_scale() == 65536
        print(f"{loss:.3f} {loss} {x[0].tolist()[0][:2]}", torch.cuda.memory_summary()[:3])
torch.save({"model": model.state_dict()}, FILE)
loaded = torch.load(FILE)["model"]
assert loaded["head.weight"].shape == (8, 32) and loaded["head.weight"].is_cuda
model.load_state_dict(loaded)
assert len({p.data_ptr() for p in model.parameters()}) == len(list(model.parameters()))
"""


@pytest.fixture(scope="module")
def habits(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("habits")
    path = folder / "train.py"
    path.write_text(HABITS.replace("FILE", repr(str(folder / "model.pt"))))
    captured((str(path),), path.with_suffix(".capture"), quiet=True)
    return recording.read(path.with_suffix(".capture"))


def names(recorded: Recording) -> list[str]:
    return [operation.name.split(".")[1] for operation in recorded.operations]


def test_recurrent_layers_are_one_call_of_cudnn(habits: Recording) -> None:
    """Not a cell for each time, as without cuDNN."""
    assert {"_cudnn_rnn", "_cudnn_rnn_backward"} <= set(names(habits))
    assert "_thnn_fused_lstm_cell" not in names(habits)


def test_what_a_mask_selects_is_assumed_and_waited_for(habits: Recording) -> None:
    """The host has to know how many elements a mask selects before it can go on."""
    assert habits.assumed["size of aten.index: half of what a mask covers"] == 5
    waits = [e.values for e in habits.ranks[0].events if e.kind == "read"]
    assert any(values["operation"] == "aten::index" for values in waits)


def test_products_may_be_rounded_by_the_newer_setting(habits: Recording) -> None:
    products = [o for o in habits.operations if o.name.startswith("aten.addmm.")]
    assert any(dict(o.options).get("allow_tf32") for o in products)


EXCHANGES = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2,)); rank = dist.get_rank()
told = [{"width": 32} if rank == 0 else None]
dist.broadcast_object_list(told, src=0)
size = torch.tensor([8 if rank == 0 else 0], device="cuda"); dist.broadcast(size, 0)
sizes = [torch.zeros_like(size) for _ in range(2)]; dist.all_gather(sizes, size)
assert [each.item() for each in sizes] == [8, 8]
count = torch.ones(1, device="cuda"); dist.all_reduce(count); assert count.item() == 2
model = torch.nn.Linear(told[0]["width"], int(size)).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4): model(torch.randn(4, 32, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_ranks_agree_on_small_values(tmp_path: Path) -> None:
    """What rank 0 broadcasts reaches the ranks that are run after it; sums and gathers are as if all ranks were alike."""
    path = tmp_path / "train.py"
    path.write_text(EXCHANGES)
    captured((str(path),), path.with_suffix(".capture"), world=2, quiet=True)
    ranks = recording.read(path.with_suffix(".capture")).ranks
    assert [rank.represents for rank in ranks] == [(0, 1)]


BEFORE = """
import torch
model = torch.nn.Linear(64, 8); model.bias.tag = 1
optimizer = torch.optim.AdamW(model.parameters()); weight = model.weight
model.cuda()
assert model.weight is weight and weight.is_cuda and isinstance(weight, torch.nn.Parameter) and model.bias.tag == 1
for _ in range(4): model(torch.randn(4, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
model.half()
assert model.weight is weight and weight.dtype == torch.half and not model.cpu().weight.is_cuda
"""


def test_an_optimizer_may_be_made_before_its_model_is_moved(tmp_path: Path) -> None:
    """Weights that `module.to(...)` moves stay the objects that they are: who holds them updates them."""
    path = tmp_path / "train.py"
    path.write_text(BEFORE)
    captured((str(path),), path.with_suffix(".capture"), quiet=True)
    recorded = recording.read(path.with_suffix(".capture"))
    assert recorded.parameters == 64 * 8 + 8
    assert "_fused_adamw_" in names(recorded) or "_foreach_addcdiv_" in names(recorded)


OLDER = """
import numpy, torch
Tensor = torch.cuda.FloatTensor
noise = Tensor(numpy.random.normal(0, 1, (4, 8)))
ones, made = Tensor(4, 1).fill_(1.0), torch.cuda.LongTensor([1, 2, 3])
assert noise.dtype == torch.float32 and noise.is_cuda and made.dtype == torch.int64
assert isinstance(ones, torch.cuda.FloatTensor) and not isinstance(made, Tensor)
assert torch.zeros(3).type(Tensor).is_cuda and torch.zeros(3).type("torch.cuda.HalfTensor").dtype == torch.half
model = torch.nn.Linear(8, 1).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4): (model(noise) - ones).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_tensors_may_be_made_by_older_names(tmp_path: Path) -> None:
    """`torch.cuda.FloatTensor` makes tensors of sizes, arrays and lists, converts, and is what they are instances of."""
    path = tmp_path / "train.py"
    path.write_text(OLDER)
    captured((str(path),), path.with_suffix(".capture"), quiet=True, stop=True)
    assert recording.read(path.with_suffix(".capture")).parameters == 9


BY_HAND = """
import torch
WEIGHTS
for _ in range(5):
    loss = (torch.randn(16, 64, device="cuda") @ weight + bias).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([weight, bias], 1.0)
    UPDATE
    weight.grad = bias.grad = None
"""
LEAVES = "weight, bias = (torch.zeros(*s, device='cuda', requires_grad=True) for s in ((64, 8), (8,)))"
LAYER = "layer = torch.nn.Linear(8, 64).cuda(); layer.bias = torch.nn.Parameter(torch.zeros(8, device='cuda')); weight, bias = layer.weight, layer.bias"
WITHOUT_GRADIENTS = (
    "with torch.no_grad(): weight -= 0.1 * weight.grad; bias -= 0.1 * bias.grad"
)
ON_DATA = "for p in layer.parameters(): p.data.add_(p.grad, alpha=-0.1)"


@pytest.mark.parametrize(
    ("weights", "update"), [(LEAVES, WITHOUT_GRADIENTS), (LAYER, ON_DATA)]
)
def test_weights_may_be_updated_by_hand(
    weights: str, update: str, tmp_path: Path
) -> None:
    """A step goes from one update to the next: one loss, one clipping, an update of both weights."""
    path = tmp_path / "train.py"
    path.write_text(BY_HAND.replace("WEIGHTS", weights).replace("UPDATE", update))
    captured((str(path),), path.with_suffix(".capture"), quiet=True, stop=True)
    recorded = recording.read(path.with_suffix(".capture"))
    done = [
        recorded.operations[event.values["operation"]].name.split(".")[1]
        for event in recorded.ranks[0].events
        if event.kind == "operate"
    ]
    assert (
        done.count("addmm") + done.count("mm") == 2
    )  # forward and the weight's gradient
    assert done.count("mean") == 1
    assert done.count("sub_") + done.count("add_") == 2


BUCKETS = """
import gc, torch
walks, walk = [], gc.get_objects
gc.get_objects = lambda *arguments: walks.append(1) or walk(*arguments)
torch.distributed.init_process_group()
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8))).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
model = torch.nn.parallel.DistributedDataParallel(model)
for step in range(4):
    model(torch.randn(4, 8, device="cuda")).sum().backward(); assert step or len(walks) == 1, len(walks)
    optimizer.step(); optimizer.zero_grad()
"""


def test_weights_are_looked_for_once_a_step(tmp_path: Path) -> None:
    """However many operations DDP asks for at the end of backward: a walk of all objects takes a fifth of a second."""
    path = tmp_path / "train.py"
    path.write_text(BUCKETS)
    captured((str(path),), path.with_suffix(".capture"), quiet=True, stop=True)
    assert recording.read(path.with_suffix(".capture")).parameters == 8 * 72


SHAPES = """
import torch, torch.distributed as dist
dist.init_process_group(); rank = dist.get_rank()
size = torch.tensor([24 if rank == 0 else 0], device="cuda")
dist.send(size, 1) if rank == 0 else dist.recv(size, 0)
model = torch.nn.Linear(int(size), 8).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    x = torch.randn(4, 24, device="cuda")
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_what_a_stage_sends_in_small_tensors_reaches_the_next(tmp_path: Path) -> None:
    """Stages tell each other shapes by tensors: the rank that is run later receives what the first one sent."""
    path = tmp_path / "train.py"
    path.write_text(SHAPES)
    captured((str(path),), path.with_suffix(".capture"), world=2, quiet=True)
    first, second = recording.read(path.with_suffix(".capture")).ranks
    assert (first.represents, second.represents) == ((0,), (1,))


def test_what_can_not_be_captured_is_named(tmp_path: Path) -> None:
    """A program that does what no recording can hold is told what to do instead."""
    path = tmp_path / "train.py"
    path.write_text("import torch\ntorch.multiprocessing.spawn(print, nprocs=8)\n")
    with pytest.raises(InputError, match="capture it with --world 8"):
        captured((str(path),), path.with_suffix(".capture"), quiet=True)


def test_a_program_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    """Many scripts train on the host unless an argument says otherwise."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\ntorch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()\n"
    )
    with pytest.raises(InputError, match=r"no operation on a GPU.*--cuda"):
        captured((str(path),), path.with_suffix(".capture"), quiet=True)


def test_a_program_that_fails_gives_its_exit_code(tmp_path: Path) -> None:
    """`prestep capture` ends as the program did, and says which rank it was."""
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit(7)\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "prestep",
            "capture",
            "-o",
            "x.capture",
            "--",
            "train.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7
    assert "rank 0: found ended with exit code 7" in done.stderr


TRUNCATED = """
import torch
weights = torch.empty(1024, 1024)
torch.nn.init.trunc_normal_(weights, std=0.02, a=-0.06, b=0.06)
assert bool((weights > 1).any()) is False
layer = torch.nn.Linear(1024, 1024)
torch.nn.init.trunc_normal_(layer.weight, std=0.02)
layer = layer.cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(4):
    layer(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_weights_on_the_host_answer_questions(tmp_path: Path) -> None:
    """Initialisers draw again until all numbers lie within bounds; nobody waits for a device."""
    path = tmp_path / "train.py"
    path.write_text(TRUNCATED)
    captured((str(path),), path.with_suffix(".capture"), quiet=True)


REJECTED = """
import torch

def until_none(x, most=200):
    for _ in range(most):
        x = x.normal_()
        if not (x > 1).any(): return x
    raise RuntimeError("never none")

def until_one(x, most=200):
    for _ in range(most):
        x = x.normal_()
        if (x < 1).any(): return x
    raise RuntimeError("never one")

weights = [torch.nn.Parameter(draw(torch.empty(512, 512, device="cuda"))) for draw in (until_none, until_one) for _ in range(300)]
optimizer = torch.optim.SGD(weights, 0.1)
for step in range(4):
    torch._foreach_norm(weights)[0].backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_loops_of_many_tensors_that_wait_for_a_yes_or_a_no_end(tmp_path: Path) -> None:
    """What one line asks of hundreds of tensors is never answered in one way for ever, whichever the line waits for."""
    path = tmp_path / "train.py"
    path.write_text(REJECTED)
    captured((str(path),), path.with_suffix(".capture"), quiet=True)


TRACED = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10)).cuda()
x = torch.Tensor(4, 3, 32, 32).cuda()
traced = torch.jit.trace(net, x)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    traced(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_traced_modules_ask_for_what_they_ask_untraced(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRACED)
    traced = captured((str(path),), tmp_path / "a.capture", quiet=True)
    path.write_text(TRACED.replace("torch.jit.trace(net, x)", "net"))
    plain = captured((str(path),), tmp_path / "b.capture", quiet=True)
    assert traced["operations"] == plain["operations"]


LABELLED = """
import torch
class Labelled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(result, cls):
            result.label = "one"
        return result
net = torch.nn.Linear(64, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    x = torch.zeros(4, 64).as_subclass(Labelled)
    assert (x + 1).label == "one"
    net(x.to("cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_tensors_with_labels_are_copied_to_the_device(tmp_path: Path) -> None:
    """Classes with meta data, as MONAI's and torchvision's, compute as tensors without."""
    path = tmp_path / "train.py"
    path.write_text(LABELLED)
    labelled = captured((str(path),), tmp_path / "a.capture", quiet=True)
    path.write_text(
        LABELLED.replace(".as_subclass(Labelled)", "").replace(
            "assert (x + 1).label", "# "
        )
    )
    plain = captured((str(path),), tmp_path / "b.capture", quiet=True)
    assert labelled["operations"] == plain["operations"]
