"""NCCL's search for channels, edge by edge: which orders of GPUs, at which speed, the links of a host have room for.

Rules of NCCL 2.30 (src/graph/search.cc), in GB/s. For a speed from NCCL's list the search goes from GPU to GPU, takes
the speed from every link on the way, and counts the channels that fit; with no perfect answer it tries channels that
differ, simpler trees, longer ways, crossed NICs and then the next lower speed. What it finds may be doubled at half
the speed, and a second pass tries to raise the speed. Every search has a budget of steps, as NCCL's has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prestep.sim.collectives.nccl.outcome import (
    BALANCED,
    NVLS,
    RING,
    SPLIT,
    STEPS_SAME,
    TREE,
    Channels,
)
from prestep.sim.collectives.nccl.system import System
from prestep.sim.collectives.nccl.walk import Walk
from prestep.sim.collectives.nccl.ways import DIS, LOC, PIX, PXN, SYS, Way
from prestep.sim.tools.process import with_room

__all__ = ["BALANCED", "NVLS", "RING", "SPLIT", "TREE", "Channels", "compute"]
# Budgets of one walk and of all of them.
STEPS, STEPS_ALL = 2**14, 2**19


@with_room
def compute(
    system: System,
    pattern: int,
    capability: int,
    speeds: tuple[float, ...],
    cross_nic: int = 2,
    least: int = 1,
    most: int = 32,
) -> Channels:
    """Channels of one pattern on a host.

    Parameters
    ----------
    capability : int
        Compute capability of the GPUs: 80, 90, 100.
    speeds : tuple of float
        GB/s to try, descending.
    least, most : int
        Channels to find.
    """
    return _Search(system, pattern, capability, speeds, cross_nic, least, most).run()


class _Search:
    """The search for one pattern: its best answer so far, and what is left of its budget."""

    def __init__(
        self,
        system: System,
        pattern: int,
        capability: int,
        speeds: tuple[float, ...],
        cross_nic: int,
        least: int,
        most: int,
    ) -> None:
        self.system, self.capability = system, capability
        self.speeds = tuple(float(speed) for speed in speeds)
        crosses = system.nets > 1 and pattern in (RING, BALANCED, SPLIT)
        self.asked = cross_nic if crosses else 0
        self.same = pattern != NVLS
        self.inside, self.between = _limits(system, capability)
        self.types_inside = _all_types((*system.between, system.up, system.down))
        self.types_between = _all_types((*system.out, *system.back))
        self.best = self.nothing(pattern, least, most)
        self.total = system.total / 1000
        self.budget = STEPS_ALL
        self.time = 0
        self.fruitless: dict[Channels, int] = {}

    def nothing(self, pattern: int, least: int, most: int) -> Channels:
        """The answer before the search: no channel, and the closest ways to try."""
        n = self.system.gpus
        if pattern == NVLS:
            most = min(32, n)
            least = least if self.system.nets else most
        return Channels(
            TREE if n == 1 and pattern != RING else pattern,
            type_inside=self.inside[0],
            type_between=self.between[0],
            cross=int(self.asked == 1),
            same=self.same,
            least=least,
            most=most,
        )

    def start(self) -> int:
        """The fastest speed that the links may have room for, by its place."""
        n, most = self.system.gpus, self.system.most / 1000
        roomy = self.total
        if n > 1 and self.best.pattern != RING:
            roomy = self.total * n / (n - 1)
        for at, speed in enumerate(self.speeds):
            if speed <= most and speed * self.best.least <= roomy:
                return at
        return len(self.speeds) - 1

    def attempt(self, target: Channels) -> bool:
        """One search; whether its answer is perfect."""
        steps = STEPS_SAME if target.same else STEPS
        self.budget -= steps
        if not self.system.limits.improvable(target, self.best, self.system.speed):
            self.time = 0
        # With the same ways open and the same best, a walk that found nothing finds nothing again in as many steps.
        elif (walked := self.in_effect(target)) in self.fruitless:
            self.time = self.fruitless[walked]
        else:
            self.walk(target, steps, walked)
        return self.time == -1 or self.best.count * self.best.between >= self.total

    def walk(self, target: Channels, steps: int, walked: Channels) -> None:
        """Walks once, and remembers a try that found nothing."""
        one = Walk(self.system, target, self.best, steps)
        one.run()
        if one.best is self.best:
            self.fruitless[walked] = one.time
        else:
            self.fruitless.clear()
        self.best, self.time = one.best, one.time

    def in_effect(self, target: Channels) -> Channels:
        """A try whose limits of distance are the farthest ways that they let through."""
        return replace(
            target,
            type_inside=_farthest(self.types_inside, target.type_inside),
            type_between=_farthest(self.types_between, target.type_between),
        )

    def run(self) -> Channels:
        """The channels, after both passes."""
        self.first()
        self.best = _doubled(self.best, self.capability)
        if self.best.count:
            self.second()
        return self.best

    def first(self) -> None:
        """Down from the highest speed, at each of them from the simplest to the most permissive."""
        at = self.start()
        target = replace(self.best, inside=self.speeds[at], between=self.speeds[at])
        while True:
            if self.attempt(target):
                return
            following = self.relaxed(target)
            if following is None:
                if self.budget < 0 and self.best.count:
                    return
                at += 1
                if not self.worth_trying(at):
                    return
                following = self.at_speed(target, self.speeds[at])
            target = following

    def worth_trying(self, at: int) -> bool:
        """Whether there is such a speed, and it is not far below that of the best answer so far."""
        if at >= len(self.speeds):
            return False
        return not self.best.count or self.speeds[at] / self.best.between > 0.49

    def at_speed(self, target: Channels, speed: float) -> Channels:
        """The least permissive try at a speed."""
        return replace(
            target,
            pattern=self.best.pattern,
            same=self.same,
            type_inside=self.inside[0],
            type_between=self.between[0],
            cross=int(self.asked == 1),
            inside=speed,
            between=speed,
        )

    def relaxed(self, target: Channels) -> Channels | None:
        """The next, more permissive try at the same speed; None: there is none."""
        if target.same and not (self.system.amd and target.type_inside == SYS):
            return replace(target, same=False)
        target = replace(target, same=self.same)
        self.budget = self.budget + self.time if self.time != -1 else STEPS_ALL
        if self.budget < 0 and self.best.count:
            return None
        if self.capability >= 90 and target.pattern == BALANCED:
            return replace(target, pattern=TREE)
        # NCCL goes back to the pattern of the best answer so far.
        return self.farther(replace(target, pattern=self.best.pattern))

    def farther(self, target: Channels) -> Channels | None:
        """The next try with longer ways: inside the host, then to the nets, then with crossed NICs."""
        best, nets = self.best, self.system.nets
        farthest = target.type_between if nets else self.inside[1]
        worth = not best.count or target.type_inside < best.type_inside
        if target.type_inside < farthest and worth:
            return replace(target, type_inside=target.type_inside + 1)
        target = replace(target, type_inside=self.inside[0])
        worth = not best.count or target.type_between < max(best.type_between, PXN)
        if nets and target.type_between < self.between[1] and worth:
            return replace(target, type_between=target.type_between + 1)
        target = replace(target, type_between=self.between[0])
        if self.asked == 2 and target.cross == 0 and best.pattern in (RING, BALANCED):
            return replace(target, cross=2)
        return None

    def second(self) -> None:
        """Up again with as many channels: rings as a whole, trees inside the host, NVLink SHARP between hosts."""
        slower = (k for k, s in enumerate(self.speeds) if s <= self.best.between)
        at = next(slower, len(self.speeds) - 1)
        speed, count = self.speeds[at], self.best.count
        target = replace(self.best, inside=speed, between=speed, least=count)
        self.time = -1
        while self.time != 0 and at > 0:
            at -= 1
            faster = self.raised(target, self.speeds[at])
            if faster is None:
                return
            target = faster
            self.attempt(target)

    def raised(self, target: Channels, speed: float) -> Channels | None:
        """The same with a higher speed; None: the best answer so far was not raised, or more than doubled."""
        best = self.best
        if best.pattern == RING:
            return replace(target, inside=speed, between=speed)
        if best.pattern == NVLS:
            doubled = target.between >= 2 * target.inside
            if target.between != best.between or doubled:
                return None
            return replace(target, between=speed, most=best.count)
        doubled = target.inside >= 2 * target.between
        if target.inside != best.inside or doubled:
            return None
        return replace(target, inside=speed)


def _limits(system: System, capability: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The closest and the farthest distance to try between GPUs, and between GPUs and nets."""
    inside = _types(system.between)
    between = _types(system.out) if system.nets else (PIX, SYS)
    if system.nets:
        inside = (inside[0], between[1])
    return inside, (between if capability >= 90 else (between[0], SYS))


def _all_types(ways: Sequence[Sequence[Way]]) -> set[int]:
    return {way.type for row in ways for way in row}


def _farthest(types: set[int], limit: int) -> int:
    """The farthest of some distances within a limit; LOC: none is."""
    return max((type_ for type_ in types if type_ <= limit), default=LOC)


def _types(ways: Sequence[Sequence[Way]]) -> tuple[int, int]:
    """The closest and the farthest that there is between different nodes."""
    types = [way.type for row in ways for way in row if way.hops and way.type < DIS]
    return (min(types), max(types)) if types else (LOC, LOC)


def _doubled(channels: Channels, capability: int) -> Channels:
    """Twice the channels at half the speed, where one channel would be too fast for one CTA."""
    if not channels.count or channels.pattern == NVLS or channels.inside < 25:
        return channels
    if capability > 80 and channels.inside < 50 and channels.count > 4:
        return channels
    count = min(2 * channels.count, channels.most)
    share = -(-count // channels.count)
    return replace(
        channels,
        orders=(channels.orders * 2)[:count],
        nets=(channels.nets * 2)[:count],
        inside=channels.inside / share,
        between=channels.between / share,
    )
