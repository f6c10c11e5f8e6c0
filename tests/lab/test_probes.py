"""Questions that nobody has measured: all have answers, and an answer that moves is listed and fails nothing."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.fit import constants
from lab.sets import cluster_questions, questions
from lab.sets import probes as probe_sets
from lab.sets.answer import Answer
from prestep import cli
from prestep.sim.errors import InputError
from prestep.validation.report.against import against

QUICK = (
    questions.of_hosts,
    questions.of_tables,
    questions.of_interference,
    questions.of_storage,
    questions.of_widths,
    questions.of_reliability,
)


def sound(answers: Iterator[Answer]) -> list[Answer]:
    """Answers that are numbers under names of their own."""
    found = list(answers)
    assert len({answer.name for answer in found}) == len(found) > 20
    assert all(math.isfinite(answer.value) for answer in found)
    return found


@pytest.mark.parametrize("ask", QUICK, ids=lambda ask: str(ask.__name__))
def test_every_question_has_an_answer(ask: Callable[[], Iterator[Answer]]) -> None:
    """A number, and a name that no other question has."""
    sound(ask())


def test_gpus_and_clusters_are_asked_alike() -> None:
    """The same kernels on every GPU; links and collectives of a cluster of one host and of a network."""
    kernels = [
        answer.name
        for answer in sound(questions.of_gpus("h200", "b200"))
        if answer.slice == "kernels"
    ]
    ours, theirs = (
        sorted(n.partition(" ")[2] for n in kernels if n.startswith(gpu))
        for gpu in ("h200", "b200")
    )
    # A B200 has units for formats that an H200 lacks.
    own = {"mxfp8", "nvfp4"}
    assert ours == [name for name in theirs if not own & {*name.split()}]
    asked = [
        answer.name
        for answer in sound(
            cluster_questions.of_clusters("h200-host-4", "h200-leafspine-2x2")
        )
    ]
    assert any("over nvlink" in name for name in asked)
    assert any("all_reduce ring LL128" in name for name in asked)


def report(*answers: Answer) -> dict[str, object]:
    return probe_sets.ProbeReport("probes", "", answers).to_json()


def test_an_answer_that_moves_is_listed_and_fails_nothing() -> None:
    """Nothing is measured, so nothing got worse; 0 that stays 0 has not moved."""
    base = report(
        Answer("a", "s", 1.0), Answer("zero", "s", 0.0), Answer("same", "s", 2.0)
    )
    now = report(
        Answer("a", "s", 1.1), Answer("zero", "s", 0.0), Answer("same", "s", 2.0)
    )
    found = against([base], [now], "base")
    assert [(move.name, round(move.moved, 3)) for move in found.moves] == [("a", 0.1)]
    assert all(check.passed for check in found.checks)
    assert not found.exact.passed
    told = next(iter(found.tables()))
    assert told.rows == [("probes", "a", "s", "1", "1.1", "+10.00%", "", "", "")]


def test_a_measured_case_whose_error_vanishes_is_no_answer() -> None:
    """An error that is not a number any more is never good, with a measurement or without the key."""
    base = {
        "set": "s",
        "cases": [{"id": "a", "measured": 1.0, "predicted": 1.0, "signed_error": 0.0}],
    }
    now = {
        "set": "s",
        "cases": [{"id": "a", "measured": 1.0, "predicted": 1.0, "signed_error": None}],
    }
    assert not all(check.passed for check in against([base], [now], "base").checks)


def test_answers_that_are_none_or_twice_fail() -> None:
    """No answers, one that is not a number, two of one name."""
    for answers in (
        (),
        (Answer("a", "s", math.nan),),
        (Answer("a", "s", 1.0), Answer("a", "s", 2.0)),
    ):
        assert not probe_sets.ProbeReport("probes", "", answers).passed
    with pytest.raises(InputError, match="no measurements"):
        probe_sets.validate_set("probes", rows="x.csv")


def test_the_writers_take_a_set_without_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table, JSON, JUnit, Markdown and HTML of answers alone."""
    monkeypatch.setattr(probe_sets, "answers", lambda: iter([Answer("a", "s", 1.0)]))
    files = {name: tmp_path / name for name in ("a.html", "a.md", "a.xml")}
    words = [
        "--html",
        str(files["a.html"]),
        "--markdown",
        str(files["a.md"]),
        "--junit",
        str(files["a.xml"]),
    ]
    done = CliRunner().invoke(cli.main, ["validate", "probes", *words])
    assert done.exit_code == 0, done.output
    assert all(path.stat().st_size for path in files.values())
    told = json.loads(
        CliRunner().invoke(cli.main, ["validate", "probes", "--json"]).stdout
    )
    assert told["cases"] == [
        {"id": "a", "slice": "s", "predicted": 1.0, "measured": None}
    ]


def test_every_constant_has_a_place_of_its_own() -> None:
    """Names and places are unique, and the number is there: what `--sample` changes is what it says."""
    found = dict(constants.every_constant())
    places = {(c.file, c.line, c.after, c.which) for c in found.values()}
    assert len(places) == len(found) > 1500
    known = {
        path
        for pattern in (*constants.TABLES, *constants.KERNELS)
        for path in constants.HOME.glob(pattern)
    }
    assert {constants.HOME / c.file for c in found.values()} <= known


def test_a_sample_of_constants_is_always_the_same_and_grows() -> None:
    """By a checksum of the names: a larger sample has the smaller one in it."""
    assert constants.sampled(12) == constants.sampled(12)
    for small, large in itertools.pairwise((8, 16, 32)):
        assert set(constants.sampled(small)) < set(constants.sampled(large))
    assert not [
        name
        for name in constants.sampled(200)
        if "source" in name or "evidence" in name
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("known_reports")
def test_the_whole_set_has_answers() -> None:
    """What `prestep validate probes` asks, every question once."""
    assert CliRunner().invoke(cli.main, ["validate", "probes"]).exit_code == 0
