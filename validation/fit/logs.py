"""Rows of collectives and of overlap from logs of any kind, each told by its content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prestep.sim.errors import InputError, Mistake
from prestep.validation.formats import collective_reader, nccl_tests
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.overlap_rows import Overlap
from prestep.validation.formats.records import text_of

FORMATS = "logs of nccl-tests (text or JSON), or JSON lines of the harness"


def read_files(
    paths: Sequence[Path], cluster: str = "", op: str = ""
) -> tuple[list[Row], list[Overlap]]:
    """Rows of collectives and of overlap in all files, each told by its content.

    Raises
    ------
    InputError
        With every mistake in every file.
    """
    rows: list[Row] = []
    beside: list[Overlap] = []
    mistakes: list[Mistake] = []
    for path in paths:
        try:
            collectives, overlaps = _read_file(path, cluster, op)
            rows += collectives
            beside += overlaps
        except InputError as error:
            mistakes += [_hinted(mistake) for mistake in error.mistakes]
    InputError.check(mistakes)
    return rows, beside


def _read_file(path: Path, cluster: str, op: str) -> tuple[list[Row], list[Overlap]]:
    """Rows of one file: a log of nccl-tests, or lines of JSON."""
    text = text_of(path)
    if nccl_tests.is_log(text):
        if not cluster:
            expected = "--cluster: where these tests ran"
            raise InputError.of(path.name, "cluster", "nothing", expected)
        return nccl_tests.read(path, op, cluster), []
    if stranger := _stranger(text):
        raise InputError.of(path.name, "", *stranger)
    rows, overlaps = collective_reader.read_lines(path, cluster)
    return (
        [row for row in rows if not row.skip],
        [row for row in overlaps if not row.skip],
    )


def _stranger(text: str) -> tuple[str, str, str] | None:
    """What was found, what is expected and a hint, of a file that is no log at all."""
    head = text.lstrip()[:200]
    if head.startswith("{"):
        return None
    if head.startswith(("<system", "<graphs", "<?xml", "<!--")):
        return (
            "XML",
            FORMATS,
            "NCCL's topology has no times; `prestep topology import` reads it",
        )
    if not head:
        return "an empty file", FORMATS, ""
    return (
        f'"{head.splitlines()[0][:40]}..."',
        FORMATS,
        "the table needs its header: size, time, algbw",
    )


def _hinted(mistake: Mistake) -> Mistake:
    return (
        replace(mistake, hint=FORMATS)
        if mistake.expected == "one JSON object a line"
        else mistake
    )
