"""Memory over the step and the critical path in the report: their sums are those of the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prestep import cli
from prestep.sim.analysis.critical_path import CriticalPath, Segment
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import html
from prestep.sim.exporters._html.over_time import COLUMNS, alive, lanes
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario

EXAMPLES = Path(cli.__file__).parent / "examples"
CASES = {
    "ddp": ("1b-ddp.toml", ("model.layers=3",)),
    "early stop": ("8b-fsdp-recompute.toml", ("model.layers=3",)),
    "pipeline": (
        "pipeline-zero-bubble.toml",
        ("model.layers=4", "training.microbatches=4"),
    ),
    "graph": (
        "1b-ddp.toml",
        ("model.layers=3", "training.framework=cuda-graph", "training.global_batch=8"),
    ),
    "megatron": ("1b-ddp.toml", ("model.layers=3", "training.framework=megatron")),
    "convolutions": ("resnet50.toml", ()),
}


@pytest.fixture(scope="module", params=CASES)
def result(request: pytest.FixtureRequest) -> Prediction:
    name, changes = CASES[request.param]
    return predict(load_scenario(EXAMPLES / name, changes))


def test_the_fullest_moment_is_the_peak(result: Prediction) -> None:
    """The highest sum over the step is the lowered step's peak, with the same owners, and nothing is negative."""
    assert result.details is not None and result.fullest_rank is not None
    found = alive(result.details, result.fullest_rank)
    assert found is not None
    logs = result.details.allocations
    memory = logs[found.rank if found.rank in logs else 0].memory
    total = np.sum(list(found.owners.values()), axis=0)
    assert (
        total.max() == pytest.approx(memory.peak)
        and min(size.min() for size in found.owners.values()) >= 0
    )
    at = int(total.argmax())
    for owner, size in found.owners.items():
        assert size[at] == pytest.approx(memory.at_peak[owner], abs=1.0)
    assert found.owners["parameters"].min() > 0


def test_the_report_shows_path_and_memory(result: Prediction) -> None:
    """Both sections stand, and the path's parts are in the table."""
    page = html.render(result)
    assert (
        'id="critical"' in page
        and "over the last step by owner" in page
        and "The critical path by rank" in page
    )


def test_columns_of_the_path_follow_its_segments() -> None:
    """Every column is on one rank, the longest segment's; together they cover the path."""
    path = CriticalPath(
        (
            Segment(0, "kernel", "a", 0.0, 1.0, family="gemm"),
            Segment(3, "communication", "b", 1.0, 1.5, axis="dp"),
            Segment(0, "host", "c", 1.5, 2.0),
        ),
        0.0,
        2.0,
    )
    found = lanes(path)
    assert (
        list(found) == [0, 3]
        and sum(n for row in found.values() for _, n, _ in row) == COLUMNS
    )
    assert found[3] == [(COLUMNS // 2, pytest.approx(COLUMNS / 4, abs=1), "dp")]
    assert [colour for *_, colour in found[0]] == ["forward", "host"]
