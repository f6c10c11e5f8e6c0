"""What a log says of its cluster: which sizes are slow, and which cause predicts the log best."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from prestep.sim.costs.spreads import quantile
from prestep.sim.errors import PrestepError
from prestep.validation.doctor import choices
from prestep.validation.doctor.causes import Cause, causes
from prestep.validation.doctor.normal import Part, limit, parts_of
from prestep.validation.doctor.stuck import Delay
from prestep.validation.doctor.sweep import Change, Situation, Size, Sweep

# A size counts as so far from its prediction at most: one that is further off does not outweigh the others.
MOST = 20.0  # standard deviations
# Of the variance of a good machine's times, what its sizes share: a link that is 10 % slower slows all of them.
COMMON = 0.5
# What like hosts differ by that run the same, of the deviation of good machines (guess: a few per cent of the time).
NOISE = 0.2
# Two causes whose times differ by less at every size predict the same log: no measurement tells them apart.
SAME = 0.03
# Guess: a cause has to take away so much of what the log is off by; nearly all of it where good machines are as slow.
LEAST_EXPLAINED, NEARLY_ALL = 0.2, 0.8
# Guess: a part that has gone so far of the way to its limit may hide a fault; its owner knows whether it was faster.
LEANING = 0.5


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
    cost : float
        Minus the logarithm of its likelihood with all sizes and host counts, of how common it is, and of the number of
        ways in which it could show: a cause that fits no better than a simpler one comes after it.
    signs : tuple of Sign
        Lines of the log that show the cause.
    """

    name: str
    cause: Cause
    change: Change
    times: tuple[float, ...]
    distance: float
    explained: float
    cost: float = 0.0
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
        Causes of an abnormal log, the likeliest first; those of one inner tuple no measurement like it tells apart. Of
        a good one that leans to its limit: what predicts nearly all of the difference, if it was faster once.
    ruled_out : dict
        Causes that a line of the log excludes.
    signs : dict
        Lines that show a cause.
    delays : tuple of Delay
        Ranks that hold others up, by what jobs recorded.
    faster : tuple of str
        Of a good log, what NCCL could have chosen and would be faster by what prestep predicts.
    """

    sweeps: tuple[Sweep, ...]
    suspects: tuple[tuple[Suspect, ...], ...] = ()
    ruled_out: Mapping[str, tuple[Sign, ...]] = field(default_factory=dict)
    signs: Mapping[str, tuple[Sign, ...]] = field(default_factory=dict)
    delays: tuple[Delay, ...] = ()
    faster: tuple[str, ...] = ()

    @property
    def parts(self) -> list[Part]:
        """Parts of all sweeps; where these ran on one number of hosts, parts do not name it."""
        parts = [part for sweep in self.sweeps for part in parts_of(sweep)]
        if len({part.hosts for part in parts}) > 1:
            return parts
        return [replace(part, hosts=None) for part in parts]

    @property
    def abnormal(self) -> bool:
        """Whether a part of a sweep is slower than good machines are; without times, whether a line shows a cause.

        Or whether a rank holds others up.
        """
        if self.sweeps:
            return bool(self.delays) or any(part.abnormal for part in self.parts)
        return bool(self.delays or self.signs)

    @property
    def leans(self) -> bool:
        """Whether a part is so slow that a cause might hide among good machines."""
        return any(part.excess > LEANING * part.limit for part in self.parts)

    @property
    def verdict(self) -> str:
        return "not good" if self.abnormal else "good"

    @property
    def resolution(self) -> float | None:
        """By how many times a part may be slower than predicted and still be among good ones; None without times."""
        return max((part.range[1] for part in self.parts), default=None)


def diagnosed(here: Situation, lines: Sequence[Sign] = ()) -> Diagnosis:
    """The log of a situation; `lines` are those that NCCL_DEBUG and programs that look at hosts wrote."""
    here = replace(here, lines=tuple(line.text for line in lines))
    signs = {
        name: shown
        for name, cause in causes().items()
        if (shown := _signs(cause, here, lines))
    }
    excluded = {
        name: found
        for name, cause in causes().items()
        if name not in signs and (found := _matching(cause.rules_out, lines))
    }
    plain = Diagnosis(here.sweeps, (), excluded, signs)
    if not plain.abnormal and here.sizes:
        plain = replace(plain, faster=choices.faster(here))
    if not plain.leans:
        return plain
    suspects = [
        suspect
        for name, cause in causes().items()
        if name not in excluded
        and (suspect := _suspect(here, name, cause, signs.get(name, ()))) is not None
    ]
    least = LEAST_EXPLAINED if plain.abnormal else NEARLY_ALL
    likely = sorted(
        (suspect for suspect in suspects if suspect.explained > least),
        key=lambda suspect: (not suspect.signs, suspect.cost),
    )
    return replace(plain, suspects=tuple(_groups(likely)))


def _suspect(
    here: Situation, name: str, cause: Cause, signs: tuple[Sign, ...]
) -> Suspect | None:
    """A cause in the form of it that predicts the log best; None where no form is possible here."""
    forms = [
        (_misfit(here, times), placed, times)
        for change in cause.changes(here)
        for placed, times in _placed(here, change)
    ]
    if not forms:
        return None
    misfit, change, times = min(forms, key=lambda form: form[0])
    distance = _distance(here.sizes, times)
    normal = _distance(here.sizes, [size.expected.time for size in here.sizes])
    explained = 1.0 - distance / normal if normal else 0.0
    cost = misfit / 2 + math.log(len(forms)) - math.log(1 + cause.reports)
    return Suspect(name, cause, change, times, distance, explained, cost, signs)


def _misfit(here: Situation, times: Sequence[float]) -> float:
    """Squared distance of measured times from others, in standard deviations of good machines.

    The sizes that one thing bounds are off together (`COMMON`): that all of them are as much off says less than that
    they are off by different amounts. The same size on other hosts is off by the same, but for `NOISE`.
    """
    parts: dict[tuple[str, str], dict[tuple[Any, ...], list[float]]] = {}
    for (sweep, size), time in zip(here.measured, times, strict=True):
        expected, row = size.expected, sweep.row
        same = row.op, row.ranks, row.hosts, row.per_host, size.size
        of_part = parts.setdefault((expected.place, expected.part), {})
        wide = limit(expected.place, expected.part) / quantile()
        off = math.log(size.measured / time) / (expected.spread * max(1.0, wide))
        of_part.setdefault(same, []).append(off)
    return sum(
        _squared([_bounded(statistics.fmean(offs)) for offs in of_part.values()])
        + sum(map(_scatter, of_part.values()))
        for of_part in parts.values()
    )


def _bounded(off: float) -> float:
    return max(-MOST, min(MOST, off))


def _scatter(offs: Sequence[float]) -> float:
    """Squared distance of the same size on several hosts from their mean."""
    mean = statistics.fmean(offs)
    return sum(_bounded((off - mean) / NOISE) ** 2 for off in offs)


def _squared(offs: Sequence[float]) -> float:
    """Squared distance of equally correlated deviations from 0."""
    shared = COMMON / (1.0 + (len(offs) - 1) * COMMON)
    squares = sum(off * off for off in offs)
    return (squares - shared * sum(offs) ** 2) / (1.0 - COMMON)


def _placed(
    here: Situation, change: Change
) -> Iterator[tuple[Change, tuple[float, ...]]]:
    """Seconds of every size with a change, at each host where it could be; none where nothing can be changed."""
    try:
        times = tuple(here.times(change))
    except PrestepError:
        return
    if not (change.local and here.places):
        yield change, times
        return
    for host in here.places:
        placed = replace(change, text=f"{change.text}, of {host}")
        yield placed, here.only_with(host, times)


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


def _signs(cause: Cause, here: Situation, lines: Sequence[Sign]) -> tuple[Sign, ...]:
    """The lines that show a cause: by themselves, or in this cluster."""
    found = _matching(cause.signs, lines)
    if cause.shows is None or here.fabric is None or not here.sizes:
        return found
    here_only = (line for line in lines if cause.shows(here, line.text))
    return (*found, *itertools.islice(here_only, 1))


def _matching(patterns: Sequence[str], lines: Sequence[Sign]) -> tuple[Sign, ...]:
    """The first line for each of the patterns that has one."""
    first = [
        next((line for line in lines if re.search(pattern, line.text)), None)
        for pattern in patterns
    ]
    return tuple(line for line in first if line is not None)
