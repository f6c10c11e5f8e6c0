"""Laws of gradients of the head's weights that wait for the pipeline's end (megatron.defer_embedding_wgrad_compute)."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario
from tests.executed import executed, step_time
from tests.workloads.test_megatron_schedules import computed, kept, scenario

MICROBATCHES = 12
REPLICAS = {
    "dp": 2,
    "data_parallel": "zero1",
}
ON = {"defer_embedding_wgrad_compute": True}


def wide(
    schedule: str,
    megatron: dict[str, Any],
    parallel: dict[str, Any] | None = None,
    **changes: Any,
) -> Scenario:
    """Four stages, the last of which has a head as long as several layers."""
    vocab = {"vocab": 131072, **changes}
    return scenario(schedule, parallel, MICROBATCHES, megatron=dict(megatron), **vocab)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize("parallel", [{}, REPLICAS], ids=["alone", "replicas"])
def test_the_head_no_longer_holds_up_the_pipeline(
    schedule: str, parallel: dict[str, Any]
) -> None:
    """The same is computed, sooner; what the products need is kept until then, on the last stage alone."""
    usual = executed(wide(schedule, {}, parallel))
    late = executed(wide(schedule, ON, parallel))
    assert computed(late) == pytest.approx(computed(usual))
    assert step_time(late) < 0.96 * step_time(usual)
    *before, last = kept(usual)
    *now, most = kept(late)
    assert now == pytest.approx(before)
    assert most > last


def test_more_microbatches_that_wait_take_less_time_and_more_memory() -> None:
    """From none to all; a limit of all microbatches is none."""
    limits = (1, 4, 8, MICROBATCHES)
    found = [executed(wide("1f1b", {**ON, "wgrad_deferral_limit": n})) for n in limits]
    usual, every = executed(wide("1f1b", {})), executed(wide("1f1b", ON))
    times = [step_time(one) for one in (usual, *found)]
    assert times == sorted(times, reverse=True)
    memory = [kept(one)[-1] for one in (usual, *found)]
    assert memory == sorted(memory)
    assert times[-1] == step_time(every)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_gradients_are_reduced_behind_the_last_product(
    schedule: str, overlaps: bool
) -> None:
    """As many bytes are exchanged, and the head's last product is in front of the reductions of its stage."""
    graphs = []
    for switch in ({}, ON):
        megatron = {**switch, "overlap_grad_reduce": overlaps}
        graphs.append(executed(wide(schedule, megatron, REPLICAS)).lowered.graph)
    usual, late = graphs
    assert sum(c.size for c in late.comms) == pytest.approx(
        sum(c.size for c in usual.comms)
    )
    program = late.programs[-1]
    names = list(program.names)
    last = max(i for i, name in enumerate(names) if name == "head weight gradient")
    reduced = [i for i, name in enumerate(names) if "reduce" in name]
    assert reduced and min(reduced) > last


def test_one_stage_has_nothing_to_wait_for() -> None:
    """Without a pipeline the switch has no part, and the user is told."""
    alone = {"pp": 1}
    usual = predict(wide("1f1b", {}, alone))
    late = predict(wide("1f1b", ON, alone))
    assert late.step_time == usual.step_time
    assert any("defer_embedding_wgrad_compute" in text for text in late.warnings)


@pytest.mark.parametrize(
    ("schedule", "parallel", "megatron", "words"),
    [
        ("zero-bubble", {}, {}, "gradients of all weights"),
        ("1f1b", {}, {"gradient_accumulation_fusion": False}, "Megatron adds them"),
        ("1f1b", {"dp": 2, "data_parallel": "fsdp"}, {}, "no gradient of the head"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    schedule: str, parallel: dict[str, Any], megatron: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        wide(schedule, {**ON, **megatron}, parallel)
