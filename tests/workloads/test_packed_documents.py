"""Laws of packed samples in Megatron's layers: what the host does once for each document."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.analysis.effects import step_time as time_of
from prestep.sim.predict import execute, plan
from prestep.sim.spec.load import parse_scenario

#: Layers whose GPU has next to nothing to do.
SMALL = {
    "kind": "transformer",
    "hidden": 256,
    "layers": 4,
    "heads": 4,
    "ffn": 512,
    "vocab": 1024,
}


def seconds(
    packed: int | None, parallel: dict[str, Any] | None = None, **megatron: Any
) -> float:
    """A step of 4,096 tokens a rank that the host bounds."""
    training = {"framework": "megatron", "seq_len": 4096, "precision": "bf16"}
    split = {"dp": 4, "data_parallel": "ddp"} | (parallel or {})
    planned = plan(
        parse_scenario(
            {
                "cluster": {"name": "dgx-h100", "gpus": 4},
                "model": SMALL,
                "training": training | ({"packed": packed} if packed else {}),
                "parallel": split,
                "megatron": megatron,
            },
            "test",
        )
    )
    return time_of(planned, execute(planned))


HEADS = {"dp": 2, "cp": 2, "ring_degree": 1}


@pytest.mark.parametrize(
    ("parallel", "fused"),
    [({}, False), (HEADS, True)],
    ids=["rotation by plain operators", "all-to-alls of heads"],
)
def test_the_host_takes_each_document_by_itself(
    parallel: dict[str, Any], fused: bool
) -> None:
    """Twice the documents take twice the host's time more: the third step of halves is as much as both before."""
    long, middle, short = (
        seconds(length, parallel, rope_fusion=fused) for length in (512, 256, 128)
    )
    assert short - middle == pytest.approx(2 * (middle - long), rel=0.1)
    assert middle > 1.2 * long


@pytest.mark.parametrize("parallel", [{}, {"dp": 2, "cp": 2}])
def test_fused_rotation_and_rings_take_all_documents_at_once(
    parallel: dict[str, Any],
) -> None:
    """One kernel reads where documents end: as many of half the length take the host no longer."""
    long, short = (seconds(length, parallel, rope_fusion=True) for length in (256, 128))
    assert short <= long
