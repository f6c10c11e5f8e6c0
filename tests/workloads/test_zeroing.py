"""Gradients that are freed after the step, or zeroed and kept."""

from __future__ import annotations

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.lowered import Lowered
from tests.executed import executed
from tests.workloads.small import lowered

ZERO = "aten _foreach_zero_"


def kinds(made: Lowered) -> list[str]:
    return [
        made.graph.kernels[k].kind
        for k, kind in zip(
            made.graph.programs[0].payload, made.graph.programs[0].kind, strict=True
        )
        if kind == 0
    ]


@pytest.mark.parametrize("parallel", [{}, {"dp": 2, "data_parallel": "ddp"}])
def test_kept_gradients_are_zeroed_and_added_to(parallel: dict[str, object]) -> None:
    """One kernel zeroes all of them; backward adds each new gradient to the kept one."""
    freed, kept = (
        lowered(training={"set_to_none": flag}, **parallel) for flag in (True, False)
    )
    parameters = sum(1 for kind in kinds(kept) if kind == "aten add") - sum(
        1 for kind in kinds(freed) if kind == "aten add"
    )
    assert (
        parameters > 30
        and kinds(kept).count(ZERO) == 1
        and kinds(freed).count(ZERO) == 0
    )
    assert kept.memory[0].peak >= freed.memory[0].peak


def test_kept_gradients_of_shards_are_added_to() -> None:
    """FSDP adds each parameter's new shard to the kept one, beside the reduce-scatters."""
    freed, kept = (
        lowered(training={"set_to_none": flag}, dp=2, data_parallel="fsdp")
        for flag in (True, False)
    )
    parameters = kinds(kept).count("aten add") - kinds(freed).count("add")
    assert (
        parameters > 30
        and kinds(kept).count(ZERO) == 1
        and kinds(freed).count(ZERO) == 0
    )
    assert kept.memory[0].peak >= freed.memory[0].peak


@pytest.mark.parametrize("fault", [{"slow_factor": 1.2}, {"slow_per_layer": "1 ms"}])
def test_a_slowness_without_a_rank_is_a_mistake(fault: dict[str, object]) -> None:
    """Nobody is slow unless slow_rank says who."""
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": {"name": "llama3-125m-plain"},
        "parallel": {"dp": 4},
        "faults": fault,
    }
    with pytest.raises(InputError, match="slow_rank beside it"):
        executed(parse_scenario(tables, "slow.toml"))
