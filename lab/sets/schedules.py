"""Sets of pipeline schedules (`kind = "schedules"` in set.toml): one model under each, over the same under 1F1B.

A row is a line of a CSV with a section, a schedule as its authors call it, chunks on a rank, tokens a second and
device, and peak memory. The sections' scenarios are in set.toml. The 1F1B row of a section is what the others are
judged over, and what a GPU's share of its peak was fitted on: it is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab.formats.csv_rows import csv_rows
from lab.formats.published_columns import MOST, natural
from lab.report.figures_of_rows import Figure, FiguresReport, report_on
from prestep.sim import progress
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.validation.report.interface import Skip
from prestep.validation.sets.sets import folder_of, set_table

Named = TypeVar("Named")
SPEED, MEMORY = "speed over 1F1B", "memory over 1F1B"
#: Key of set.toml with the limit on the mean error of a kind.
LIMITS = {SPEED: "speed", MEMORY: "memory"}
BASE = "1f1b"
#: Schedules by the words of Primus's names, the longest first.
NAMES = (
    ("1f1b-interleaved", "interleaved"),
    ("zero-bubble", "zero-bubble"),
    ("v-half", "v-half"),
    ("v-min", "v-min"),
    ("zbb", "zero-bubble"),
    ("zbv", "zbv"),
    ("1f1b", BASE),
)
#: Its zero bubble has one chunk in the code, whatever the table says.
ONE_CHUNK = (BASE, "zero-bubble")
EXPECTED = "a CSV file of pipeline schedules"
COLUMNS = (
    "section",
    "vpp",
    "schedule",
    "tokens_s_per_device",
    "max_memory_GB",
)


@dataclass(frozen=True)
class Row:
    """A schedule that was measured; tokens/s of one GPU, and its peak memory in any unit.

    Attributes
    ----------
    name
        The schedule as the file calls it, and the section's scenario.
    scenario
        The section's file.
    schedule, chunks
        As prestep calls it, and stages on a rank.
    """

    name: str
    scenario: Path
    schedule: str
    chunks: int
    tokens: float
    memory: float


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> FiguresReport:
    """Predicts every schedule of a set, or of another file in the same format.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    folder, table = folder_of(name), set_table(name)
    sections = {words: folder / file for words, file in table["sections"].items()}

    def figures_of(path: Path, skips: list[Skip]) -> Iterator[Figure]:
        """Figures of each section's rows."""
        every = list(rows_of(path, sections, skips))
        for scenario in dict.fromkeys(row.scenario for row in every):
            mine = [row for row in every if row.scenario == scenario]
            yield from _figures(mine, str(path))

    def show(_: str, ratio: float) -> str:
        return f"{ratio:.3f}"

    return report_on(name, rows, LIMITS, figures_of, show=show)


def rows_of(
    path: Path, sections: Mapping[str, Path], skips: list[Skip]
) -> Iterator[Row]:
    """The measured rows of a file; those that did not run are added to `skips`.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    mistakes: list[Mistake] = []
    rows: list[Row] = []
    for number, fields in enumerate(csv_rows(path, COLUMNS, EXPECTED), 2):
        try:
            row = _row(fields, f"{path}:{number}", sections)
        except InputError as error:
            mistakes += error.mistakes
            continue
        if isinstance(row, Skip):
            skips.append(row)
        else:
            rows.append(row)
    if mistakes:
        raise InputError(mistakes)
    yield from rows


def _row(
    fields: Mapping[str, str], where: str, sections: Mapping[str, Path]
) -> Row | Skip:
    """A row, or one that ran out of memory; raises InputError with what is wrong."""
    called, section = fields["schedule"], fields["section"]
    schedule, scenario = _named(called.lower(), dict(NAMES)), _named(section, sections)
    mistakes = []
    if schedule is None:
        known = ", ".join(words for words, _ in NAMES)
        mistakes.append(Mistake(where, "schedule", f'"{called}"', f"one of {known}"))
    if scenario is None:
        known = ", ".join(sections)
        mistakes.append(Mistake(where, "section", f'"{section}"', f"words of {known}"))
    if schedule is None or scenario is None:
        raise InputError(mistakes)
    name = f"{scenario.stem} {called}"
    if fields["tokens_s_per_device"] == "OOM":
        return Skip(name, where, "it ran out of memory")
    chunks = 1 if schedule in ONE_CHUNK else _chunks(called, fields["vpp"])
    return Row(name, scenario, schedule, chunks, *_measured(fields, where))


def _measured(fields: Mapping[str, str], where: str) -> tuple[float, float]:
    """Tokens a second, and memory."""
    texts = fields["tokens_s_per_device"], fields["max_memory_GB"]
    tokens, memory = map(_number, texts)
    if tokens is None or memory is None:
        expected = "tokens a second, and memory"
        raise InputError(Mistake(where, "", " and ".join(texts), expected))
    return tokens, memory


def _named(text: str, table: Mapping[str, Named]) -> Named | None:
    """What the first words of a table that are in a text stand for."""
    return next((value for words, value in table.items() if words in text), None)


def _number(text: str) -> float | None:
    """A number above 0 that may have been measured, else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 1 / MOST < value < MOST else None


def _chunks(called: str, column: str) -> int:
    """Stages on a rank: as the schedule's name ends ("vpp4"), else as the column says, else two."""
    said = re.search(r"vpp(\d+)", called)
    return natural(said[1] if said else column) or 2


def _figures(rows: Sequence[Row], where: str) -> Iterator[Figure]:
    """Both ratios of every schedule of a section to its 1F1B."""
    base = next((row for row in rows if row.schedule == BASE), None)
    if base is None:
        found = ", ".join(row.name for row in rows)
        raise InputError(
            Mistake(where, "schedule", found, f"a row of {BASE} among them")
        )
    under = _predicted(base)
    for row in progress.track(list(rows), "schedules"):
        if row is base:
            continue
        try:
            mine, error = _predicted(row), ""
        except PrestepError as refused:
            mine, error = (1.0, 1.0), str(refused)
        speed, memory = under[0] / mine[0], mine[1] / under[1]
        yield Figure(row.name, SPEED, row.tokens / base.tokens, speed, error)
        yield Figure(row.name, MEMORY, row.memory / base.memory, memory, error)


def _predicted(row: Row) -> tuple[float, float]:
    """Seconds of the step, and bytes at the peak."""
    wanted = [f"parallel.schedule={row.schedule}", f"parallel.vpp={row.chunks}"]
    step = predict(load_scenario(row.scenario, wanted))
    return step.step_time, max(held.total for held in step.peak_memory.values())
