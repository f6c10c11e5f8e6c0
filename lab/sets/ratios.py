"""What a change did to the step: a row against its base, the same step without the change.

======================  ==========================================================================================
row                     base
======================  ==========================================================================================
one slow rank           the same case with none
fewer NCCL channels     the same case with NCCL's own choice; without such a row, the one with the most channels
`4x1-nic16-spine8`      `4x1-nic16-spine16` (leaves joined at the rate of a port), else with ports of 16 Gbit/s
`...-n3nic4`            the same label without the slow port
`shared-n0n2-...`       the same case `alone-...` at the same rates
======================  ==========================================================================================

Bases are looked for in the row's own file first, then among the other rows of the set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from lab.formats.shared_jobs import ALONE, JOB_LABEL, JobRow
from prestep.validation.formats.rows import BOOKKEEPING, Row

_CHANNELS = re.compile(r"ch(\d+)")
_CHANNEL_KEYS = ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS")
_RATES = re.compile(
    r"(?P<shape>(?:\d+x\d+-)?)nic(?P<nic>[\d.]+)-spine(?P<spine>[\d.]+)(?P<slow>(?:-n\d+nic[\d.]+)*)"
)
USUAL = "nic16-spine16"
Alike = Mapping[str, Sequence[JobRow]]


def by_step(rows: Sequence[JobRow]) -> Alike:
    """Measured rows by their step: those of one step differ in nothing but what a ratio is about.

    Of rows that are alike in that too, two are kept: the first one, and one more where the first asks for its own base.
    """
    steps: dict[str, dict[tuple[str, bool], list[JobRow]]] = {}
    for row in rows:
        if row.error:
            continue
        kind = row.label, bool(row.case.get("slow"))
        same = steps.setdefault(_step(row), {}).setdefault(kind, [])
        if len(same) < 2:
            same.append(row)
    return {
        step: [row for same in kinds.values() for row in same]
        for step, kinds in steps.items()
    }


def base_of(row: JobRow, rows: Alike) -> JobRow | None:
    """The row that `row` is to be compared with: the first of `rows` that fits best; None if it is a base itself."""
    alike = [other for other in rows.get(_step(row), ()) if other is not row]
    for label, slow in _bases(row):
        for other in alike:
            if other.label == label and bool(other.case.get("slow")) == slow:
                return other
    if _CHANNELS.fullmatch(row.label):
        wider = [other for other in alike if _channels(other) > _channels(row)]
        return max(wider, key=_channels, default=None)
    if (job := JOB_LABEL.fullmatch(row.label)) and job["how"] != ALONE:
        for other in alike:
            its = JOB_LABEL.fullmatch(other.label)
            if its and its["how"] == ALONE and its["cluster"] == job["cluster"]:
                return other
    return None


def _bases(row: Row) -> Iterator[tuple[str, bool]]:
    """Labels of a base, best first, and whether it has the slow rank too."""
    if row.case.get("slow"):
        yield row.label, False
        return
    if _CHANNELS.fullmatch(row.label):
        yield "default", False
    job = JOB_LABEL.fullmatch(row.label)
    if job and job["how"] != ALONE:
        yield f"{ALONE}-{job['hosts']}-{job['cluster']}", False
        return
    head = row.label.removesuffix(job["cluster"]) if job else ""
    if rates := _RATES.fullmatch(row.label.removeprefix(head)):
        labels = [
            rates["shape"] + f"nic{rates['nic']}-spine{rates['nic']}",
            rates["shape"] + USUAL,
        ]
        if rates["slow"]:
            labels.insert(0, row.label.removeprefix(head).removesuffix(rates["slow"]))
        yield from (
            (head + label, False) for label in labels if head + label != row.label
        )


def _step(row: Row) -> str:
    case = {
        key: value
        for key, value in row.case.items()
        if key not in BOOKKEEPING | {"slow"}
    }
    env = {key: value for key, value in row.env.items() if key not in _CHANNEL_KEYS}
    return json.dumps([case, row.world, env], sort_keys=True)


def _channels(row: Row) -> float:
    match = _CHANNELS.fullmatch(row.label)
    return float(match[1]) if match else 0.0
