"""Programs run without a GPU: what the recorder writes down of them. Needs PyTorch, which CI installs for these alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.capture.recording import RankRecording, Recording
from prestep.workloads.operation import Operand, Operation

pytestmark = pytest.mark.slow

HEAD = """
import os, sys, torch, torch.distributed as dist
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
if world > 1: dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).to(device)
"""
STEPS = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
data = torch.utils.data.DataLoader(torch.arange(64), batch_size=8)
for batch in data:
    x = torch.randn(len(batch), 256).to(device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step(); optimizer.zero_grad()
    ASK
print("ended with", type(loss.item()).__name__)
sys.exit(CODE)
"""


def script(folder: Path, wrap: str = "", ask: str = "", code: int = 0) -> Path:
    path = folder / "train.py"
    body = STEPS.replace("ASK", ask or "pass").replace("CODE", str(code))
    path.write_text(HEAD + wrap + body)
    return path


def capture(path: Path, world: int = 1) -> Recording:
    out = path.with_suffix(".capture")
    captured((str(path),), out, world=world, quiet=True)
    return recording.read(out)


def named(recorded: Recording, rank: RankRecording) -> list[str]:
    return [
        recorded.operations[event.values["operation"]].name
        for event in rank.events
        if event.kind == "operate"
    ]


def test_a_step_of_a_program_has_its_kernels(tmp_path: Path) -> None:
    """Under autocast two linear layers are six products of halves, one of which has no gradient to send on."""
    recorded = capture(script(tmp_path))
    names = named(recorded, recorded.ranks[0])
    assert sum(name.startswith(("aten.mm.", "aten.addmm.")) for name in names) == 5
    assert names.count("aten._fused_adamw_.default") == 1
    assert recorded.parameters == 256 * 1024 * 2 + 1024 + 256
    product = next(o for o in recorded.operations if o.name.startswith("aten.addmm."))
    assert product.operands[1].dtype == "bf16"


def test_reads_of_data_are_recorded_and_counted(tmp_path: Path) -> None:
    """`.item()` stops the host; what it gives is assumed, and said."""
    recorded = capture(script(tmp_path, ask="loss.item()"))
    assert any(event.kind == "read" for event in recorded.ranks[0].events)
    assert recorded.assumed


def test_ddp_reduces_its_gradients_beside_backward(tmp_path: Path) -> None:
    """All-reduces have the bytes of the gradients, and all ranks are one."""
    wrap = "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])"
    recorded = capture(script(tmp_path, wrap), world=4)
    assert [rank.represents for rank in recorded.ranks] == [(0, 1, 2, 3)]
    reduced = [e for e in recorded.ranks[0].events if e.kind == "communicate"]
    assert sum(e.values["bytes"] for e in reduced) == 4 * recorded.parameters
    assert {e.values["kind"] for e in reduced} == {"all_reduce"}


def test_fsdp_gathers_on_streams_of_its_own(tmp_path: Path) -> None:
    """Gathers and reductions of a sharded layer, with the events that order them; whatever the size of the world."""
    recorded = capture(script(tmp_path, SHARDED), world=64)
    kinds = [
        e.values["kind"] for e in recorded.ranks[0].events if e.kind == "communicate"
    ]
    assert kinds.count("reduce_scatter") == 2
    assert kinds.count("all_gather") >= 2
    streams = {
        e.values["stream"] for e in recorded.ranks[0].events if e.kind == "communicate"
    }
    assert 0 not in streams
    path = tmp_path / "train.capture"
    overrides = ["cluster.name=rail-h100", "cluster.hosts=8"]
    predicted = predict(load_scenario(path, overrides))
    assert predicted.step_time > 0
    assert len(predicted.step_time_by_rank) == 64


SHARDED = (
    "from torch.distributed.fsdp import fully_shard\n"
    "for part in (model[0], model[2]): fully_shard(part)\n"
    "fully_shard(model)"
)


def test_a_sharded_optimizer_updates_this_rank_s_part(tmp_path: Path) -> None:
    """Operations on distributed tensors are recorded as those on the part of one rank; all ranks are one."""
    recorded = capture(script(tmp_path, SHARDED), world=4)
    assert [rank.represents for rank in recorded.ranks] == [(0, 1, 2, 3)]
    update = next(o for o in recorded.operations if "_fused_adamw_" in o.name)
    weights = update.arguments[0]
    assert isinstance(weights, tuple)
    parts = [weight.elements for weight in weights if isinstance(weight, Operand)]
    assert sum(parts) * 4 == recorded.parameters


def test_a_norm_of_sharded_gradients_is_reduced(tmp_path: Path) -> None:
    """Clipping reduces the norms of every rank's parts: one number for each of four weights, over all ranks."""
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    text = script(tmp_path, SHARDED).read_text()
    path = tmp_path / "train.py"
    path.write_text(text.replace("optimizer.step()", f"{clip}; optimizer.step()"))
    events = capture(path, world=2).ranks[0].events
    reduced = [e.values for e in events if e.values.get("kind") == "all_reduce"]
    assert [values["bytes"] for values in reduced] == [4 * 4]


def test_models_are_built_without_memory_first(tmp_path: Path) -> None:
    """A model of the meta device, of any size, is moved to the GPU empty, as it is or sharded."""
    build = "with torch.device('meta'): model = torch.nn.Sequential(torch.nn.Linear(256, 1 << 15), torch.nn.Linear(1 << 15, 256))\n"
    move = "\nmodel.to_empty(device=device)\nfor part in model: part.reset_parameters()"
    shard = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)"
    whole = capture(script(tmp_path, build + move))
    assert whole.parameters == 2 * 256 * (1 << 15) + (1 << 15) + 256
    sharded = capture(script(tmp_path, build + shard + move), world=2)
    assert sharded.parameters == whole.parameters


def test_a_check_for_overflow_finds_none(tmp_path: Path) -> None:
    """Numbers that nobody knows are finite: a program that asks updates its weights; the answer is counted as assumed."""
    ask = "largest = loss.detach().amax(); assert not torch.isfinite(largest).logical_not().item()"
    steps, end = 8, 1
    assumed = capture(script(tmp_path, ask=ask)).assumed
    assert assumed == {"aten._local_scalar_dense": steps + end}


def test_hooks_of_backward_may_name_streams(tmp_path: Path) -> None:
    """`record_stream` takes our streams, also where backward calls it."""
    hook = (
        "side = torch.cuda.Stream()\n"
        "model[2].weight.register_post_accumulate_grad_hook(lambda p: p.grad.record_stream(side))"
    )
    assert capture(script(tmp_path, hook)).step == 3


def test_a_program_that_never_steps_is_told_so(tmp_path: Path) -> None:
    """The message says what was missing."""
    path = tmp_path / "idle.py"
    path.write_text("import torch; print(torch.ones(2, device='cuda').sum())")
    with pytest.raises(InputError, match="weights updated 0 times"):
        capture(path)


def test_a_crash_is_the_program_s_own(tmp_path: Path) -> None:
    """Its last line is in the message."""
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('no data here')")
    with pytest.raises(InputError, match="no data here"):
        capture(path)


def test_an_exit_code_of_zero_is_a_good_end(tmp_path: Path) -> None:
    """A script that ends with sys.exit(0) was recorded, one with another code failed."""
    assert capture(script(tmp_path)).step == 3
    with pytest.raises(InputError, match="exit code 7"):
        capture(script(tmp_path, code=7))


def test_recordings_need_no_pytorch_to_be_read(tmp_path: Path) -> None:
    """Who predicts need not have what was needed to capture."""
    import subprocess

    capture(script(tmp_path))
    code = (
        "import sys; from prestep.sim.spec.load import load_scenario; from prestep.sim.predict import predict;"
        "predict(load_scenario('train.capture', ['cluster.name=h200-host-4']));"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 0


def test_handles_of_communications_keep_no_memory(tmp_path: Path) -> None:
    """What a step took for gathers and reductions is given back in it: nothing piles up over steps."""
    step = capture(script(tmp_path, SHARDED), world=2).ranks[0]
    taken = sum(e.values["bytes"] for e in step.events if e.kind == "allocate")
    sizes = {
        e.values["storage"]: e.values["bytes"]
        for e in step.events
        if e.kind == "allocate"
    }
    sizes |= dict(step.alive)
    freed = sum(sizes[e.values["storage"]] for e in step.events if e.kind == "free")
    assert freed == pytest.approx(taken, rel=0.02)


def test_compiled_functions_are_regions(tmp_path: Path) -> None:
    """A compiled model is recorded operator by operator, in a region for its call and one for its backward."""
    recorded = capture(
        script(tmp_path, "model.compile(); model = torch.compile(model)")
    )
    events = recorded.ranks[0].events
    begun = [e.values["backward"] for e in events if e.kind == "region"]
    assert begun[0] == 0
    assert set(begun[1:]) == {1}
    inside = [e for e in events if e.kind == "operate_compiled"]
    assert any(e.values["backward"] for e in inside)
    assert all(e.values["writes"] for e in inside if not e.values["backward"])
    assert recorded.compiled == ("Sequential",)


def test_large_weights_made_on_the_host_move_to_the_gpu(tmp_path: Path) -> None:
    """They are not computed there either, but lie where the program put them."""
    wrap = "big = torch.nn.Linear(2048, 1024).to(device); print(big(torch.ones(1, 2048, device=device)).device)"
    assert capture(script(tmp_path, wrap)).parameters


IMAGES = """
import torch
device = torch.device("cuda", 0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 8),
).to(device, memory_format=torch.channels_last)
torch.backends.cuda.matmul.allow_tf32 = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images = torch.randn(4, 3, 16, 16, device=device).to(memory_format=torch.channels_last)
for _ in range(4):
    with torch.autocast("cuda", torch.bfloat16, enabled=HALVES): loss = model(images).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.fixture(scope="module", params=[False, True], ids=["fp32", "bf16"])
def images(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, Recording]:
    """Whether a program on images computes in halves, and its recording."""
    path = tmp_path_factory.mktemp("images") / "images.py"
    path.write_text(IMAGES.replace("HALVES", str(request.param)))
    return request.param, capture(path)


def operation(recorded: Recording, name: str) -> Operation:
    return next(o for o in recorded.operations if o.name.split(".")[1] == name)


Images = tuple[bool, Recording]


def test_convolutions_keep_channels_last_as_cudnn_does(images: Images) -> None:
    result = operation(images[1], "convolution").results[0]
    assert result.strides[1] == 1


def test_cudnn_normalizes_batches_of_images_in_fp32_but_not_in_bf16(
    images: Images,
) -> None:
    halves, recorded = images
    by = "native_batch_norm" if halves else "cudnn_batch_norm"
    assert operation(recorded, by).results


def test_optimizers_and_clipping_take_lists_as_on_cuda(images: Images) -> None:
    names = {o.name.split(".")[1] for o in images[1].operations}
    assert {"_foreach_add_", "_foreach_mul_", "_foreach_norm"} <= names


def test_convolutions_of_fp32_run_in_tf32_by_default_and_products_do_not(
    images: Images,
) -> None:
    halves, recorded = images
    allowed = dict(operation(recorded, "convolution").options).get("allow_tf32", False)
    assert allowed != halves
    assert not dict(operation(recorded, "addmm").options).get("allow_tf32")


ATTENTION = """
import torch
model = torch.nn.MultiheadAttention(64, 4, batch_first=True, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(2, 16, 64, device="cuda")
for _ in range(4):
    with torch.autocast("cuda", torch.bfloat16): loss = model(x, x, x, need_weights=False)[0].sum()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_attention_is_one_operation_inside_other_functions_too(tmp_path: Path) -> None:
    """Autocast casts its operands before the kernel is chosen."""
    path = tmp_path / "attention.py"
    path.write_text(ATTENTION)
    query = operation(capture(path), "_scaled_dot_product_cudnn_attention").operands[0]
    assert query.dtype == "bf16"


def test_a_deterministic_program_attends_by_kernels_that_have_an_order(
    tmp_path: Path,
) -> None:
    """PyTorch leaves cuDNN, whose gradients have none; only gradients depend on it."""
    path = tmp_path / "ordered.py"
    ask = "import torch; torch.use_deterministic_algorithms(True, warn_only=True)"
    path.write_text(ATTENTION.replace("import torch", ask, 1))
    recorded, flash = capture(path), "_scaled_dot_product_flash_attention"
    ordered = [
        dict(operation(recorded, name).options).get("deterministic", False)
        for name in (flash, f"{flash}_backward")
    ]
    assert ordered == [False, True]


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
layer = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
bias = torch.nn.Parameter(torch.zeros(1, 4, 16, 16, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([*layer.parameters(), bias], lr=0.1)

def block(x):
    heads = layer(x).view(-1, 16, 4, 16).transpose(1, 2)
    attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, MASK)
    return attended.sum() * torch.ones(1, device="cuda")

for batch in torch.utils.data.DataLoader(torch.randn(32, 16, 64), batch_size=8, pin_memory=True, num_workers=1):
    x = batch.to("cuda", torch.bfloat16, non_blocking=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("mask", "chosen"), [("None", "cudnn"), ("bias", "efficient")])
def test_a_checkpointed_layer_attends_again_with_the_same_kernel(
    tmp_path: Path, mask: str, chosen: str
) -> None:
    """Recomputation runs on backward's thread; a mask with a gradient goes past cuDNN. The data loader's memory is pinned."""
    path = tmp_path / "train.py"
    path.write_text(CHECKPOINTED.replace("MASK", mask))
    recorded = capture(path)
    names = named(recorded, recorded.ranks[0])
    attention = f"aten._scaled_dot_product_{chosen}_attention"
    assert names.count(f"{attention}.default") == 2
    assert names.count(f"{attention}_backward.default") == 1


def test_a_program_may_end_with_its_recorded_step(tmp_path: Path) -> None:
    """Its last lines, which exit with 3, are not reached."""
    path = script(tmp_path, code=3)
    out = tmp_path / "stopped.capture"
    captured((str(path),), out, quiet=True, stop=True)
    assert recording.read(out).step == 3


def test_named_ranks_are_run_and_stand_for_themselves_where_they_differ(
    tmp_path: Path,
) -> None:
    path = script(tmp_path, "if rank == 2: model = torch.nn.Sequential(model, model)")
    out = path.with_suffix(".capture")
    captured((str(path),), out, world=4, quiet=True, ranks=(2,))
    represents = {r.rank: r.represents for r in recording.read(out).ranks}
    assert represents == {0: (0, 1, 3), 2: (2,)}


def test_groups_have_the_axis_that_the_program_names(tmp_path: Path) -> None:
    """Dimensions of a mesh and descriptions of groups say it, whatever their ranks; a nameless group has a neutral one."""
    path = tmp_path / "train.py"
    ask = """
for name in ("tp", "dp"): dist.all_reduce(torch.ones(8, device=device), group=mesh[name].get_group())
for group in (described, nameless): dist.all_reduce(torch.ones(8, device=device), group=group)
@torch.compile
def never(x): return x
"""
    wrap = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("tp", "dp"))
described = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
nameless = dist.new_group([0, 1])
"""
    body = STEPS.replace("    ASK\n", ask.replace("\n", "\n    ")).replace("CODE", "0")
    path.write_text(HEAD + wrap + body)
    recorded = capture(path, world=4)
    asked = [
        (recorded.axis(event.values["group"]), recorded.groups[event.values["group"]])
        for event in recorded.ranks[0].events
        if event.kind == "communicate"
    ]
    assert asked == [
        ("tp", (0, 2)),
        ("dp", (0, 1)),
        ("tp", (0, 1)),
        ("group-of-2", (0, 1)),
    ]
    assert recorded.compiled == ()
    assert set(recorded.ranks[0].owners.values()) >= {
        "parameters",
        "gradients",
        "optimizer",
    }
    assert {"0", "1", "2"} >= set(recorded.ranks[0].modules.values()) != set()


CHOICES = """
import torch, torch.nn.functional as F
halves = {"device": "cuda", "dtype": torch.bfloat16}
scale = torch.nn.Parameter(torch.ones(1, **halves))
optimizer = torch.optim.SGD([scale], lr=0.1)
query, value = torch.randn(2, 16, 128, 192, **halves), torch.randn(2, 16, 128, 128, **halves)
many, one = torch.randn(2, 8, 128, 64, **halves), torch.randn(2, 1, 128, 64, **halves)
hidden = torch.ones(2, 1, 128, 128, dtype=torch.bool, device="cuda")
for _ in range(4):
    latent = F.scaled_dot_product_attention(query * scale, query, value, is_causal=True)
    shared = F.scaled_dot_product_attention(many * scale, one, one, is_causal=True)
    masked = F.scaled_dot_product_attention(many * scale, many, many, hidden)
    scores = F.softmax(many * scale, -1, dtype=torch.float32)
    loss = latent.sum() + shared.sum() + masked.sum() + scores.sum()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("choices") / "choices.py"
    path.write_text(CHOICES)
    return capture(path)


def test_latent_attention_goes_to_cudnn(choices: Recording) -> None:
    """Values narrower than queries: recorded on an H100 with DeepSeek-V3 of transformers."""
    first = operation(choices, "_scaled_dot_product_cudnn_attention")
    widths = [operand.shape[-1] for operand in first.operands[:3]]
    assert widths == [192, 192, 128]


def test_heads_that_share_a_key_unasked_are_computed_apart(choices: Recording) -> None:
    """No fused kernel takes them without `enable_gqa`: recorded on an H100 with Falcon of transformers."""
    assert operation(choices, "_safe_softmax").operands[0].shape[1] == 8


def test_a_boolean_mask_becomes_numbers_in_one_pass(choices: Recording) -> None:
    calls = [each.name.split(".")[1] for each in choices.operations]
    fused = [at for at, name in enumerate(calls) if "cudnn_attention" in name]
    assert calls[fused[1] - 1] == "where"


def test_softmax_converts_bf16_before(choices: Recording) -> None:
    """fp16 it converts as it goes."""
    wide = next(
        each
        for each in choices.operations
        if each.name.split(".")[1] == "_softmax" and each.operands[0].shape[-1] == 64
    )
    assert wide.operands[0].dtype == "fp32"


@pytest.mark.parametrize("reentrant", [False, True])
def test_mfu_leaves_out_what_checkpointing_computes_again(
    tmp_path: Path, reentrant: bool
) -> None:
    """2 flops a weight and row forward, 4 backward, with checkpoints as without."""
    wrap = (
        "from torch.utils.checkpoint import checkpoint\n"
        "inner = model\n"
        "class Again(torch.nn.Module):\n"
        "    def __init__(self): super().__init__(); self.inner = inner\n"
        "    def forward(self, x):\n"
        f"        return checkpoint(self.inner, x.requires_grad_(), use_reentrant={reentrant})\n"
        "model = Again()\n"
    )
    recorded = capture(script(tmp_path, wrap))
    names = named(recorded, recorded.ranks[0])
    assert sum(name.startswith("aten.addmm.") for name in names) > 2
    path = tmp_path / "train.capture"
    result = predict(load_scenario(path, ["cluster.name=h200-host-4"]))
    flops = result.tflops_per_gpu * 1e12 * result.step_time
    assert flops == pytest.approx(6 * 2 * 256 * 1024 * 8)


def test_what_is_differentiated_twice_is_no_recomputation(tmp_path: Path) -> None:
    """A gradient penalty: the first backward keeps a graph, as what is computed again does."""
    ask = (
        "x.requires_grad_()\n"
        "    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)\n"
        "    slope.square().sum().backward()"
    )
    recorded = capture(script(tmp_path, ask=ask))
    directions = {
        event.values["backward"]
        for event in recorded.ranks[0].events
        if event.kind == "operate"
    }
    assert directions == {0, 1}
