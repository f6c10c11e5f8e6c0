"""NCCL's search for channels, edge by edge: which orders of GPUs, at which speed, the links of a host have room for.

Rules of NCCL 2.30 (src/graph/search.cc), in GB/s. For a speed from NCCL's list the search goes from GPU to GPU, takes
the speed from every link on the way, and counts the channels that fit; with no perfect answer it tries channels that
differ, simpler trees, longer ways, crossed NICs and then the next lower speed. What it finds may be doubled at half
the speed, and a second pass tries to raise the speed. Every search has a budget of steps, as NCCL's has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sim.collectives.nccl.outcome import BALANCED, NVLS, RING, SPLIT, TREE, Channels
from sim.collectives.nccl.system import DIS, LOC, NVL, PIX, PXN, SYS, System, Way
from sim.collectives.nccl.walk import Walk

__all__ = ["BALANCED", "NVLS", "RING", "SPLIT", "TREE", "Channels", "compute"]
# Budgets of one walk and of all of them.
STEPS_SAME, STEPS, STEPS_ALL = 2**8, 2**14, 2**19


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
        n = len(system.gpus)
        self.system, self.capability, self.speeds = (
            system,
            capability,
            tuple(float(s) for s in speeds),
        )
        self.asked = (
            cross_nic
            if len(system.nets) > 1 and pattern in (RING, BALANCED, SPLIT)
            else 0
        )
        if pattern == NVLS:
            most = min(32, n)
            least = least if system.nets else most
        pattern = TREE if n == 1 and pattern != RING else pattern
        self.inside = _types(system.between)
        self.between = _types(system.out) if system.nets else (PIX, SYS)
        self.types_inside = {
            w.type for row in (*system.between, system.up, system.down) for w in row
        }
        self.types_between = {
            w.type for row in (*system.out, *system.back) for w in row
        }
        if system.nets:
            self.inside = (self.inside[0], self.between[1])
        if capability < 90:
            self.between = (self.between[0], SYS)
        self.same = pattern != NVLS
        self.best = Channels(
            pattern,
            type_inside=self.inside[0],
            type_between=self.between[0],
            cross=int(self.asked == 1),
            same=self.same,
            least=least,
            most=most,
        )
        self.total = system.total / 1000
        self.budget = STEPS_ALL
        self.time = 0
        self.fruitless: dict[Channels, int] = {}

    def start(self) -> int:
        n, most = len(self.system.gpus), self.system.most / 1000
        roomy = (
            self.total * n / (n - 1)
            if n > 1 and self.best.pattern != RING
            else self.total
        )
        for at, speed in enumerate(self.speeds):
            if speed <= most and speed * self.best.least <= roomy:
                return at
        return len(self.speeds) - 1

    def attempt(self, wanted: Channels) -> bool:
        """One search; whether its answer is perfect."""
        steps = STEPS_SAME if wanted.same else STEPS
        self.budget -= steps
        if self.hopeless(wanted):
            self.time = steps
            return False
        # With the same ways open and the same best, a walk that found nothing finds nothing again in as many steps.
        walked = self.in_effect(wanted)
        if walked in self.fruitless:
            self.time = self.fruitless[walked]
        else:
            self.walk(wanted, steps, walked)
        return self.time == -1 or self.best.count * self.best.between >= self.total

    def walk(self, wanted: Channels, steps: int, walked: Channels) -> None:
        one = Walk(self.system, wanted, self.best, steps)
        one.run()
        if one.best is self.best:
            self.fruitless[walked] = one.time
        else:
            self.fruitless.clear()
        self.best, self.time = one.best, one.time

    def in_effect(self, wanted: Channels) -> Channels:
        """A try whose limits of distance are the farthest ways that they let through."""
        return replace(
            wanted,
            type_inside=_farthest(self.types_inside, wanted.type_inside),
            type_between=_farthest(self.types_between, wanted.type_between),
        )

    def hopeless(self, wanted: Channels) -> bool:
        """Whether NVSwitches alone tell that nothing better fits: it spares the walk, and changes no answer.

        Every channel takes its speed from every GPU's NVLinks, and all hops are alike there.
        """
        if (
            self.system.nets
            or not self.system.up
            or wanted.pattern == NVLS
            or wanted.type_inside > NVL
        ):
            return False
        least = min(
            sum(self.system.room[at] for at in links) for links in self.system.nvlinks
        )
        ring = wanted.pattern == RING
        fits = (
            min(wanted.most, int(least / 1000 / wanted.inside + 1e-9))
            if ring
            else wanted.most
        )
        return (
            fits < wanted.least
            or fits * wanted.inside <= self.best.count * self.best.inside
        )

    def run(self) -> Channels:
        self.first()
        self.best = _doubled(self.best, self.capability)
        if self.best.count:
            self.second()
        return self.best

    def first(self) -> None:
        """Down from the highest speed, at each of them from the simplest to the most permissive."""
        at = self.start()
        wanted = replace(self.best, inside=self.speeds[at], between=self.speeds[at])
        while True:
            if self.attempt(wanted):
                return
            following = self.relaxed(wanted)
            if following is None:
                if self.budget < 0 and self.best.count:
                    return
                slower = at + 1 < len(self.speeds)
                if not slower or (
                    self.best.count and self.speeds[at + 1] / self.best.between <= 0.49
                ):
                    return
                at += 1
                following = replace(
                    wanted,
                    pattern=self.best.pattern,
                    same=self.same,
                    type_inside=self.inside[0],
                    type_between=self.between[0],
                    cross=int(self.asked == 1),
                    inside=self.speeds[at],
                    between=self.speeds[at],
                )
            wanted = following

    def relaxed(self, wanted: Channels) -> Channels | None:
        """The next, more permissive try at the same speed; None: there is none."""
        found = self.best
        if wanted.same and not (self.system.amd and wanted.type_inside == SYS):
            return replace(wanted, same=False)
        wanted = replace(wanted, same=self.same)
        self.budget = self.budget + self.time if self.time != -1 else STEPS_ALL
        if self.budget < 0 and found.count:
            return None
        if self.capability >= 90 and wanted.pattern == BALANCED:
            return replace(wanted, pattern=TREE)
        # NCCL goes back to the pattern of the best answer so far.
        wanted = replace(wanted, pattern=found.pattern)
        farthest = wanted.type_between if self.system.nets else self.inside[1]
        if wanted.type_inside < farthest and (
            not found.count or wanted.type_inside < found.type_inside
        ):
            return replace(wanted, type_inside=wanted.type_inside + 1)
        wanted = replace(wanted, type_inside=self.inside[0])
        worth = not found.count or wanted.type_between < max(found.type_between, PXN)
        if self.system.nets and wanted.type_between < self.between[1] and worth:
            return replace(wanted, type_between=wanted.type_between + 1)
        wanted = replace(wanted, type_between=self.between[0])
        if self.asked == 2 and wanted.cross == 0 and found.pattern in (RING, BALANCED):
            return replace(wanted, cross=2)
        return None

    def second(self) -> None:
        """Up again with as many channels: rings as a whole, trees inside the host, NVLink SHARP between hosts."""
        at = next(
            (k for k, s in enumerate(self.speeds) if s <= self.best.between),
            len(self.speeds) - 1,
        )
        wanted = replace(
            self.best,
            inside=self.speeds[at],
            between=self.speeds[at],
            least=self.best.count,
        )
        self.time = -1
        while self.time != 0 and at > 0:
            if self.best.pattern == RING:
                wanted = replace(
                    wanted, inside=self.speeds[at - 1], between=self.speeds[at - 1]
                )
            elif self.best.pattern == NVLS:
                if not (
                    wanted.between == self.best.between
                    and wanted.between < 2 * wanted.inside
                ):
                    return
                wanted = replace(
                    wanted, between=self.speeds[at - 1], most=self.best.count
                )
            else:
                if not (
                    wanted.inside == self.best.inside
                    and wanted.inside < 2 * wanted.between
                ):
                    return
                wanted = replace(wanted, inside=self.speeds[at - 1])
            at -= 1
            self.attempt(wanted)


def _farthest(types: set[int], limit: int) -> int:
    """The farthest of some distances within a limit; LOC: none is."""
    return max((type_ for type_ in types if type_ <= limit), default=LOC)


def _types(ways: Sequence[Sequence[Way]]) -> tuple[int, int]:
    """The closest and the farthest that there is between different nodes."""
    found = [way.type for row in ways for way in row if way.hops and way.type < DIS]
    return (min(found), max(found)) if found else (LOC, LOC)


def _doubled(found: Channels, capability: int) -> Channels:
    """Twice the channels at half the speed, where one channel would be too fast for one CTA."""
    if not found.count or found.pattern == NVLS or found.inside < 25:
        return found
    if capability > 80 and found.inside < 50 and found.count > 4:
        return found
    count = min(2 * found.count, found.most)
    share = -(-count // found.count)
    return replace(
        found,
        orders=(found.orders * 2)[:count],
        nets=(found.nets * 2)[:count],
        inside=found.inside / share,
        between=found.between / share,
    )
