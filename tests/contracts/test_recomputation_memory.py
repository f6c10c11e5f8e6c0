"""Law: what runs again in backward makes no step need more memory.

`data/one-block-*.capture` are steps of a single block (four samples of 64 or 2,048 tokens, 1,024 wide, plain SGD) that
`prestep capture` recorded with PyTorch 2.13: the block kept, under `torch.utils.checkpoint`, and under its reentrant form.
PyTorch's checkpoint stops as soon as all that backward needs is there again, so it costs nothing where it saves nothing.
The reentrant one, which Megatron's `tensor_parallel.checkpoint` has the form of, makes the block's output a second time
and holds its gradient: where no second block waits, a step needs one or two outputs more, in PyTorch itself.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.analysis.memory import fullest
from prestep.sim.errors import InputError
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric, predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.models.model import load_model
from tests.fuzz.drawn import drawn
from tests.fuzz.featured import featured

DATA = Path(__file__).parent / "data"
Tables = dict[str, Any]
#: Each way, and those that keep all that it keeps.
WEAKER = {
    "selective": ("none",),
    "products": ("none",),
    "alternate": ("none",),
    "full": ("none", "selective", "products", "alternate"),
}
#: Engines whose checkpoint is the reentrant one.
REENTRANT = ("megatron", "deepspeed", "automodel")
#: Keys that are about one way alone.
OF_A_WAY = ("recompute_modules", "recompute_num_layers", "recompute_early_stop")
SMALL = {
    "kind": "transformer",
    "hidden": 512,
    "heads": 8,
    "ffn": 2048,
    "vocab": 1000,
    "layers": 8,
}
NARROW = 2  # bytes of an activation


def peak(scenario: Scenario) -> float:
    """Bytes that the fullest rank allocates at most."""
    return fullest(lowered_on(scenario, load_fabric(scenario))).total


def by_way(tables: Tables) -> dict[str, float]:
    """The peak with each way of recomputation that the framework has."""
    peaks = {}
    for way in ("none", *WEAKER):
        other = deepcopy(tables)
        other["training"]["recompute"] = way
        for key in OF_A_WAY:
            other.get("megatron", {}).pop(key, None)
        other.get("pytorch", {}).pop("recompute_attention", None)
        try:
            peaks[way] = peak(parse_scenario(other, way))
        except InputError:
            continue
    return peaks


def broken(tables: Tables) -> list[str]:
    """The pairs of ways that break the law, with their bytes."""
    peaks, scenario = by_way(tables), parse_scenario(tables, "law")
    return [
        f"{way} {peaks[way]:.0f}, {weaker} {peaks[weaker]:.0f}"
        for way, others in WEAKER.items()
        for weaker in others
        if way in peaks and weaker in peaks
        if not _keeps_what_nobody_needs(scenario, (way, weaker))
        if peaks[way] > peaks[weaker] * (1 + 1e-9) + excess(scenario, way, weaker)
    ]


def _keeps_what_nobody_needs(scenario: Scenario, ways: tuple[str, str]) -> bool:
    """By operator every second product's result is kept: an adapter's too, and each part of ring attention."""
    return "products" in ways and (scenario.adapter.on or scenario.parallel.cp > 1)


def excess(scenario: Scenario, way: str, weaker: str) -> float:
    """Bytes that a stronger way may cost: what the reentrant checkpoint holds twice, where nothing else is saved."""
    p, training = scenario.parallel, scenario.training
    if training.framework not in REENTRANT:
        return 0.0
    model = load_model(scenario.model)
    tokens = training.micro_batch * training.seq_len // p.cp
    splits = p.pp > 1 and p.schedule not in ("1f1b", "gpipe", "interleaved")
    one_waits = model.layers < 2 * p.pp * p.vpp
    output = float(NARROW * tokens * model.hidden)
    # Weights' gradients that are put off hold what attention made before it runs again.
    attended = float(NARROW * tokens * model.heads * model.head_dim)
    return 2 * output * one_waits + attended * splits


@pytest.mark.parametrize(("tokens", "outputs"), [(64, 2), (2048, 1)])
def test_pytorch_itself_pays_for_the_reentrant_form_alone(
    tokens: int, outputs: int
) -> None:
    """Of one block: 0, and one output, or two where gradients decide the peak."""
    kept, checkpoint, reentrant = (
        peak(
            load_scenario(
                DATA / f"one-block-{name}-{tokens}.capture",
                ["cluster.name=h200-host-4"],
            )
        )
        for name in ("kept", "checkpoint", "reentrant")
    )
    assert checkpoint == kept
    assert reentrant - kept == outputs * NARROW * 4 * tokens * 1024


@pytest.mark.parametrize(
    ("way", "measured"),
    [("none", 521_209_856), ("outside", 445_712_384), ("within", 571_541_504)],
)
def test_a_compiled_block_holds_what_was_measured(way: str, measured: int) -> None:
    """Bytes over what is there before a step, with no checkpoint, one around a compiled block, and one within it.

    ``torch.cuda.max_memory_allocated`` of one gated block on an H200 with PyTorch 2.11, 4 x 2,048 tokens in bf16.
    """
    scenario = load_scenario(
        DATA / f"compiled-block-{way}.capture", ["cluster.name=h200-host-4"]
    )
    memory = predict(scenario).peak_memory[0]
    assert memory.total - memory.parameters - memory.workspace == measured


@pytest.mark.parametrize("tokens", [64, 2048])
@pytest.mark.parametrize("framework", ["pytorch-eager", "pytorch-compiled"])
def test_one_block_costs_nothing(framework: str, tokens: int) -> None:
    """As PyTorch's checkpoint; in a compiled block, what one kernel reads and writes at once.

    The gated product and its backward are one kernel there: it reads the gate, the up projection and the gradient, and
    writes three values more, where backward alone writes one of its two over what it reads. Measured on an H200 with
    PyTorch 2.11 (4 x 2,048 tokens, hidden 1,024, ffn 4,096): 7.5 values of the residual, which are eight less the query
    and key before they are turned.
    """
    model = {**SMALL, "hidden": 1024, "heads": 16, "ffn": 4096, "layers": 1}
    training = {"framework": framework, "seq_len": tokens, "micro_batch": 4}
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": 1},
        "model": model,
        "training": {**training, "optimizer": "sgd"},
        "parallel": {"dp": 1},
        # Every block is cut: the law is about what programs ask for.
        "pytorch": {"expandable_segments": True},
    }
    peaks = by_way(tables)
    if framework == "pytorch-compiled":
        assert peaks["full"] == peaks["alternate"]
        assert max(peaks.values()) <= peaks["none"] + 2 * NARROW * 4 * tokens * 4096
    else:
        assert len(set(peaks.values())) == 1


@pytest.mark.parametrize(
    ("framework", "parallel", "further"),
    [
        ("pytorch-eager", {"dp": 4, "data_parallel": "fsdp"}, {}),
        ("pytorch-eager", {"dp": 2, "pp": 2}, {}),
        ("pytorch-compiled", {"dp": 4, "data_parallel": "ddp"}, {}),
        ("pytorch-compiled", {"dp": 4, "data_parallel": "zero3"}, {}),
        ("cuda-graph", {"dp": 4}, {}),
        ("deepspeed-eager", {"dp": 4, "data_parallel": "zero3"}, {}),
        (
            "deepspeed-eager",
            {"dp": 4, "data_parallel": "zero3", "offload": "optimizer"},
            {},
        ),
        ("deepspeed", {"dp": 4, "data_parallel": "zero2"}, {}),
        ("deepspeed", {"dp": 4, "data_parallel": "zero3"}, {}),
        ("automodel", {"dp": 4, "data_parallel": "fsdp"}, {}),
        ("megatron", {"dp": 2, "tp": 2, "data_parallel": "zero1"}, {}),
        ("megatron", {"dp": 4, "data_parallel": "fsdp"}, {"precision": "fp8"}),
        ("megatron", {"dp": 1, "pp": 4}, {}),
        ("megatron", {"dp": 1, "pp": 4, "vpp": 2, "schedule": "interleaved"}, {}),
        ("megatron", {"dp": 1, "pp": 4, "schedule": "zero-bubble"}, {}),
    ],
)
def test_what_runs_again_takes_no_more_memory(
    framework: str, parallel: Tables, further: Tables
) -> None:
    """In every engine, way of sharding and schedule."""
    training = {"framework": framework, "seq_len": 1024, "micro_batch": 2} | further
    if parallel.get("pp", 1) > 1:
        training["microbatches"] = 8
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 4},
        "model": SMALL,
        "training": training,
        "parallel": parallel,
    }
    assert len(by_way(tables)) > 1
    assert not broken(tables)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [drawn, featured])
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_so_it_is_of_random_scenarios(draw: Any, first: int) -> None:
    """Of all keys and of features that need several: experts, adapters, fp8, offloading, hybrids, links, schedules."""
    made = [draw(seed) for seed in range(first, first + 8)]
    tables = [one[0] for one in made if one is not None]
    assert tables
    assert not [(one, wrong) for one in tables if (wrong := broken(one))]
