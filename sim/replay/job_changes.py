"""What `--set` and `--free` do to a recorded job of which only the operations' times are known.

An operation may be made faster, slower or free by its kind, a data-parallel rank may compute slower, and the host may
pause for longer or not at all. Other changes need sizes, kernels or links, which the file does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.replay.stragglers import Times, family, step_times
from prestep.workloads.traces.changes import factor_of
from prestep.workloads.traces.operations import COMMUNICATION, Operations

SLOW_RANK, SLOW_FACTOR = "faults.slow_rank", "faults.slow_factor"
HOST = "cluster.host_factor"
SHORT = {key.partition(".")[2]: key for key in (SLOW_RANK, SLOW_FACTOR, HOST)}
COMPUTE, MOVED = "compute", "communication"
NOTHING = "the file has times of operations, and no sizes, kernels or links"


@dataclass(frozen=True)
class JobChanges:
    """Factors on the times of a job: by kind of operation, on pauses, and on the computing of one rank."""

    kinds: tuple[tuple[str, float], ...] = ()
    pauses: float = 1.0
    slow_rank: int | None = None
    slow_factor: float = 1.0

    def applied(self, job: Operations, times: Times) -> Times:
        """The times of the job with these changes."""
        factors = np.ones((len(job.slots), 1, job.ranks))
        for name, factor in self.kinds:
            factors[[is_of_kind(slot.kind, name) for slot in job.slots]] *= factor
        if self.slow_rank is not None:
            computes = [is_of_kind(slot.kind, COMPUTE) for slot in job.slots]
            factors[computes, :, self.slow_rank] *= self.slow_factor
        return Times(
            times.duration * factors,
            times.transfer * factors,
            times.pause * self.pauses,
        )


def is_of_kind(kind: str, name: str) -> bool:
    """Whether a name covers a kind of operation: its own, its family's, or one of all that computes or communicates."""
    group = MOVED if kind in COMMUNICATION else COMPUTE
    return name in (kind, family(kind), group)


def parse_changes(items: Iterable[str], job: Operations) -> JobChanges:
    """Reads `--set` texts for a job.

    Raises
    ------
    InputError
        With every text that is no change of it.
    """
    mistakes = list[Mistake]()
    kinds, keys = list[tuple[str, float]](), dict[str, float]()
    for text in items:
        key, equals, value = (part.strip().strip('"') for part in text.partition("="))
        key = SHORT.get(key, key)
        kind = key.partition("kernels.")[2].replace("_", "-")
        if not equals or not value:
            mistakes.append(Mistake("--set", text, "no value", "KEY=VALUE"))
        elif kind:
            mistakes += _no_kind(kind, job)
            kinds.append((kind, factor_of(key, value, mistakes)))
        elif key in (HOST, SLOW_FACTOR, SLOW_RANK):
            keys[key] = factor_of(key, value, mistakes)
        else:
            mistakes.append(_no_key(key))
    mistakes += _no_rank(keys, job)
    InputError.check(mistakes)
    rank = int(keys[SLOW_RANK]) if SLOW_RANK in keys else None
    return JobChanges(
        tuple(kinds), keys.get(HOST, 1.0), rank, keys.get(SLOW_FACTOR, 1.0)
    )


def _no_key(key: str) -> Mistake:
    """A change that needs what the file does not have."""
    hint = f"{NOTHING}; `kernels.{COMPUTE}=0.8x` makes computing faster"
    keys = ("kernels.KIND", HOST, SLOW_RANK, SLOW_FACTOR)
    return replace(unknown("--set", key, key, keys), hint=hint)


def _no_kind(name: str, job: Operations) -> Iterator[Mistake]:
    """A name that no operation of the job has."""
    kinds = {slot.kind for slot in job.slots}
    names = {COMPUTE, MOVED, *kinds, *map(family, kinds)}
    if name not in names:
        yield unknown("--set", "kernels", name, names)


def _no_rank(keys: dict[str, float], job: Operations) -> Iterator[Mistake]:
    """A slow rank that the job does not have, or a rank without its factor."""
    stated = [key for key in (SLOW_RANK, SLOW_FACTOR) if key in keys]
    if len(stated) == 1:
        expected = f"{SLOW_RANK} and {SLOW_FACTOR}"
        yield Mistake("--set", stated[0], f"{stated[0]} alone", expected)
    rank = keys.get(SLOW_RANK, 0.0)
    if rank != int(rank) or not 0 <= rank < job.ranks:
        expected = f"a data-parallel rank, 0 to {job.ranks - 1}"
        yield Mistake("--set", SLOW_RANK, f"{rank:g}", expected)


def free(job: Operations, times: Times) -> list[dict[str, Any]]:
    """The step if each kind of operations, or the host, took no time: {"free", "step_time", "saved"}, most first."""
    base = float(step_times(job, times).mean())
    families = sorted({family(slot.kind) for slot in job.slots})
    changes: Sequence[tuple[str, JobChanges]] = [
        *((name, JobChanges(((name, 0.0),))) for name in families),
        ("host", JobChanges(pauses=0.0)),
    ]
    rows = list[dict[str, Any]]()
    for name, change in changes:
        time = float(step_times(job, change.applied(job, times)).mean())
        rows.append({"free": name, "step_time": time, "saved": base - time})
    return sorted(rows, key=lambda row: -float(row["saved"]))
