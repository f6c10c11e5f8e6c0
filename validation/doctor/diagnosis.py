"""What a log says of its cluster: which sizes are slow, and which cause predicts the log best."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from prestep.sim.collectives.plan import nccl_of
from prestep.sim.costs.spreads import quantile
from prestep.sim.errors import PrestepError
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor.causes import Cause, Change, causes
from prestep.validation.doctor.normal import Part, parts_of
from prestep.validation.doctor.sweep import Situation, Size, Sweep

# A size counts as so far from its prediction at most: one that is further off does not outweigh the others.
MOST = 20.0  # standard deviations
# Two causes whose times differ by less at every size predict the same log: no measurement tells them apart.
SAME = 0.03
# A cause has to take away so much of what the log is off by.
LEAST_EXPLAINED = 0.2


class Sign(NamedTuple):
    """A line of a log that shows something: its place, and its text."""

    where: str
    text: str


@dataclass(frozen=True)
class Suspect:
    """A cause beside the log.

    Attributes
    ----------
    times : tuple of float
        Seconds of every size with the cause in the cluster, in its best form `change`.
    distance : float
        Mean distance of the log from them, standard deviations.
    explained : float
        Share of the log's distance from a normal one that the cause takes away.
    signs : tuple of Sign
        Lines of the log that show the cause.
    """

    name: str
    cause: Cause
    change: Change
    times: tuple[float, ...]
    distance: float
    explained: float
    signs: tuple[Sign, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether the log speaks for it: a line shows it, or with it the times are among those of good machines."""
        return bool(self.signs) or self.distance <= quantile()

    def predicts_as(self, other: Suspect) -> bool:
        """Whether no measurement could tell the two apart."""
        return all(
            abs(math.log(one / two)) < SAME
            for one, two in zip(self.times, other.times, strict=True)
        )


@dataclass(frozen=True)
class Diagnosis:
    """A log beside its cluster.

    Attributes
    ----------
    suspects : tuple
        Causes of an abnormal log, the likeliest first; those of one inner tuple no measurement like it tells apart.
    ruled_out : dict
        Causes that a line of the log excludes.
    signs : dict
        Lines that show a cause.
    """

    sweeps: tuple[Sweep, ...]
    suspects: tuple[tuple[Suspect, ...], ...] = ()
    ruled_out: Mapping[str, tuple[Sign, ...]] = field(default_factory=dict)
    signs: Mapping[str, tuple[Sign, ...]] = field(default_factory=dict)

    @property
    def parts(self) -> list[Part]:
        return [part for sweep in self.sweeps for part in parts_of(sweep)]

    @property
    def abnormal(self) -> bool:
        """Whether a part of a sweep is slower than good machines are; without times, whether a line shows a cause."""
        if self.sweeps:
            return any(part.abnormal for part in self.parts)
        return bool(self.signs)

    @property
    def verdict(self) -> str:
        """ "abnormal"; "normal", where good machines are so much alike that this says something; else "cannot tell"."""
        if self.abnormal:
            return "abnormal"
        told = self.parts and all(part.telling for part in self.parts)
        return "normal" if told else "cannot tell"


def diagnosed(here: Situation, lines: Sequence[Sign] = ()) -> Diagnosis:
    """The log of a situation; `lines` are those that NCCL_DEBUG wrote."""
    signs = _shown(lines)
    excluded = {name: found for name, found in _excluded(lines) if name not in signs}
    plain = Diagnosis(here.sweeps, (), excluded, signs)
    if not (plain.sweeps and plain.abnormal):
        return plain
    suspects = [
        suspect
        for name, cause in causes().items()
        if name not in excluded
        and (suspect := _suspect(here, name, cause, signs.get(name, ()))) is not None
    ]
    likely = sorted(
        (suspect for suspect in suspects if suspect.explained > LEAST_EXPLAINED),
        key=lambda suspect: (
            not suspect.signs,
            not suspect.supported,
            suspect.distance,
        ),
    )
    return replace(plain, suspects=tuple(_groups(likely)))


def _suspect(
    here: Situation, name: str, cause: Cause, signs: tuple[Sign, ...]
) -> Suspect | None:
    """A cause in the form of it that predicts the log best; None where no form is possible here."""
    forms = [
        (_distance(here.sizes, times), change, times)
        for change in cause.changes(here)
        if (times := _times(here, change)) is not None
    ]
    if not forms:
        return None
    distance, change, times = min(forms, key=lambda form: form[0])
    normal = _distance(here.sizes, [size.expected.time for size in here.sizes])
    explained = 1.0 - distance / normal if normal else 0.0
    return Suspect(name, cause, change, times, distance, explained, signs)


def _times(here: Situation, change: Change) -> tuple[float, ...] | None:
    """Seconds of every size with a change; None where the cluster has nothing to change."""
    try:
        fabric = with_overrides(here.fabric, change.links, "cause")
        nccl = nccl_of(vars(here.nccl) | dict(change.nccl), "cause")
        return tuple(here.times(fabric, nccl))
    except PrestepError:
        return None


def _distance(sizes: Sequence[Size], times: Sequence[float]) -> float:
    """Mean distance of measured times from others, standard deviations."""
    return statistics.fmean(
        min(MOST, abs(math.log(size.measured / time)) / size.expected.spread)
        for size, time in zip(sizes, times, strict=True)
    )


def _groups(ranked: Sequence[Suspect]) -> Iterator[tuple[Suspect, ...]]:
    """Ranked causes; those that predict the same log as a better one stand beside it."""
    left = list(ranked)
    while left:
        first = left[0]
        same = [one for one in left if one.predicts_as(first)]
        yield tuple(same)
        left = [one for one in left if one not in same]


def _shown(lines: Sequence[Sign]) -> dict[str, tuple[Sign, ...]]:
    """The lines that show a cause, by its name."""
    shown = {name: _matching(cause.signs, lines) for name, cause in causes().items()}
    return {name: signs for name, signs in shown.items() if signs}


def _excluded(lines: Sequence[Sign]) -> Iterator[tuple[str, tuple[Sign, ...]]]:
    """The lines that exclude a cause, by its name."""
    for name, cause in causes().items():
        if signs := _matching(cause.rules_out, lines):
            yield name, signs


def _matching(patterns: Sequence[str], lines: Sequence[Sign]) -> tuple[Sign, ...]:
    """The first line for each of the patterns that has one."""
    first = [
        next((line for line in lines if re.search(pattern, line.text)), None)
        for pattern in patterns
    ]
    return tuple(line for line in first if line is not None)
