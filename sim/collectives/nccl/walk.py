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
from sim.collectives.nccl.system import System, Way, nearest

STEPS_PCI = 2**10
# How the next GPU is chosen: by score, by number, as in the channel before.
FREE, IN_ORDER, AGAIN = range(3)


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
        self.inside = round(wanted.inside * 1000)
        self.between = round(wanted.between * 1000)
        self.orders: list[list[int]] = []
        self.nets: list[list[int]] = []
        self.used: list[set[int]] = []
        self.hops = 0
        self.room = list(system.room)
        self.speed = list(system.speed)
        self.switched = bool(system.up)
        self.choices: dict[int | None, list[int]] = {}
        self.ways_back: dict[int, list[Way]] = {}
        # By the id of a way, which lives as long as the system or `ways_back`.
        self.needed: dict[tuple[int, int], list[tuple[int, float, int]]] = {}

    def run(self) -> None:
        """Walks all ways until the budget is spent or the answer is perfect."""
        levels = 4 * (len(self.system.gpus) + 4) * (self.wanted.most + 1)
        with _deep(levels):
            self.channel()

    # ways -----------------------------------------------------------------------------------------------------

    def take(self, way: Way, speed: int) -> bool:
        """Takes the speed from every link of a way, or nothing if one has too little."""
        room, needs = self.room, self.needs(way, speed)
        for at, need, _ in needs:
            if room[at] < need:
                return False
        for at, _, taken in needs:
            room[at] -= taken
        self.hops += way.hops
        return True

    def give(self, way: Way, speed: int) -> None:
        """Gives back what `take` took."""
        room = self.room
        for at, _, taken in self.needs(way, speed):
            room[at] += taken
        self.hops -= way.hops

    def needs(self, way: Way, speed: int) -> list[tuple[int, float, int]]:
        """The links of a way, with what a speed needs of each and what it takes, in whole MB/s."""
        key = id(way), speed
        if key not in self.needed:
            costs = zip(way.links, way.cost, strict=True)
            needs = [(at, speed * cost, round(speed * cost)) for at, cost in costs]
            self.needed[key] = needs
        return self.needed[key]

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
        """Channels that come in by each net that has room."""
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
        if self.wanted.pattern == NVLS:
            return self.begin_head(net, count, back)
        ways = self.back(net)
        if count and self.wanted.same:
            first = self.orders[count - 1][0]
            self.enter(ways[first], first, 0, back, -1, AGAIN)
            return False
        if count == 0 and not self.switched:
            self.begin_in_order(ways[0], back)
        owner = self.system.owners[net]
        for gpu in sorted(nearest(ways), key=lambda gpu: gpu != owner):
            self.enter(ways[gpu], gpu, 0, back, -1, FREE)
        return False

    def begin_head(self, net: int, count: int, back: int) -> bool:
        """A head of NVLink SHARP: the GPU whose NIC it is, unless it is one already."""
        owner = self.system.owners[net]
        if owner is None or any(order[0] == owner for order in self.orders[:count]):
            return False
        self.enter(self.back(net)[owner], owner, 0, back, -1, FREE)
        return True

    def begin_in_order(self, way: Way, back: int) -> None:
        """The GPUs by number, within a budget of its own."""
        left, self.time = self.time, STEPS_PCI
        self.enter(way, 0, 0, back, -1, IN_ORDER)
        self.time = -1 if self.time == -1 else left

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
        nets = [net for g in gpus for net in self.system.preferred[g]]
        for type_ in range(self.wanted.type_between + 1):
            for g in gpus:
                ways = enumerate(self.system.out[g])
                nets += [net for net, way in ways if way.type == type_]
        return list(dict.fromkeys(nets))

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
        """A GPU as the channel's next, within the budget of steps."""
        if self.time <= 0:
            return
        self.time -= 1
        if step == len(self.system.gpus):
            self.record()
            return
        here = self.orders[-1]
        del here[step:]
        here.append(gpu)
        if step == net:
            self.leave(gpu, step, first, order)
        elif self.wanted.pattern == NVLS:
            self.head(gpu)
        else:
            self.onward(gpu, step, net, first, order)

    def onward(self, gpu: int, step: int, net: int, first: int, order: int) -> None:
        """To the next GPU; from the last back to the first of a ring, or to the end of a chain."""
        n, between = len(self.system.gpus), self.system.between[gpu]
        if step < n - 1:
            used = self.used[-1]
            for other in self.following(gpu, step, net, order):
                if other not in used:
                    self.enter(between[other], other, step + 1, net, first, order, True)
        elif step == first:
            begin = self.orders[-1][0]
            way = between[begin]
            if way.type <= self.wanted.type_inside and self.take(way, self.inside):
                self.step(begin, step + 1, net, -1, order)
                self.give(way, self.inside)
        else:
            self.step(gpu, n, -1, -1, order)

    def leave(self, gpu: int, step: int, first: int, order: int) -> None:
        """Back to a net, then on."""
        balanced = self.wanted.pattern == BALANCED
        speed = self.between // 2 if balanced else self.between
        for net in self.choice(gpu):
            way = self.system.out[gpu][net]
            far = self.both(way, self.system.back[net][gpu]) > self.wanted.type_between
            if far or not self.allowed(net, step) or not self.take(way, speed):
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
        if order == IN_ORDER:
            return [step + 1]
        if order == AGAIN:
            return [self.orders[-2][step + 1]]
        ways, used = self.system.between[gpu], self.used[-1]
        if self.switched:
            pair = self.neighbours(gpu)
            return [other for other in pair if other not in used and ways[other].hops]
        return self.ranked(gpu, net >= 0, step + 1 == net)

    def neighbours(self, gpu: int) -> list[int]:
        """The GPUs before and after one by number, in the order in which a pattern tries them."""
        n = len(self.system.gpus)
        after, before = (gpu + 1) % n, (gpu - 1) % n
        tried = {RING: (before, after), NVLS: (after,), TREE: (after,)}
        return list(dict.fromkeys(tried.get(self.wanted.pattern, (after, before))))

    def ranked(self, gpu: int, by_net: bool, at_net: bool) -> list[int]:
        """All other GPUs, best first; backwards where the way between them decides nothing and no net is next."""
        n, ways, used = len(self.system.gpus), self.system.between[gpu], self.used[-1]
        others = [(k, (gpu + k) % n) for k in range(1, n)]
        scored = sorted(
            (self.score(gpu, other, k, by_net), other)
            for k, other in others
            if ways[other].hops and other not in used
        )
        ranked = [other for _, other in scored]
        alike = len({score[3:5] for score, _ in scored}) <= 1
        return ranked[::-1] if by_net and not at_net and alike else ranked

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
        """Whether the channels so far are better than the best set: more bandwidth, or fewer hops."""
        count, best = len(self.orders), self.best
        if count < self.wanted.least:
            return False
        if self.wanted.pattern == NVLS:
            more = best.count < count <= len(self.system.gpus)
            return more or count * self.wanted.between > best.count * best.between
        now, then = count * self.wanted.inside, best.count * best.inside
        same = self.wanted.pattern == best.pattern and self.wanted.cross == best.cross
        return now > then or (now == then and same and self.hops < best.hops)
