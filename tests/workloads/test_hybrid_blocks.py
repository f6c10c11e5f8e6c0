"""Hybrids in PyTorch's own blocks, eager and compiled: laws that hold for every pattern of layers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.formats.model_flops import flops_per_token, scan_flops
from prestep import cli
from prestep.sim.costs.estimators.scans import KINDS
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain
from prestep.sim.predict import predict
from prestep.workloads.lowered import Lowered
from prestep.workloads.models import hybrid
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec, load_model
from tests.executed import executed
from tests.sample import together
from tests.workloads.small import (
    HIDDEN,
    SEQ,
    TRANSFORMER,
    communications,
    ops,
    scenario,
    volume,
)
from tests.workloads.test_latent_blocks import FRAMEWORKS, SAMPLES, step

RANK = 4  # of adapters
BLOCK = 512  # bytes of which memory is given out
KEYS: dict[str, dict[str, int]] = {
    "M": {"mamba_heads": 16, "mamba_groups": 4, "mamba_head_dim": 32},
    "GK": {"linear_key_heads": 4, "linear_value_heads": 8},
    "E": {"experts": 4, "experts_per_token": 2, "moe_ffn": 128, "shared_experts": 1}
    | {"shared_gate": True},
}
PATTERNS = st.text(alphabet=hybrid.LETTERS, min_size=1, max_size=5)
ALL = "MGK*-E"


def model(pattern: str, **more: Any) -> dict[str, Any]:
    """A small model of that pattern."""
    said = {key: value for key, value in TRANSFORMER.items() if key != "layers"}
    for letters, keys in KEYS.items():
        if set(letters) & set(pattern):
            said |= keys
    return said | {"layer_pattern": pattern} | more


def spec(said: dict[str, Any]) -> ModelSpec:
    return load_model(scenario(said).model)


def kernels(low: Lowered, phase: str = "") -> list[Kernel]:
    found = (op for op in ops(low) if phase in ("", op.phase))
    return [op.kernel for op in found if op.kernel is not None]


def forward_flops(low: Lowered) -> float:
    """Of a rank's products and attention in the forward pass."""
    found = (k for k in kernels(low, "forward") if "convolution" not in k.kind)
    return sum(k.flops or 0.0 for k in found)


def formula(said: dict[str, Any]) -> float:
    """The same by the model's counts, without what scans and convolutions compute between their products."""
    m = spec(said)
    scans = sum(scan_flops(m, p) for p in m.layer_pattern if p in hybrid.SCANS)
    return (flops_per_token(m, SEQ) / 3 - scans) * SAMPLES * SEQ


def scans(low: Lowered) -> Counter[tuple[str, tuple[int, ...]]]:
    """Kernels of scans and of what goes with them, with their shapes."""
    return Counter((k.kind, k.shape) for k in kernels(low) if k.kind in KINDS)


def shapes_of_scans(low: Lowered) -> set[tuple[int, ...]]:
    """The same of layers that are recorded once, as Megatron's are."""
    inner = [c.graph.kernels for c in low.graph.kernels if isinstance(c, Chain)]
    found = [*low.graph.kernels, *(k for chain in inner for k in chain)]
    return {k.shape for k in found if k.kind in KINDS}


def seconds(said: dict[str, Any], framework: str, **parallel: Any) -> float:
    return predict(scenario(said, {"framework": framework}, **parallel)).step_time


@settings(max_examples=16, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    PATTERNS,
    st.sampled_from(
        ({}, {"dp": 2, "data_parallel": "fsdp"}, {"dp": 2, "data_parallel": "ddp"})
    ),
    st.sampled_from((0, 64)),
)
def test_parameters_and_flops_are_those_of_the_formula(
    framework: str, pattern: str, parallel: dict[str, Any], narrow: int
) -> None:
    """A rank counts and computes what the model's figures say; narrow experts among them."""
    said = model(
        pattern, **({"moe_latent": narrow} if "E" in pattern and narrow else {})
    )
    low = step(said, framework, **parallel)
    assert low.parameters == total_parameters(spec(said))
    assert forward_flops(low) == pytest.approx(formula(said), rel=1e-12)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(FRAMEWORKS), PATTERNS)
def test_megatron_counts_the_same_and_launches_the_same_scans(
    framework: str, pattern: str
) -> None:
    """Layers differ in what they fuse, not in their parameters or in the kernels of their scans."""
    own, other = (step(model(pattern), name) for name in (framework, "megatron"))
    assert own.parameters == other.parameters
    assert shapes_of_scans(own) == shapes_of_scans(other)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(FRAMEWORKS), PATTERNS)
def test_each_scan_runs_once_each_way(framework: str, pattern: str) -> None:
    found = Counter(
        kind for kind, _ in scans(step(model(pattern), framework)).elements()
    )
    for letter, name in (("M", "mamba2"), ("G", "gdn"), ("K", "kda")):
        for way in ("fwd", "bwd"):
            assert found[f"{name}_{way}"] == pattern.count(letter)


@together("framework", FRAMEWORKS)
@together("pattern", list(hybrid.LETTERS))
def test_a_rank_holds_what_is_counted(framework: str, pattern: str) -> None:
    said = model(pattern)
    low = step(said, framework)
    least = 2 * total_parameters(spec(said))
    tensors = 40
    assert least <= low.memory[0].before["parameters"] < least + BLOCK * tensors


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(FRAMEWORKS), st.permutations(ALL))
def test_an_order_of_layers_changes_no_counts(
    framework: str, letters: list[str]
) -> None:
    """Flops, parameters, and bytes that are gathered and reduced are those of any order."""
    lows = [
        step(model(pattern), framework, dp=2, data_parallel="fsdp")
        for pattern in (ALL, "".join(letters))
    ]
    first, second = lows
    assert forward_flops(first) == pytest.approx(forward_flops(second), rel=1e-12)
    assert first.parameters == second.parameters
    for op in ("dp all_gather", "dp reduce_scatter"):
        assert volume(first, op) == pytest.approx(volume(second, op), rel=1e-2)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(FRAMEWORKS), PATTERNS, st.sampled_from(hybrid.LETTERS))
def test_more_layers_are_never_faster(framework: str, pattern: str, more: str) -> None:
    s = seconds(model(pattern + more), framework)
    assert s >= seconds(model(pattern), framework) * (1 - 1e-9)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_layer_is_a_group_of_fsdp(framework: str) -> None:
    """A gather each way, but for the last and the root, and a reduction."""
    counts = []
    for pattern in ("M", "MG", "MGK", "MGK*", "MGK*-", ALL):
        found = communications(
            step(model(pattern), framework, dp=2, data_parallel="fsdp")
        )
        counts.append((found["dp all_gather"], found["dp reduce_scatter"]))
    more = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)}
    assert more == {(2, 1)}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("parallel", [{}, {"dp": 2, "data_parallel": "fsdp"}])
def test_checkpointing_holds_less_and_computes_the_forward_pass_twice(
    framework: str, parallel: dict[str, Any]
) -> None:
    said = model(ALL * 2)
    none, full, products = (
        step(said, framework, {"recompute": how}, **parallel)
        for how in ("none", "full", "products")
    )
    assert full.memory[0].peak < none.memory[0].peak
    flops = [
        sum(k.flops or 0.0 for k in kernels(low)) for low in (none, products, full)
    ]
    assert flops == sorted(flops)
    for letter, name in (("M", "mamba2"), ("G", "gdn"), ("K", "kda")):
        shapes = Counter(kind for kind, _ in scans(full).elements())
        assert shapes[f"{name}_fwd"] == 2 * (ALL * 2).count(letter)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.sampled_from((ALL, "M*M-", "GEGE*EKE")),
    st.sampled_from(("ddp", "fsdp")),
    st.sampled_from((1, 2)),
    st.sampled_from(("none", "full", "products")),
)
def test_folded_is_unfolded(
    framework: str, pattern: str, way: str, pp: int, recompute: str
) -> None:
    """A slow rank that is not slow simulates every rank by itself, and the step takes as long."""
    training: dict[str, Any] = {"framework": framework, "recompute": recompute}
    training |= {"microbatches": 2} if pp > 1 else {}
    folded = scenario(model(pattern), training, dp=2, pp=pp, data_parallel=way)
    slow = type(folded.faults)(slow_rank=0, slow_factor=1.0)
    whole = predict(replace(folded, faults=slow))
    assert predict(folded).step_time == pytest.approx(whole.step_time, rel=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("sequence", [False, True])
def test_ranks_split_layers_without_scans(framework: str, sequence: bool) -> None:
    """Attention and feed-forward layers of a pattern are split as those of blocks are."""
    said = model("*-*E")
    split = executed(
        scenario(said, {"framework": framework}, tp=2, sequence_parallel=sequence),
        1,
    ).lowered
    assert forward_flops(split) < forward_flops(step(said, framework))
    assert split.parameters == total_parameters(spec(said))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_experts_of_a_pattern_are_spread(framework: str) -> None:
    """Each rank has its part of them, and sends tokens to the others."""
    found = communications(
        step(model("ME*E"), framework, dp=2, ep=2, data_parallel="fsdp")
    )
    assert found["ep all_to_all"] == 8


def test_narrow_tokens_are_exchanged_narrow() -> None:
    """Experts' exchanges carry what the experts see."""
    layout: dict[str, Any] = {"dp": 2, "ep": 2, "data_parallel": "ddp"}
    wide = volume(step(model("E"), **layout), "ep all_to_all")
    narrow = volume(step(model("E", moe_latent=64), **layout), "ep all_to_all")
    assert narrow == pytest.approx(wide * 64 / HIDDEN)


@pytest.mark.parametrize(("target", "places"), [("in_proj", 7), ("out_proj", 3)])
def test_adapters_are_beside_scans(target: str, places: int) -> None:
    """All else is frozen: weights' gradients are those of two thin matrices beside each projection."""
    s = scenario(model("MGK*-"))
    adapter = type(s.adapter)(kind="lora", rank=RANK, targets=(target,))
    low = executed(replace(s, adapter=adapter), 1).lowered
    found = [k for k in kernels(low) if k.kind == "aten mm" and k.layout[:2] == "tn"]
    assert len(found) == 2 * places
    assert all(RANK in k.shape for k in found)


@pytest.mark.parametrize(
    ("said", "parallel", "training", "told"),
    [
        ("M-", {"tp": 2}, {}, r"parallel\.tp.*megatron"),
        (
            "G-",
            {"cp": 2, "data_parallel": "fsdp"},
            {},
            r"parallel\.cp.*not simulated",
        ),
        ("K-", {}, {"precision": "fp32"}, r"training\.precision.*16 bits"),
    ],
)
def test_what_scans_cannot_do_is_refused(
    said: str, parallel: dict[str, Any], training: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=f"(?s){told}"):
        predict(scenario(model(said), training, **parallel))


def test_narrow_experts_are_not_split() -> None:
    with pytest.raises(InputError, match=r"(?s)parallel\.tp.*moe_latent"):
        predict(scenario(model("*E", moe_latent=64), tp=2))


SCENARIO = """
[cluster]
name = "h200-host-4"
gpus = 2
[model]
kind = "transformer"
hidden = 1024
heads = 8
ffn = 4096
vocab = 4096
layer_pattern = "M-M*-M-"
mamba_heads = 32
[training]
framework = "pytorch-compiled"
seq_len = 2048
[parallel]
dp = 2
data_parallel = "fsdp"
"""


def command(tmp_path: Path, text: str, *changes: str) -> Result:
    """What `prestep run` says of a file."""
    path = tmp_path / "hybrid.toml"
    path.write_text(text)
    said = [word for change in changes for word in ("--set", change)]
    return CliRunner().invoke(cli.main, ["run", str(path), "--json", *said])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_file_is_predicted(tmp_path: Path, framework: str) -> None:
    """Sharded parameters take less memory than whole ones."""
    changes = (f"training.framework={framework}",)
    sharded = command(tmp_path, SCENARIO, *changes)
    whole = command(tmp_path, SCENARIO, *changes, "parallel.data_parallel=ddp")
    assert sharded.exit_code == whole.exit_code == 0, sharded.stderr + whole.stderr
    outputs = [json.loads(result.stdout) for result in (sharded, whole)]
    assert all(output["step_time"] > 0 for output in outputs)
    peaks = [
        max(rank["total"] for rank in output["peak_memory"].values())
        for output in outputs
    ]
    assert peaks == sorted(peaks)


def test_compiled_layers_launch_fewer_kernels() -> None:
    """Norms, activations and residual sums are fused; scans and products are the same."""
    for pattern in ("*-", ALL):
        compiled, eager = (
            step(model(pattern), name) for name in ("pytorch-compiled", "pytorch-eager")
        )
        assert len(kernels(compiled)) < len(kernels(eager))
        assert scans(compiled) == scans(eager)


def test_adapters_without_a_place_are_refused(tmp_path: Path) -> None:
    """Where no layer has such a projection nothing would be trained."""
    text = SCENARIO.replace("M-M*-M-", "M-M--M-").replace("compiled", "eager")
    lora = text + '[adapter]\nkind = "lora"\ntargets = ["qkv"]\n'
    refused = command(tmp_path, lora)
    assert refused.exit_code == 2
    assert "adapter.targets" in refused.stderr and "in_proj" in refused.stderr
    assert command(tmp_path, lora.replace("qkv", "in_proj")).exit_code == 0


#: Ways of training, each with sections of a scenario.
WAYS: dict[str, dict[str, Any]] = {
    "zero-bubble": {
        "training": {"microbatches": 4},
        "parallel": {"pp": 2, "schedule": "zero-bubble"},
    },
    "interleaved": {
        "training": {"microbatches": 4},
        "parallel": {"pp": 2, "vpp": 2, "schedule": "interleaved"},
    },
    "sharded stages": {
        "training": {"microbatches": 4},
        "parallel": {"pp": 2, "dp": 2, "data_parallel": "fsdp"},
    },
    "shards and copies": {
        "parallel": {"dp": 4, "data_parallel": "fsdp", "fsdp_shards": 2}
    },
    "replicated in one CUDA graph": {"training": {"framework": "cuda-graph"}},
    "DeepSpeed": {
        "training": {"framework": "deepspeed-eager"},
        "parallel": {"dp": 2, "data_parallel": "zero2"},
    },
    "fp8": {"training": {"framework": "pytorch-compiled", "precision": "fp8"}},
    "grouped experts": {
        "parallel": {"dp": 2, "ep": 2, "data_parallel": "fsdp"},
        "pytorch": {"experts": "grouped"},
    },
    "written out": {"pytorch": {"modules": "transformers"}},
    "every other layer": {"training": {"recompute": "alternate"}},
}


@pytest.mark.parametrize("way", WAYS)
def test_stages_count_the_whole_model(way: str) -> None:
    """However a step is cut and computed, its parameters are the model's, and every tensor is given back."""
    said = model(ALL * 2)
    sections = {"training": None, "pytorch": None, "parallel": {}} | WAYS[way]
    parallel = sections.pop("parallel")
    s = scenario(said, **sections, **parallel)
    done = executed(s, 1).lowered
    assert done.parameters == total_parameters(spec(said))
    for memory in done.memory.values():
        kept = memory.alive["activations"]
        assert kept == pytest.approx(memory.before["activations"], abs=2 * BLOCK)
