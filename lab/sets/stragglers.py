"""Sets of recorded jobs (`kind = "stragglers"` in set.toml): steps replayed, and what-ifs beside the authors' answers.

A row is a file `trace-NAME.parquet` with the answers beside it, `result-NAME.json`, as the artefact of "Understanding
Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025) names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.report.figures_of_rows import Figure, FiguresReport, report_on
from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.sim.replay.stragglers import Analysis, analyse
from prestep.sim.units import format_duration
from prestep.validation.formats.records import text_of
from prestep.validation.report.interface import Skip
from prestep.workloads.traces import jobs

REPLAYED, IDEAL, SLOWDOWN = "replayed step", "ideal step", "slowdown"
#: Key of set.toml with the limit on the worst error of a kind.
LIMITS = {REPLAYED: "replayed", IDEAL: "ideal", SLOWDOWN: "slowdown"}
#: Key of the authors' answers by what keeps its times.
BY = {
    "rank": "blocking_decompose_by_dp_rank",
    "stage": "blocking_decompose_by_stage",
    "kind": "blocking_decompose_by_optype",
}


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> FiguresReport:
    """Analyses the jobs of the set, or another one, and compares with the authors' answers.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """

    def show(kind: str, value: float) -> str:
        return f"{value:.4f}" if kind == SLOWDOWN else format_duration(value)

    return report_on(name, rows, LIMITS, _figures, show=show, worst=True)


def _figures(path: Path, _: list[Skip]) -> Iterator[Figure]:
    """What the trace and the authors say of a job, beside what is said here."""
    answers = _answers(path)
    made = analyse(jobs.read(path))
    job = path.stem.removeprefix("trace-")
    steps = zip(made.job.steps, made.recorded, made.replayed, made.ideal, strict=True)
    for step, recorded, replayed, ideal in steps:
        name = f"{job} step {step}"
        yield Figure(name, REPLAYED, float(recorded), float(replayed))
        published = answers["step_t_noblk"].get(str(step))
        if published is not None:
            yield Figure(name, IDEAL, float(published), float(ideal))
    yield Figure(job, SLOWDOWN, float(answers["blocking_slowdown"]), made.slowdown)
    yield from _decomposed(job, answers, made)


def _decomposed(
    job: str, answers: Mapping[str, Any], made: Analysis
) -> Iterator[Figure]:
    """Slowdowns by rank, stage and kind."""
    for what, key in BY.items():
        for who, published in answers[key].items():
            told = made.by[what].get(str(who))
            missing = "" if told is not None else f"no such {what}"
            predicted = float("nan") if told is None else told
            name = f"{job} {what} {who}"
            yield Figure(name, SLOWDOWN, float(published), predicted, missing)


def _answers(path: Path) -> dict[str, Any]:
    """The authors' answers, which lie beside a trace."""
    beside = path.with_name(path.stem.replace("trace-", "result-", 1) + ".json")
    answers: dict[str, Any] = files.json_of(text_of(beside))
    missing = [
        key
        for key in ("step_t_noblk", "blocking_slowdown", *BY.values())
        if not answers.get(key)
    ]
    if missing:
        expected = "the authors' answers"
        raise InputError(
            [Mistake(beside.name, key, "nothing", expected) for key in missing]
        )
    return answers
