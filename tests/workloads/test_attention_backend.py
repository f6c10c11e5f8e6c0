"""PyTorch's own choice of attention's kernel: one table for scenarios, recipes and captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prestep.sim import api
from prestep.sim.graph.kernel import BACKWARD, FUSED_ATTENTION, Kernel
from prestep.sim.graph.opgraph import Chain, OpGraph
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.torch.attention_backend import default_backend
from tests.sample import together

SCENARIO = Path(__file__).parents[2] / "workloads" / "scenarios" / "llama1b-ddp4.toml"
HOPPER, BLACKWELL, ULTRA, WORKSTATION = (9, 0), (10, 0), (10, 3), (12, 0)
AMPERE, ADA, VOLTA, AMD = (8, 0), (8, 9), (7, 0), (9, 4)


# From aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of each release (`check_prefer_cudnn_attention`,
# `check_cudnn_tensor_shapes`, `check_head_dim_size_flash`) and the nvidia-cudnn that its wheel on PyPI requires.
@together(
    ("version", "capability", "query", "value", "kernel"),
    [
        ("2.5.0", HOPPER, 128, 0, "cudnn"),  # 9.1.0.70: `dprops->major >= 9`
        ("2.5.1", HOPPER, 128, 0, "flash2"),  # pytorch/pytorch#138522
        ("2.6.0", HOPPER, 64, 0, "flash2"),
        ("2.7.1", HOPPER, 128, 0, "flash2"),
        ("2.8.0", BLACKWELL, 128, 0, "flash2"),
        ("2.9.1", HOPPER, 128, 0, "flash2"),  # 9.10.2.21
        ("2.10.0", HOPPER, 128, 0, "flash2"),  # 9.10.2.21 is not above 9.15.0
        ("2.11.0", HOPPER, 64, 0, "cudnn"),  # 9.19.0.56; measured
        ("2.11.0", HOPPER, 128, 0, "cudnn"),  # measured
        ("2.12.0", BLACKWELL, 128, 0, "cudnn"),  # 9.20.0.48
        ("2.13.0", ULTRA, 128, 0, "cudnn"),
        ("2.13.0+cpu", HOPPER, 256, 0, "cudnn"),
        ("2.13.0", BLACKWELL, 256, 0, "flash2"),  # 128 at most but on 9.0
        ("2.13.0", BLACKWELL, 192, 128, "cudnn"),  # DeepSeek's
        ("2.13.0", HOPPER, 192, 128, "cudnn"),
        ("2.7.1", HOPPER, 192, 128, "efficient"),  # FlashAttention wants even widths
        ("2.13.0", AMPERE, 128, 0, "flash2"),
        ("2.13.0", ADA, 128, 0, "flash2"),
        ("2.13.0", WORKSTATION, 128, 0, "flash2"),
        ("2.13.0", AMD, 128, 0, "flash2"),  # AOTriton's
        ("2.13.0", VOLTA, 128, 0, "efficient"),  # FlashAttention is for sm80 and later
        ("2.13.0", AMPERE, 320, 0, "efficient"),
    ],
)
def test_the_order_of_kernels_is_pytorchs(
    version: str, capability: tuple[int, int], query: int, value: int, kernel: str
) -> None:
    """Each release's own rule, on each kind of GPU."""
    assert default_backend(version, capability, query, value) == kernel


def kinds(*changes: str) -> set[str]:
    """Kernels of attention in a step of Llama 3.2 1B."""
    return kinds_of(load_scenario(SCENARIO, ("cluster.gpus=4", *changes)))


def kinds_of(scenario: Scenario) -> set[str]:
    graph = lowered_on(scenario, load_fabric(scenario)).graph
    forward = {kind.removesuffix(BACKWARD) for kind in all_kinds(graph)}
    return {library for library, kind in FUSED_ATTENTION.items() if kind in forward}


def all_kinds(graph: OpGraph) -> set[str]:
    """Kinds of a graph's kernels and of those within its chains."""
    chains = [one.graph for one in graph.kernels if isinstance(one, Chain)]
    alone = {one.kind for one in graph.kernels if isinstance(one, Kernel)}
    return alone.union(*(all_kinds(chain) for chain in chains))


@pytest.mark.parametrize("framework", ["pytorch-eager", "pytorch-compiled"])
@pytest.mark.parametrize(
    ("cluster", "version", "kernel"),
    [
        ("dgx-h100", "2.11", "cudnn"),
        ("dgx-h100", "2.7", "flash"),
        ("dgx-b200", "2.11", "cudnn"),
        ("dgx-b200", "2.7", "flash"),
        ("dgx-a100", "2.11", "flash"),
        ("mi300x", "2.11", "flash"),
    ],
)
def test_a_scenario_launches_what_pytorch_takes(
    framework: str, cluster: str, version: str, kernel: str
) -> None:
    """Where a scenario says nothing; what it says is taken on every GPU."""
    where = f"cluster.name={cluster}", f"training.framework={framework}"
    assert kinds(*where, f"pytorch.version={version}") == {kernel}
    said = kinds(*where, f"pytorch.version={version}", "pytorch.attention=cudnn")
    assert said == {"cudnn"}


LAYER = {"kind": "transformer", "hidden": 512, "layers": 1, "heads": 4, "kv_heads": 4}
LAYER |= {"ffn": 512, "vocab": 512, "head_dim": 128}
LATENT = {"v_head_dim": 128, "kv_lora_rank": 64, "q_lora_rank": 64, "rope_head_dim": 64}


@pytest.mark.parametrize("cluster", ["dgx-a100", "l40s-host", "rtx-pro-6000-host"])
@pytest.mark.parametrize(
    ("more", "kernel"),
    [({}, "flash"), (LATENT, "efficient"), ({"window": 512}, "efficient")],
    ids=["plain", "latent", "windows"],
)
def test_what_flash_attention_lacks_is_memory_efficient(
    cluster: str, more: dict[str, Any], kernel: str
) -> None:
    """Narrower values, and windows, which are masks to PyTorch (sdp_utils.cpp): of one GPU's scenario as of its captures."""
    tables = {
        "cluster": {"name": cluster, "gpus": 1},
        "model": LAYER | more,
        "training": {"seq_len": 2048, "framework": "pytorch-eager"},
        "pytorch": {"version": "2.13"},
    }
    assert kinds_of(parse_scenario(tables, "layer.toml")) == {kernel}


@pytest.mark.parametrize(
    ("cluster", "kernel"),
    [("dgx-h100", "cudnn"), ("dgx-a100", "flash")],
)
def test_engines_take_it_too(cluster: str, kernel: str) -> None:
    """Automodel's layers, whose attention may be PyTorch's."""
    where = f"cluster.name={cluster}", "training.framework=automodel"
    sharded = "parallel.data_parallel=fsdp", "megatron.attention=sdpa"
    assert kinds(*where, *sharded) == {kernel}


def test_a_version_that_decides_the_kernel_is_no_idle_key() -> None:
    """Stated alone it is used, and idle where the scenario names the kernel."""
    stated = ("pytorch.version=2.7", "training.framework=pytorch-eager")
    left = api.simulate(str(SCENARIO), dict(one.split("=") for one in stated))
    named = api.simulate(
        str(SCENARIO),
        dict(one.split("=") for one in (*stated, "pytorch.attention=cudnn")),
    )
    idle = [
        any("pytorch.version" in note for note in one.warnings) for one in (left, named)
    ]
    assert idle == [False, True]


@pytest.mark.parametrize(
    ("width", "value", "capability", "operator"),
    [
        (64, 64, HOPPER, "cudnn"),
        (192, 128, BLACKWELL, "cudnn"),
        (256, 256, BLACKWELL, "flash"),
        (128, 128, AMPERE, "flash"),
        (192, 128, AMPERE, "efficient"),
        (128, 128, VOLTA, "efficient"),
    ],
)
def test_captures_record_what_the_table_says(
    width: int, value: int, capability: tuple[int, int], operator: str
) -> None:
    """With PyTorch from 2.11 installed: the operator that a captured program calls."""
    torch = pytest.importorskip("torch")
    attention = pytest.importorskip("prestep.workloads.capture.record.attention")
    meta = {"dtype": torch.bfloat16, "device": "meta"}
    query = torch.empty(1, 4, 256, width, **meta)
    call = attention.Call(query, query, torch.empty(1, 4, 256, value, **meta))
    if operator == "cudnn":
        assert attention._fits_cudnn(call, capability)
        return
    assert not attention._fits_cudnn(call, capability)
    flash = attention._fits_flash(call, capability)
    assert flash == (operator == "flash")
    assert flash or attention._fits_efficient(call)
