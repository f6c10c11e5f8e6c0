"""A timeline is columns of spans that obey the laws of time."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.analysis.arrow import arrow_schema, from_arrow, to_arrow
from prestep.sim.analysis.timeline import (
    SPANS,
    Timeline,
    Words,
    group_ranks,
    group_text,
)
from prestep.sim.errors import PrestepError
from tests.sim.synthetic import timeline
from tests.sim.timeline_laws import check


def one(**changes: object) -> Timeline:
    values = {
        "rank": 0,
        "stream": ["s", "s"],
        "kind": "kernel",
        "name": "k",
        "start": [0.0, 2.0],
        "end": [1.0, 3.0],
    }
    return Timeline.build(**{**values, **changes})


def test_columns_have_the_types_of_the_schema() -> None:
    """Every column of SPANS is there, in its type, whatever was given."""
    spans = one()
    for name, kind in SPANS.items():
        assert spans[name].dtype == (object if kind == "text" else np.dtype(kind))
    assert np.isnan(spans["launch"]).all() and (spans["ready"] == spans["start"]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"begin": [0.0]}, "unknown columns begin"),
        ({"kind": "kernal"}, "found kernal, expected one of kernel"),
        ({"end": [1.0]}, "different lengths"),
    ],
)
def test_wrong_columns_are_refused(changes: dict[str, object], words: str) -> None:
    """A mistake in the columns is an error that names it."""
    with pytest.raises(PrestepError, match=words):
        one(**changes)


def test_a_missing_column_is_refused() -> None:
    """Rank, stream, kind, name, start and end must be given."""
    with pytest.raises(
        PrestepError, match="missing columns rank, stream, kind, name, end"
    ):
        Timeline.build(start=[0.0])


def test_arrow_and_back_loses_nothing() -> None:
    """to_arrow and from_arrow are inverse, and the table has the published schema."""
    spans = timeline(ranks=2)
    table = to_arrow(spans)
    assert table.schema.equals(arrow_schema())
    back = from_arrow(table)
    assert all(np.array_equal(spans[name], back[name]) for name in SPANS)


def test_selection_by_rank_step_and_window() -> None:
    """Selections keep whole spans, and only those asked for."""
    spans = timeline(ranks=2, steps=2)
    assert set(spans.of_rank(1)["rank"]) == {1}
    assert set(spans.of_step(1)["step"]) == {1}
    assert list(spans.of_rank(0).window(200e-6, 242e-6)["name"]) == [
        "gemm_dgrad",
        "all_reduce",
    ]
    assert spans.ranks == (0, 1) and spans.steps == (0, 1)
    joined = Timeline.concatenate([spans.of_rank(0), spans.of_rank(1)])
    assert len(joined) == len(spans) and len(Timeline.concatenate([])) == 0


def test_coded_texts_are_taken_as_they_are() -> None:
    """An engine can hand over codes and words without making a text per row."""
    spans = one(stream=Words(np.array([1, 0]), ("dp", "compute")))
    assert list(spans["stream"]) == ["compute", "dp"]
    assert list(spans.matches("stream", "dp")) == [False, True]


def test_the_synthetic_timeline_obeys_the_laws() -> None:
    """check says nothing when nothing is wrong."""
    check(timeline(ranks=2, steps=3))


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        (
            {"start": [0.0, 0.5]},
            "starts before the previous span of its stream has ended",
        ),
        ({"end": [1.0, 1.0]}, "ends before it starts"),
        ({"launch": [0.0, 2.5]}, "starts before the host has launched it"),
        ({"ready": [0.0, 4.0]}, "is ready outside its own time"),
        ({"end": [1.0, np.nan]}, "has no finite start and end"),
    ],
)
def test_check_refuses_what_cannot_be(changes: dict[str, object], law: str) -> None:
    """Each broken law is an error that names the law, the rank and the stream."""
    with pytest.raises(PrestepError, match=f"rank 0, stream s.*{law}"):
        check(one(**changes))


def test_streams_may_overlap_each_other() -> None:
    """Only spans of one stream of one rank exclude each other."""
    check(one(start=[0.0, 0.5], stream=["s", "t"]))
    check(one(start=[0.0, 0.5], rank=[0, 1]))


@given(st.sets(st.integers(0, 99), min_size=1))
def test_groups_are_written_and_read(ranks: set[int]) -> None:
    """group_ranks is the inverse of group_text."""
    assert group_ranks(group_text(sorted(ranks))) == tuple(sorted(ranks))


def test_groups_are_short() -> None:
    """A regular group takes a few characters however large it is."""
    assert group_text(range(16384)) == "0-16383"
    assert group_text([1, 5, 9]) == "1-9:4"
    with pytest.raises(PrestepError, match="expected ranks such as"):
        group_ranks("a-b")


def test_pyarrow_is_imported_only_when_needed() -> None:
    """The command line's help must not pay for Arrow."""
    code = "import prestep.sim.analysis.timeline, sim.analysis.metrics, sim.analysis.prediction, sim.exporters, sys; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
