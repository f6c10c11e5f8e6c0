"""Windows, sinks, clamped activations, squared ReLUs and norms of embeddings in PyTorch's own blocks."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.formats.model_flops import layer_flops
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model
from tests.executed import executed
from tests.workloads.small import HIDDEN, LAYERS, TRANSFORMER, ops, scenario

FRAMEWORKS = ("pytorch-eager", "pytorch-compiled")
LENGTH, SAMPLES, HEADS = 1024, 2, 8
#: A library whose kernels have windows: those behind PyTorch's own call take a mask.
FLASH = {"attention": "flash2"}
EXPERTS = TRANSFORMER | {"experts": 4, "experts_per_token": 2, "moe_ffn": 128}
LLAMA4 = EXPERTS | {"shared_experts": 1, "moe_every": 2}
LLAMA4 |= {"window": 256, "window_every": 4}
GPT_OSS = EXPERTS | {"bias": True, "router_bias": True, "sinks": True, "clamped": True}
BLOOM = TRANSFORMER | {"gated": False, "activation": "relu2", "embedding_norm": True}


def step(
    model: dict[str, Any], framework: str = "pytorch-eager", **said: Any
) -> Lowered:
    tables = {"framework": framework, "seq_len": LENGTH}
    return executed(scenario(model, tables, **said), 1).lowered


def kernels(low: Lowered, phase: str = "forward") -> list[Kernel]:
    """Of blocks, in a pass."""
    found = [op for op in ops(low) if op.layer >= 0 and op.phase == phase]
    return [op.kernel for op in found if op.kernel is not None]


def flops(low: Lowered, of: str = "", phase: str = "forward") -> float:
    return sum((k.flops or 0.0 for k in kernels(low, phase) if of in k.kind), 0.0)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.sampled_from((256, 512, 1024, 4096)),
    st.sampled_from((LLAMA4, EXPERTS | {"window_every": 2}, BLOOM)),
)
def test_flops_are_those_of_the_formula(
    framework: str, window: int, model: dict[str, Any]
) -> None:
    """Of every layer with its own window and feed-forward part."""
    model = model | {"window": window}
    spec = load_model(scenario(model).model)
    expected = sum(layer_flops(spec, layer, LENGTH) for layer in range(LAYERS))
    found = flops(step(model, framework, pytorch=FLASH))
    assert found == pytest.approx(expected * SAMPLES * LENGTH, rel=1e-12)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.integers(0, 3000),
    st.sampled_from(("cudnn", "flash2")),
)
def test_a_window_of_the_whole_sequence_is_none(
    framework: str, beyond: int, attention: str
) -> None:
    pytorch = {"attention": attention}
    plain = step(TRANSFORMER, framework, pytorch=pytorch)
    windowed = step(
        TRANSFORMER | {"window": LENGTH + beyond}, framework, pytorch=pytorch
    )
    assert plain.graph.kernels == windowed.graph.kernels
    assert plain.memory[0].peak == windowed.memory[0].peak


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_wider_window_is_more_work(framework: str) -> None:
    """Never less, and keys, values and memory stay as they are."""
    steps = [
        step(TRANSFORMER | {"window": window}, framework, pytorch=FLASH)
        for window in (1, 256, 300, 512, 1024)
    ]
    work = [flops(low, "attention") for low in steps]
    assert work == sorted(work) and work[0] < work[-1]
    assert len({low.memory[0].peak for low in steps}) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_mask_hides_scores_that_are_computed(framework: str) -> None:
    """Behind a mask every score is computed, those of later keys too; every layer keeps its mask in 16 bits.

    Segments grow, so that every block is as large as was asked.
    """
    cudnn = {"attention": "cudnn", "expandable_segments": True}
    plain, windowed = (
        step(TRANSFORMER | keys, framework, pytorch=cudnn)
        for keys in ({}, {"window": 256})
    )
    work = [flops(low, "attention") for low in (plain, windowed)]
    assert work[1] == 2 * work[0]
    more = windowed.memory[0].peak - plain.memory[0].peak
    assert more == pytest.approx(LAYERS * 2 * LENGTH**2, rel=0.01)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", [LLAMA4, GPT_OSS, BLOOM])
def test_parameters_are_held_and_counted(framework: str, model: dict[str, Any]) -> None:
    """Sinks, biases, the norm of the embedding: as the formula counts them, but for the blocks memory comes in."""
    low = step(model, framework)
    spec = load_model(scenario(model).model)
    assert low.parameters == total_parameters(spec)
    held = low.memory[0].before["parameters"]
    assert 2 * total_parameters(spec) <= held < 2.05 * total_parameters(spec)


def test_sinks_read_the_output_once_forward_and_twice_backward() -> None:
    """A number a row scales the output of attention; nothing else changes."""
    plain = {key: value for key, value in GPT_OSS.items() if key != "sinks"}
    size = SAMPLES * LENGTH * HIDDEN
    for phase, kinds in (("forward", {"mul": 1}), ("backward", {"mul": 2, "sum": 1})):
        with_sinks, without = (kernels(step(m), phase) for m in (GPT_OSS, plain))
        for kind, count in kinds.items():
            found = [
                sum(k.kind == f"aten {kind}" and prod(k.shape) == size for k in low)
                for low in (with_sinks, without)
            ]
            assert found[0] - found[1] == count * LAYERS


def test_clamps_are_kernels_of_their_own() -> None:
    """Two clamps and a scaling for each expert's network; shared ones and dense layers have none."""
    plain = {key: value for key, value in GPT_OSS.items() if key != "clamped"}
    more = len(kernels(step(GPT_OSS))) - len(kernels(step(plain)))
    assert more == 3 * 4 * LAYERS
    grouped = [
        len(kernels(step(m, pytorch={"experts": "grouped"}))) for m in (GPT_OSS, plain)
    ]
    assert grouped[0] - grouped[1] == 3 * LAYERS


@pytest.mark.parametrize(
    ("model", "said", "told"),
    [
        (TRANSFORMER, {"cp": 2, "data_parallel": "fsdp"}, "neighbours"),
        (TRANSFORMER, {"pytorch": {"attention": "triton"}}, "no window"),
        (TRANSFORMER | {"positions": "alibi"}, {}, "no such layers"),
    ],
)
def test_what_windows_do_not_have(
    model: dict[str, Any], said: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        step(model | {"window": 256}, **said)
