"""One walk of NCCL's search over a host: channels at given speeds, distances and pattern.

From GPU to GPU, or from net to GPU to net, it takes the channel's speed from every link on the way, goes on where
there is room, keeps the best set of channels and turns back; src/graph/search.cc. See `sim.collectives.nccl.graphs`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace

from sim.collectives.nccl.outcome import BALANCED, NVLS, RING, SPLIT, TREE, Channels
from sim.collectives.nccl.system import DIS, System, Way

STEPS_PCI = 2**10
FREE, IN_ORDER, AGAIN = range(
    3
)  # how the next GPU is chosen: by score, by number, as in the channel before


@contextlib.contextmanager
def _deep(levels: int) -> Iterator[None]:
    """Room for as many nested calls as channels have GPUs."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, levels + 1000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Walk:
    """One search at given speeds, types and patterns; `best` is replaced when something better is found."""

    def __init__(
        self, system: System, wanted: Channels, best: Channels, steps: int
    ) -> None:
        self.system, self.wanted, self.best, self.time = system, wanted, best, steps
        self.inside, self.between = (
            round(wanted.inside * 1000),
            round(wanted.between * 1000),
        )
        self.orders: list[list[int]] = []
        self.nets: list[list[int]] = []
        self.used: list[set[int]] = []
        self.hops = 0
        self.speed = list(system.speed)
        self.switched = bool(system.up)
        self.choices: dict[int | None, list[int]] = {}
        self.ways_back: dict[int, list[Way]] = {}

    def run(self) -> None:
        levels = 4 * (len(self.system.gpus) + 4) * (self.wanted.most + 1)
        with _deep(levels):
            self.channel()

    # ways -----------------------------------------------------------------------------------------------------

    def take(self, way: Way, speed: int) -> bool:
        """Takes the speed from every link of a way, or nothing if one has too little."""
        room = self.system.room
        for at, cost in zip(way.links, way.cost, strict=True):
            if room[at] < speed * cost:
                return False
        for at, cost in zip(way.links, way.cost, strict=True):
            room[at] -= round(speed * cost)
        self.hops += way.hops
        return True

    def give(self, way: Way, speed: int) -> None:
        room = self.system.room
        for at, cost in zip(way.links, way.cost, strict=True):
            room[at] += round(speed * cost)
        self.hops -= way.hops

    # channels -------------------------------------------------------------------------------------------------

    def channel(self) -> None:
        """All ways to begin the next channel."""
        count, n = len(self.orders), len(self.system.gpus)
        self.orders.append([])
        self.nets.append([-1, -1])
        self.used.append(set())
        if self.system.nets:
            self.from_nets(count)
        elif self.wanted.pattern == NVLS:
            self.enter(None, count, 0, -1, -1, FREE)  # as many heads as GPUs, in order
        else:
            back = n - 1 if self.wanted.pattern == RING else -1
            begin = self.orders[count - 1][0] if count else 0
            self.enter(None, begin, 0, -1, back, AGAIN if count else IN_ORDER)
            if not self.wanted.same or count == 0:
                for gpu in range(n):
                    self.enter(None, gpu, 0, -1, back, FREE)
        self.orders.pop()
        self.nets.pop()
        self.used.pop()

    def from_nets(self, count: int) -> None:
        pattern, n = self.wanted.pattern, len(self.system.gpus)
        back = {RING: n - 1, SPLIT: 1}.get(pattern, 0)
        speed = int(self.between / 1000) * 1000  # NCCL keeps whole GB/s here
        nets = self.choice(None)
        for at in range(len(nets)):
            net = nets[(count + at) % len(nets)]
            crossed = pattern == RING and self.wanted.cross == 2 and count % 2
            if self.speed[net] < speed or (crossed and net != self.nets[count - 1][1]):
                continue
            self.nets[count][0] = net
            self.speed[net] -= speed
            found = self.begin(net, count, back)
            self.speed[net] += speed
            if pattern == NVLS and found:
                break

    def begin(self, net: int, count: int, back: int) -> bool:
        """Channels that come in by `net`; whether a head of NVLink SHARP was tried."""
        owner = self.system.owner(net)
        way = self.back(net)
        if self.wanted.pattern == NVLS:
            if owner is None or any(order[0] == owner for order in self.orders[:count]):
                return False
            self.enter(way[owner], owner, 0, back, -1, FREE)
            return True
        if count and self.wanted.same:
            first = self.orders[count - 1][0]
            self.enter(way[first], first, 0, back, -1, AGAIN)
            return False
        if count == 0 and not self.switched:
            kept, self.time = self.time, STEPS_PCI
            self.enter(way[0], 0, 0, back, -1, IN_ORDER)
            self.time = -1 if self.time == -1 else kept
        best = max(((w.speed, -w.type) for w in way if w.type < DIS), default=None)
        local = [
            g for g, w in enumerate(way) if w.type < DIS and (w.speed, -w.type) == best
        ]
        for gpu in [g for g in local if g == owner] + [g for g in local if g != owner]:
            self.enter(way[gpu], gpu, 0, back, -1, FREE)
        return False

    def both(self, way: Way, opposite: Way) -> int:
        """The distance that counts: a tree's data goes both ways."""
        return (
            way.type
            if self.wanted.pattern in (RING, NVLS)
            else max(way.type, opposite.type)
        )

    def farther(self, way: Way, opposite: Way) -> Way:
        """A way at the distance that counts."""
        type_ = self.both(way, opposite)
        return way if way.type == type_ else replace(way, type=type_)

    def back(self, net: int) -> list[Way]:
        """Ways from a net to every GPU."""
        if net not in self.ways_back:
            self.ways_back[net] = [
                self.farther(way, self.system.out[gpu][net])
                for gpu, way in enumerate(self.system.back[net])
            ]
        return self.ways_back[net]

    def choice(self, gpu: int | None) -> list[int]:
        """Nets in the order in which they are tried: those that GPUs prefer, then the others by distance."""
        if gpu not in self.choices:
            self.choices[gpu] = self.ordered(gpu)
        return self.choices[gpu]

    def ordered(self, gpu: int | None) -> list[int]:
        gpus = range(len(self.system.gpus)) if gpu is None else (gpu,)
        found = [net for g in gpus for net in self.system.near(g)]
        for type_ in range(self.wanted.type_between + 1):
            found += [
                n
                for g in gpus
                for n, way in enumerate(self.system.out[g])
                if way.type == type_
            ]
        return list(dict.fromkeys(found))

    # steps ----------------------------------------------------------------------------------------------------

    def enter(
        self,
        way: Way | None,
        gpu: int,
        step: int,
        net: int,
        first: int,
        order: int,
        inside: bool = False,
    ) -> None:
        """Goes on to a GPU if the way has room."""
        speed = self.inside if inside else self.between
        limit = self.wanted.type_inside if inside else self.wanted.type_between
        if way is not None and (way.type > limit or not self.take(way, speed)):
            return
        used = self.used[-1]
        used.add(gpu)
        self.step(gpu, step, net, first, order)
        used.discard(gpu)
        if way is not None:
            self.give(way, speed)

    def step(self, gpu: int, step: int, net: int, first: int, order: int) -> None:
        if self.time <= 0:
            return
        self.time -= 1
        n = len(self.system.gpus)
        if step == n:
            self.record()
            return
        here = self.orders[-1]
        del here[step:]
        here.append(gpu)
        if step == net:
            self.leave(gpu, step, first, order)
        elif self.wanted.pattern == NVLS:
            self.head(gpu)
        elif step < n - 1:
            for following in self.following(gpu, step, net, order):
                if following in self.used[-1]:
                    continue
                self.enter(
                    self.system.between[gpu][following],
                    following,
                    step + 1,
                    net,
                    first,
                    order,
                    inside=True,
                )
        elif step == first:
            way = self.system.between[gpu][here[0]]
            if way.type <= self.wanted.type_inside and self.take(way, self.inside):
                self.step(here[0], step + 1, net, -1, order)
                self.give(way, self.inside)
        else:
            self.step(gpu, n, -1, -1, order)

    def leave(self, gpu: int, step: int, first: int, order: int) -> None:
        """Back to a net, then on."""
        balanced = self.wanted.pattern == BALANCED
        speed = self.between // 2 if balanced else self.between
        for net in self.choice(gpu):
            way = self.system.out[gpu][net]
            if self.both(
                way, self.system.back[net][gpu]
            ) > self.wanted.type_between or not self.allowed(net, step):
                continue
            if not self.take(way, speed):
                continue
            self.nets[-1][1] = net
            self.step(gpu, step, 1 if balanced and step == 0 else -1, first, order)
            self.give(way, speed)

    def allowed(self, net: int, step: int) -> bool:
        """Whether a channel that came in by one net may leave by another."""
        start, count = self.nets[-1][0], len(self.orders) - 1
        if self.wanted.pattern == TREE and net != start:
            return False
        if self.wanted.pattern == RING and self.wanted.cross == 2:
            if count % 2 and net != self.nets[count - 1][0]:
                return False
        elif self.wanted.cross == 0 and net != start:
            return False
        return not (
            self.wanted.pattern == BALANCED and step != 0 and net != self.nets[-1][1]
        )

    def following(self, gpu: int, step: int, net: int, order: int) -> list[int]:
        """GPUs to try next, best first; on NVSwitches only the neighbours by number."""
        n = len(self.system.gpus)
        if order == IN_ORDER:
            return [step + 1]
        if order == AGAIN:
            return [self.orders[-2][step + 1]]
        if self.switched:
            following, before = (gpu + 1) % n, (gpu - 1) % n
            pair = {
                RING: [before, following],
                BALANCED: [following, before],
                SPLIT: [following, before],
            }
            tried = dict.fromkeys(pair.get(self.wanted.pattern, [following]))
            return [
                g
                for g in tried
                if g not in self.used[-1] and self.system.between[gpu][g].hops
            ]
        scored = [
            (self.score(gpu, other, k, net >= 0), other)
            for k in range(1, n)
            for other in [(gpu + k) % n]
            if self.system.between[gpu][other].hops and other not in self.used[-1]
        ]
        scored.sort()
        found = [other for _, other in scored]
        if (
            net >= 0
            and net != step + 1
            and len({score[3:5] for score, _ in scored}) <= 1
        ):
            found.reverse()
        return found

    def score(self, gpu: int, other: int, place: int, by_net: bool) -> tuple[int, ...]:
        """Best first: speed and hops from the net that the channel came by, then between the two, then number."""
        way = self.system.between[gpu][other]
        out = (0, 0, 0)
        if by_net:
            back = self.system.back[self.nets[-1][0]][other]
            out = (-(back.speed // 1000), -(self.system.pcie[other] // 1000), back.hops)
        return (*out, -(way.speed // 1000), way.hops, place)

    def head(self, gpu: int) -> None:
        """NVLink SHARP: every GPU's links to the switches are loaded once, the head's twice."""
        taken: list[tuple[Way, int]] = []
        ways = [
            *((w, k) for k, w in enumerate(self.system.down)),
            *((w, k) for k, w in enumerate(self.system.up)),
        ]
        for way, k in ways:
            speed = self.inside * (2 if k == gpu else 1)
            if way.type > self.wanted.type_inside or not self.take(way, speed):
                break
            taken.append((way, speed))
        else:
            self.step(gpu, len(self.system.gpus), -1, -1, FREE)
        for way, speed in taken:
            self.give(way, speed)

    # answers --------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """A channel is complete: keep what there is if it is better, and look for another."""
        if self.better():
            self.best = replace(
                self.wanted,
                orders=tuple(map(tuple, self.orders)),
                hops=self.hops,
                nets=tuple((a, b) for a, b in self.nets) if self.system.nets else (),
            )
            if len(self.orders) == self.wanted.most:
                self.time = -1
        if len(self.orders) < self.wanted.most:
            self.channel()

    def better(self) -> bool:
        count, best = len(self.orders), self.best
        if count < self.wanted.least:
            return False
        if self.wanted.pattern == NVLS:
            more = best.count < count <= len(self.system.gpus)
            return more or count * self.wanted.between > best.count * best.between
        now, then = count * self.wanted.inside, best.count * best.inside
        same = self.wanted.pattern == best.pattern and self.wanted.cross == best.cross
        return now > then or (now == then and same and self.hops < best.hops)
