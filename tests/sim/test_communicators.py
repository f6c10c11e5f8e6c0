"""Settings of one axis's communicators reach those and no others, and have a direction."""

from __future__ import annotations

import pytest

from prestep.sim.planning.planned import Planned
from prestep.sim.predict import plan
from prestep.sim.spec.load import parse_scenario

STEP = {
    "cluster": {"name": "dgx-h100-superpod", "hosts": 2},
    "model": {"name": "llama3-8b", "layers": 4},
    "training": {"framework": "megatron", "seq_len": 2048, "global_batch": 16},
    "parallel": {"tp": 2, "pp": 2, "dp": 4, "data_parallel": "zero1"},
}


def planned(**nccl: dict[str, int]) -> Planned:
    return plan(parse_scenario({**STEP, "nccl": nccl}, "test"))


def of(axis: str, step: Planned) -> tuple[tuple[int, float], ...]:
    """Channels of an axis's communications, which are SMs, and the seconds that each takes alone."""
    bandwidth = step.fabric.links.bandwidth
    pairs = zip(step.graph.comms, step.plans, strict=True)
    return tuple(
        (p.channels, p.duration(bandwidth)) for c, p in pairs if c.axis == axis
    )


@pytest.fixture(scope="module")
def usual() -> Planned:
    return planned()


@pytest.mark.parametrize("axis", ["dp", "pp"])
def test_fewer_channels_of_one_axis(usual: Planned, axis: str) -> None:
    """One CTA for an axis: its communications hold one SM and are no faster alone; those of other axes stay."""
    few = planned(**{axis: {"max_ctas": 1}})
    before, after = of(axis, usual), of(axis, few)
    assert any(channels > 1 for channels, _ in before)
    assert all(channels == 1 for channels, _ in after)
    pairs = list(zip(before, after, strict=True))
    assert all(late >= soon * (1 - 1e-9) for (_, soon), (_, late) in pairs)
    assert any(late > 1.2 * soon for (_, soon), (_, late) in pairs)
    for other in {comm.axis for comm in usual.graph.comms} - {axis}:
        assert of(other, few) == of(other, usual)
