"""One walk of NCCL's search over a host: channels at given speeds, distances and pattern.

From GPU to GPU, or from net to GPU to net, it takes the channel's speed from every link on the way, goes on where
there is room, keeps the best set of channels and turns back; src/graph/search.cc. See
`prestep.sim.collectives.nccl.graphs`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from prestep.sim.collectives.nccl.outcome import (
    BALANCED,
    NVLS,
    RING,
    SPLIT,
    TREE,
    Channels,
)
from prestep.sim.collectives.nccl.system import System, nearest
from prestep.sim.collectives.nccl.tolls import NOTHING, Toll, Tolls, toll_of
from prestep.sim.collectives.nccl.ways import Way

STEPS_PCI = 2**10
ONE_WAY = (RING, NVLS)  # patterns whose data goes one way; a tree's goes both
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


@dataclass(eq=False)
class Walk:
    """One search at given speeds, types and patterns; `best` is replaced when something better is found.

    Attributes
    ----------
    target, best : Channels
        What is looked for, and the best set so far.
    time : int
        Steps that are left; -1: the answer is perfect.
    orders, nets, used : list
        Of every channel so far, its GPUs in order, its nets, and the set of its GPUs.
    """

    system: System
    target: Channels
    best: Channels
    time: int
    orders: list[list[int]] = field(default_factory=list)
    nets: list[list[int]] = field(default_factory=list)
    used: list[set[int]] = field(default_factory=list)
    hops: int = 0
    walked: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        system, target = self.system, self.target
        self.n, self.switched = system.gpus, bool(system.up)
        self.room, self.speed = list(system.room), list(system.speed)
        self.inside = round(target.inside * 1000)
        self.between = round(target.between * 1000)
        # A balanced tree's data is split over two of the ways to nets.
        halves = 2 if target.pattern == BALANCED else 1
        self.net_speed = self.between // halves
        switched = (*system.down, *system.up)
        self.switch = tuple(
            Tolls(switched, speed, target.type_inside)
            for speed in (self.inside, 2 * self.inside)
        )
        # What walks ask for again at every step, for all that it is the same for.
        one_way, far = target.pattern in ONE_WAY, target.type_between
        self.choices: dict[int | None, list[int]] = system.once("choices", far)
        self.beginnings: dict[int, tuple[Tolls, list[int]]] = system.once(
            "beginnings", far, self.between, one_way
        )
        self.exits: dict[int, dict[int, Toll]] = system.once(
            "exits", far, self.net_speed, one_way
        )
        self.onto: dict[int, Tolls] = system.once(
            "onto", target.type_inside, self.inside
        )
        self.rounds: dict[bool, tuple[list[int], list[Toll | None]]] = system.once(
            "rounds", target.type_inside, self.inside
        )
        self.pairs: dict[int, list[int]] = system.once("pairs", target.pattern)
        self.rankings: dict[tuple[int, int], list[tuple[int, tuple[int, int]]]] = (
            system.once("rankings")
        )

    def run(self) -> None:
        """Walks all ways until the budget is spent or the answer is perfect."""
        steps = self.steps_without_exit()
        if steps is not None:
            self.time = max(0, self.time - steps)
            return
        levels = 4 * (self.n + 4) * (self.target.most + 1)
        with _deep(levels):
            self.channel()

    def steps_without_exit(self) -> int | None:
        """Steps of rings that go both ways round NVSwitches from every net and can leave by none.

        None where a ring may leave: the steps depend on what is found.
        """
        if self.target.pattern != RING or not self.switched or self.n < 3:
            return None
        gpus, nets = range(self.n), self.choice(None)
        out = (toll for g in gpus for toll in self.ways_out(g).values())
        if not nets or any(map(self.fits, out)):
            return None
        around = [
            self.inside_from(g)[other] for g in gpus for other in self.neighbours(g)
        ]
        # Beside what a channel took on its way in.
        if not all(self.fits(toll, self.between) for toll in around):
            return None
        speed = int(self.between / 1000) * 1000
        entries = [self.back(net) for net in nets if self.speed[net] >= speed]
        begun = [tolls[gpu] for tolls, near in entries for gpu in near]
        return (2 * self.n - 1) * sum(map(self.fits, begun))

    # ways -----------------------------------------------------------------------------------------------------

    def take(self, toll: Toll) -> bool:
        """Takes the speed from every link of a way, or nothing if one has too little."""
        room = self.room
        hops, links = toll
        for at, need, _ in links:
            if room[at] < need:
                return False
        for at, _, taken in links:
            room[at] -= taken
        self.hops += hops
        return True

    def fits(self, toll: Toll | None, beside: int = 0) -> bool:
        """Whether every link of a way has room for its speed, and for so many MB/s more."""
        return toll is not None and all(
            self.room[at] >= need + beside for at, need, _ in toll.links
        )

    def give(self, toll: Toll) -> None:
        """Gives back what `take` took."""
        room = self.room
        hops, links = toll
        for at, _, taken in links:
            room[at] += taken
        self.hops -= hops

    def inside_from(self, gpu: int) -> Tolls:
        """Tolls of the ways to every other GPU."""
        if gpu not in self.onto:
            ways, limit = self.system.between[gpu], self.target.type_inside
            self.onto[gpu] = Tolls(ways, self.inside, limit)
        return self.onto[gpu]

    # channels -------------------------------------------------------------------------------------------------

    def channel(self) -> None:
        """All ways to begin the next channel, but from a state that was walked to its end: it takes as many steps."""
        state = self.state()
        if state in self.walked:
            self.time = max(0, self.time - self.walked[state])
            return
        before = self.time
        self.begin_channel()
        if self.time > 0:
            self.walked[state] = before - self.time

    def state(self) -> tuple[object, ...]:
        """All that further channels, and whether they are better, depend on: the order of those so far is no part."""
        count, target = len(self.orders), self.target
        repeats = count and (target.same or not self.system.nets)
        swaps = count % 2 and target.cross == 2
        heads = self.orders if target.pattern == NVLS else ()
        return (
            count,
            self.hops,
            *self.room,
            *self.speed,
            tuple(self.orders[-1]) if repeats else (),
            tuple(self.nets[-1]) if swaps else (),
            frozenset(order[0] for order in heads),
        )

    def begin_channel(self) -> None:
        """All ways to begin the next channel."""
        count, n = len(self.orders), self.n
        self.orders.append([])
        self.nets.append([-1, -1])
        self.used.append(set())
        if self.system.nets:
            self.from_nets(count)
        elif self.target.pattern == NVLS:
            self.enter(
                NOTHING, count, 0, -1, -1, FREE
            )  # as many heads as GPUs, in order
        else:
            back = n - 1 if self.target.pattern == RING else -1
            begin = self.orders[count - 1][0] if count else 0
            self.enter(NOTHING, begin, 0, -1, back, AGAIN if count else IN_ORDER)
            if not self.target.same or count == 0:
                for gpu in range(n):
                    self.enter(NOTHING, gpu, 0, -1, back, FREE)
        self.orders.pop()
        self.nets.pop()
        self.used.pop()

    def from_nets(self, count: int) -> None:
        """Channels that come in by each net that has room."""
        pattern, n = self.target.pattern, self.n
        back = {RING: n - 1, SPLIT: 1}.get(pattern, 0)
        speed = int(self.between / 1000) * 1000  # NCCL keeps whole GB/s here
        nets = self.choice(None)
        for at in range(len(nets)):
            net = nets[(count + at) % len(nets)]
            crossed = pattern == RING and self.target.cross == 2 and count % 2
            if self.speed[net] < speed or (crossed and net != self.nets[count - 1][1]):
                continue
            self.nets[count][0] = net
            self.speed[net] -= speed
            has_begun = self.begin(net, count, back)
            self.speed[net] += speed
            if pattern == NVLS and has_begun:
                break

    def begin(self, net: int, count: int, back: int) -> bool:
        """Channels that come in by `net`; whether a head of NVLink SHARP was tried."""
        if self.target.pattern == NVLS:
            return self.begin_head(net, count, back)
        tolls, near = self.back(net)
        if count and self.target.same:
            first = self.orders[count - 1][0]
            self.enter(tolls[first], first, 0, back, -1, AGAIN)
            return False
        if count == 0 and not self.switched:
            self.begin_in_order(tolls[0], back)
        for gpu in near:
            self.enter(tolls[gpu], gpu, 0, back, -1, FREE)
        return False

    def begin_head(self, net: int, count: int, back: int) -> bool:
        """A head of NVLink SHARP: the GPU whose NIC it is, unless it is one already."""
        owner = self.system.owners[net]
        if owner is None or any(order[0] == owner for order in self.orders[:count]):
            return False
        self.enter(self.back(net)[0][owner], owner, 0, back, -1, FREE)
        return True

    def begin_in_order(self, toll: Toll | None, back: int) -> None:
        """The GPUs by number, within a budget of its own."""
        left, self.time = self.time, STEPS_PCI
        self.enter(toll, 0, 0, back, -1, IN_ORDER)
        self.time = -1 if self.time == -1 else left

    def both(self, way: Way, opposite: Way) -> int:
        """The distance that counts: a tree's data goes both ways."""
        return (
            way.type if self.target.pattern in ONE_WAY else max(way.type, opposite.type)
        )

    def farther(self, way: Way, opposite: Way) -> Way:
        """A way at the distance that counts."""
        type_ = self.both(way, opposite)
        return way if way.type == type_ else way._replace(type=type_)

    def back(self, net: int) -> tuple[Tolls, list[int]]:
        """Tolls of the ways from a net to every GPU; the GPUs to begin with, the net's owner first."""
        if net not in self.beginnings:
            ways: Sequence[Way] = self.system.back[net]
            if self.target.pattern not in ONE_WAY:
                ways = [
                    self.farther(way, self.system.out[gpu][net])
                    for gpu, way in enumerate(ways)
                ]
            owner = self.system.owners[net]
            self.beginnings[net] = (
                Tolls(ways, self.between, self.target.type_between),
                sorted(nearest(ways), key=lambda gpu: gpu != owner),
            )
        return self.beginnings[net]

    def choice(self, gpu: int | None) -> list[int]:
        """Nets in the order in which they are tried: those that GPUs prefer, then the others by distance."""
        if gpu not in self.choices:
            self.choices[gpu] = self.ordered(gpu)
        return self.choices[gpu]

    def ordered(self, gpu: int | None) -> list[int]:
        gpus, out = range(self.n) if gpu is None else (gpu,), self.system.out
        nets = [net for g in gpus for net in self.system.preferred[g]]
        by_distance = sorted(
            (way.type, g, net)
            for g in gpus
            for net, way in enumerate(out[g])
            if way.type <= self.target.type_between
        )
        return list(dict.fromkeys([*nets, *(net for _, _, net in by_distance)]))

    # steps ----------------------------------------------------------------------------------------------------

    def enter(
        self, toll: Toll | None, gpu: int, step: int, net: int, first: int, order: int
    ) -> None:
        """Goes on to a GPU if the way there is short enough and has room."""
        if toll is None or not self.take(toll):
            return
        used = self.used[-1]
        used.add(gpu)
        self.step(gpu, step, net, first, order)
        used.discard(gpu)
        self.give(toll)

    def step(self, gpu: int, step: int, net: int, first: int, order: int) -> None:
        """A GPU as the channel's next, within the budget of steps."""
        if self.time <= 0:
            return
        self.time -= 1
        if step == self.n:
            self.record()
            return
        here = self.orders[-1]
        del here[step:]
        here.append(gpu)
        if step == net:
            self.leave(gpu, step, first, order)
        elif self.target.pattern == NVLS:
            self.head(gpu)
        else:
            self.onward(gpu, step, net, first, order)

    def onward(self, gpu: int, step: int, net: int, first: int, order: int) -> None:
        """To the next GPU; from the last back to the first of a ring, or to the end of a chain."""
        tolls = self.inside_from(gpu)
        if step < self.n - 1:
            if order != FREE or (self.switched and step):
                self.along(gpu, step, net, first, order)
                return
            used = self.used[-1]
            for other in self.following(gpu, step, net, order):
                if other not in used:
                    self.enter(tolls[other], other, step + 1, net, first, order)
        elif step == first:
            begin = self.orders[-1][0]
            toll = tolls[begin]
            if toll is not None and self.take(toll):
                self.step(begin, step + 1, net, -1, order)
                self.give(toll)
        else:
            self.step(gpu, self.n, -1, -1, order)

    def along(self, gpu: int, step: int, net: int, first: int, order: int) -> None:
        """`onward` without a choice: every GPU has one to follow it, round NVSwitches the neighbour not yet met.

        Up to the last, or to where a net is next: what `enter` and `step` do to each, in a loop.
        """
        here, used = self.orders[-1], self.used[-1]
        end = net if step < net else self.n - 1
        path, tolls = self.ahead(gpu, step, end, order)
        done = 0
        for toll in tolls[: self.time]:
            if toll is None or not self.take(toll):
                break
            done += 1
        self.time -= done
        here[step + 1 :] = path[:done]
        if done == end - step:
            used.update(path)
            at = path[-1] if path else gpu
            if end == net:
                self.leave(at, end, first, order)
            else:
                self.onward(at, end, net, first, order)
            used.difference_update(path)
        for toll in tolls[:done]:
            self.give(toll)  # type: ignore[arg-type]

    def ahead(
        self, gpu: int, step: int, end: int, order: int
    ) -> tuple[list[int], list[Toll | None]]:
        """The GPUs that follow one up to a step, where there is no choice, and the tolls of the ways to them."""
        if order == FREE:
            return self.around(gpu, self.orders[-1][step - 1], end - step)
        path = list(range(step + 1, end + 1))
        if order == AGAIN:
            path = self.orders[-2][step + 1 : end + 1]
        pairs = zip([gpu, *path[:-1]], path, strict=True)
        return path, [self.inside_from(one)[other] for one, other in pairs]

    def around(
        self, gpu: int, before: int, count: int
    ) -> tuple[list[int], list[Toll | None]]:
        """So many GPUs round NVSwitches, away from the one before."""
        n, forward = self.n, (before + 1) % self.n == gpu
        if forward not in self.rounds:
            path = list(range(n)) if forward else list(range(n - 1, -1, -1))
            others = path[1:] + path[:1]
            pairs = zip(path, others, strict=True)
            tolls = [self.inside_from(one)[other] for one, other in pairs]
            self.rounds[forward] = 2 * others, 2 * tolls
        others, tolls = self.rounds[forward]
        at = gpu if forward else n - 1 - gpu
        return others[at : at + count], tolls[at : at + count]

    def leave(self, gpu: int, step: int, first: int, order: int) -> None:
        """Back to a net, then on."""
        exits, only = self.ways_out(gpu), self.only(step)
        following = 1 if self.target.pattern == BALANCED and step == 0 else -1
        for net in exits if only is None else (only,):
            toll = exits.get(net)
            if toll is None or not self.take(toll):
                continue
            self.nets[-1][1] = net
            self.step(gpu, step, following, first, order)
            self.give(toll)

    def ways_out(self, gpu: int) -> dict[int, Toll]:
        """Tolls of the ways from a GPU to the nets that are near enough, in the order in which they are tried."""
        if gpu not in self.exits:
            out, back = self.system.out[gpu], self.system.back
            self.exits[gpu] = {
                net: toll_of(out[net], self.net_speed)
                for net in self.choice(gpu)
                if self.both(out[net], back[net][gpu]) <= self.target.type_between
            }
        return self.exits[gpu]

    def only(self, step: int) -> int | None:
        """The net by which a channel has to leave, by the one that it came in by and its pattern; None: any."""
        (start, chosen), count = self.nets[-1], len(self.orders) - 1
        pattern, cross = self.target.pattern, self.target.cross
        if pattern == BALANCED and step != 0:
            return chosen  # as on the channel's first GPU
        if pattern == RING and cross == 2:
            return self.nets[count - 1][0] if count % 2 else None
        return start if pattern == TREE or cross == 0 else None

    def following(self, gpu: int, step: int, net: int, order: int) -> list[int]:
        """GPUs to try next, best first; on NVSwitches only the neighbours by number."""
        if order == IN_ORDER:
            return [step + 1]
        if order == AGAIN:
            return [self.orders[-2][step + 1]]
        if self.switched:
            return self.neighbours(gpu)
        return self.ranked(gpu, net >= 0, step + 1 == net)

    def neighbours(self, gpu: int) -> list[int]:
        """The GPUs before and after one by number, in the order in which a pattern tries them."""
        if gpu not in self.pairs:
            after, before = (gpu + 1) % self.n, (gpu - 1) % self.n
            tried = {RING: (before, after), NVLS: (after,), TREE: (after,)}
            pair = dict.fromkeys(tried.get(self.target.pattern, (after, before)))
            ways = self.system.between[gpu]
            self.pairs[gpu] = [other for other in pair if ways[other].hops]
        return self.pairs[gpu]

    def ranked(self, gpu: int, by_net: bool, at_net: bool) -> list[int]:
        """All GPUs left, best first; backwards where the way between them decides nothing and no net is next."""
        ranking, used = (
            self.ranking(gpu, self.nets[-1][0] if by_net else -1),
            self.used[-1],
        )
        left = [place for place in ranking if place[0] not in used]
        ranked = [other for other, _ in left]
        if by_net and not at_net and len({way for _, way in left}) <= 1:
            ranked.reverse()
        return ranked

    def ranking(self, gpu: int, net: int) -> list[tuple[int, tuple[int, int]]]:
        """All other GPUs, best first, with speed and hops of the way there; `net`: the channel came in by it, or -1."""
        if (gpu, net) not in self.rankings:
            n, ways = self.n, self.system.between[gpu]
            others = ((k, (gpu + k) % n) for k in range(1, n))
            scored = sorted(
                (*self.score(other, net), -(way.speed // 1000), way.hops, k, other)
                for k, other in others
                if (way := ways[other]).hops
            )
            self.rankings[gpu, net] = [(score[-1], score[3:5]) for score in scored]
        return self.rankings[gpu, net]

    def score(self, gpu: int, net: int) -> tuple[int, int, int]:
        """Speed and hops of a GPU's way from the net that the channel came in by; nothing without one."""
        if net < 0:
            return 0, 0, 0
        back = self.system.back[net][gpu]
        return -(back.speed // 1000), -(self.system.pcie[gpu] // 1000), back.hops

    def head(self, gpu: int) -> None:
        """NVLink SHARP: every GPU's links to the switches are loaded once, the head's twice."""
        taken: list[Toll] = []
        once, twice = self.switch
        for at in range(2 * self.n):
            toll = (twice if at % self.n == gpu else once)[at]
            if toll is None or not self.take(toll):
                break
            taken.append(toll)
        else:
            self.step(gpu, self.n, -1, -1, FREE)
        for toll in taken:
            self.give(toll)

    # answers --------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """A channel is complete: keep what there is if it is better, and look for another."""
        if self.better():
            self.best = replace(
                self.target,
                orders=tuple(map(tuple, self.orders)),
                hops=self.hops,
                nets=tuple((a, b) for a, b in self.nets) if self.system.nets else (),
            )
            if len(self.orders) == self.target.most:
                self.time = -1
            elif not self.system.limits.improvable(
                self.target, self.best, self.system.speed
            ):
                self.time = 0  # what is left of the budget would find nothing
        if len(self.orders) < self.target.most:
            self.channel()

    def better(self) -> bool:
        """Whether the channels so far are better than the best set: more bandwidth, or fewer hops."""
        count, best = len(self.orders), self.best
        if count < self.target.least:
            return False
        if self.target.pattern == NVLS:
            more = best.count < count <= self.n
            return more or count * self.target.between > best.count * best.between
        now, then = count * self.target.inside, best.count * best.inside
        same = self.target.pattern == best.pattern and self.target.cross == best.cross
        return now > then or (now == then and same and self.hops < best.hops)
