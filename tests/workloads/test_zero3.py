"""Laws of ZeRO 3 around PyTorch's modules: what hooks gather and free, what is sent and kept, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import plan, predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.search import search
from prestep.workloads.sharding.course import (
    LIVE,
    PERSISTENT,
    PREFETCH,
    Coordinator,
)

LLAMA: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 16,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "vocab": 128256,
    "gated": True,
}
SMALL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 512,
    "layers": 3,
    "heads": 8,
    "ffn": 1024,
    "vocab": 4096,
}


def job(
    model: dict[str, Any], dp: int = 2, rounds: int = 1, **changed: Any
) -> Scenario:
    data: dict[str, Any] = {
        "cluster": {"name": "dgx-h100", "gpus": dp},
        "model": model,
        "training": {
            "framework": "deepspeed-eager",
            "seq_len": 512,
            "micro_batch": 1,
            "grad_accumulation": rounds,
        },
        "parallel": {"dp": dp, "data_parallel": "zero3"},
        "pytorch": {"modules": "transformers"},
    }
    for key, value in changed.items():
        section, name = key.split("__")
        data[section][name] = value
    return parse_scenario(data, "test")


def sizes(s: Scenario, op: str) -> list[float]:
    """Bytes of the collectives of a kind, in their order."""
    return [comm.size for comm in plan(s).graph.comms if comm.op == op]


def test_gathers_are_those_of_a_trace() -> None:
    """DeepSpeed 0.19.8 around a Llama of 1B (llama1b-z3-b4, two H200): 23 all-gathers, then 33 of norms' weights."""
    layer, outer = 60_817_408, 262_668_288
    backward = [layer, layer, layer, 306_708_480]
    elements = [outer, *[layer] * 16, outer, 16_777_216, *backward, *[2048] * 33]
    assert sizes(job(LLAMA), "all_gather") == [2.0 * n for n in elements]
    scattered = [499_662_848, 492_865_536, 243_286_016, outer]
    assert sizes(job(LLAMA), "reduce_scatter") == [2.0 * n for n in scattered]


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("model", [SMALL, {**SMALL, "tied_embeddings": True}])
def test_all_gradients_are_scattered_in_every_microbatch(
    model: dict[str, Any], recompute: str, rounds: int
) -> None:
    """In 16 bits, once each, however often the layers run."""
    s = job(model, rounds=rounds, training__recompute=recompute)
    parameters = plan(s).lowered.parameters
    assert sum(sizes(s, "reduce_scatter")) == pytest.approx(2 * parameters * rounds)


@pytest.mark.parametrize(
    "own",
    [
        {"qk_norm": True},
        {"positions": "learned", "max_positions": 512, "norm": "layer", "bias": True},
        {"gated": True, "tied_embeddings": True},
        {"window": 128, "activation": "gelu"},
    ],
)
@pytest.mark.parametrize("modules", ["plain", "transformers"])
def test_every_parameter_is_gathered(own: dict[str, Any], modules: str) -> None:
    """Whatever the modules are: all parameters, each small one by itself behind the update."""
    s = job({**SMALL, **own}, pytorch__modules=modules)
    parameters = plan(s).lowered.parameters
    assert sum(sizes(s, "all_gather")) >= 2 * parameters


def test_more_ranks_keep_less() -> None:
    """Segments grow, so that every block is as large as was asked."""
    few, many = (
        predict(job(SMALL, dp, pytorch__expandable_segments=True)).peak_memory[0]
        for dp in (2, 8)
    )
    assert many.optimizer == pytest.approx(few.optimizer / 4, rel=1e-2)
    assert many.total < few.total


def test_stage_3_holds_less_than_stage_2_where_states_are_most() -> None:
    """Of 1.5B parameters on eight GPUs."""
    kept = {
        way: predict(job(LLAMA, 8, parallel__data_parallel=way)).peak_memory[0].total
        for way in ("zero2", "zero3")
    }
    assert kept["zero3"] < kept["zero2"]


@st.composite
def courses(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Modules, forward and backward, of parameters of many sizes."""
    elements = draw(st.lists(st.integers(1, 400_000_000), min_size=1, max_size=12))
    numbers = st.integers(0, len(elements) - 1)
    module = st.lists(numbers, max_size=3, unique=True).map(sorted)
    forward = draw(st.lists(module, min_size=1, max_size=30))
    return [*forward, *reversed(forward)], elements


@given(courses())
def test_what_a_module_needs_is_there_and_nothing_is_gathered_twice(
    given_course: tuple[list[list[int]], list[int]],
) -> None:
    """Along any course: all of a module's parameters are there while it runs, and all that do not persist are freed."""
    course, elements = given_course
    coordinator = Coordinator(course, elements)
    small = {p for p, n in enumerate(elements) if n <= PERSISTENT}
    coordinator.gathered |= small
    there = set(small)
    for module in course:
        lacking = coordinator.lacking(module)
        assert not there & set(lacking)
        there |= set(lacking)
        assert set(module) <= there
        ahead = coordinator.ahead(module)
        assert not there & set(ahead)
        assert sum(elements[p] for p in ahead) < PREFETCH + max(elements)
        there |= set(ahead)
        freed = coordinator.freed(module)
        assert set(freed) <= there - small
        there -= set(freed)
        assert coordinator.live <= LIVE + PREFETCH + 3 * max(elements)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"parallel__reshard_after_forward": False}, "reshard_after_forward"),
        ({"parallel__fsdp_shards": 2}, "fsdp_shards"),
        ({"pytorch__reduce_dtype": "fp32"}, "reduce_dtype"),
        ({"pytorch__liger": ["fused_linear_cross_entropy"]}, "liger"),
        ({"parallel__offload": "parameters"}, "offload"),
        ({"model__experts": 4}, "experts"),
    ],
)
def test_what_stage_3_does_not_have_is_refused(
    changed: dict[str, Any], key: str
) -> None:
    """By the key, with what is expected instead."""
    with pytest.raises(InputError, match=key):
        plan(job({**SMALL, **_model(changed)}, **_others(changed)))


def _model(changed: dict[str, Any]) -> dict[str, Any]:
    found = {k: v for k, v in changed.items() if k.startswith("model__")}
    return {k.removeprefix("model__"): v for k, v in found.items()}


def _others(changed: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in changed.items() if not k.startswith("model__")}


def test_one_rank_shards_nothing() -> None:
    """With one data-parallel rank it is the plain run."""
    alone, plain = (
        predict(job(SMALL, 1, parallel__data_parallel=way)) for way in ("zero3", "none")
    )
    assert alone.step_time == plain.step_time


def test_a_search_simulates_it() -> None:
    """Beside stages 1 and 2."""
    found = search(job(SMALL), 2).ranked
    ways = {dict(one.candidate.chosen)["parallel.data_parallel"] for one in found}
    assert "zero3" in ways
