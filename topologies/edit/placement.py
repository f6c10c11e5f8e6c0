"""Which rank runs on which GPU: in order, by leaf, by rail, dealt out over leaves, from a hostfile, or by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.extras import lazily
from prestep.topologies.fabric import Fabric

with lazily():
    from prestep.topologies.edit import hostfile


class Wanted(Protocol):
    """What is asked for: the keys of a scenario's [placement] (`prestep.sim.spec.sections.Placement`)."""

    @property
    def by(self) -> str: ...
    @property
    def gpus(self) -> tuple[str, ...] | None: ...
    @property
    def hosts(self) -> tuple[str, ...] | None: ...
    @property
    def hostfile(self) -> str | None: ...
    @property
    def slots(self) -> int | None: ...
    @property
    def leaves(self) -> int | None: ...


Hosts = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Slots:
    """GPUs of one host that ranks may use, in the fabric's order; `where` said so."""

    host: str
    gpus: tuple[str, ...]
    where: str


def place(
    fabric: Fabric,
    ranks: int,
    wanted: Wanted,
    where: str = "placement",
    taken: Sequence[str] = (),
) -> tuple[str, ...]:
    """GPU of every rank.

    Parameters
    ----------
    fabric
        The cluster.
    ranks
        How many.
    wanted
        What is asked for; see `Wanted`.
    where
        Where it was asked, for errors.
    taken
        GPUs of other jobs: left out where the scenario names no hosts, an error where it does.

    Raises
    ------
    InputError
        Naming the host or the rank that does not fit: hosts or GPUs that are not there, more ranks than places,
        a GPU for two ranks or two jobs.
    """
    _one_way(wanted, where)
    others = frozenset(taken)
    if wanted.gpus is not None:
        return _listed(fabric, ranks, wanted.gpus, where, others)
    lines = _lines(wanted, where)
    if wanted.hostfile is not None and _one_rank_a_line(lines):
        gpus = _by_line(fabric.gpus_by_host, lines)
        return _listed(fabric, ranks, gpus, where, others)
    if wanted.hostfile is None and wanted.hosts is None:
        slots = _free(fabric.gpus_by_host, wanted.slots, where, others)
    else:
        slots = _all_slots(fabric.gpus_by_host, lines)
    _each_once(slots, others)
    places = _sorted(fabric, slots, wanted, where)
    if ranks > len(places):
        raise InputError(_too_many(ranks, len(places), len(slots), where))
    return places[:ranks]


def _too_many(ranks: int, gpus: int, hosts: int, where: str) -> Mistake:
    found = f"{ranks} ranks for {gpus} GPUs of {hosts} hosts: rank {gpus} has none"
    hint = "name more hosts, or more slots"
    return Mistake(where, "", found, f"at most {gpus} ranks", hint)


def _lines(wanted: Wanted, where: str) -> list[hostfile.Line]:
    """The hosts that are named, in a hostfile or in the scenario."""
    if wanted.hostfile is not None:
        return list(hostfile.read(wanted.hostfile))
    key = f"{where}.hosts"
    names = [host for text in wanted.hosts or () for host in hostfile.expand(text, key)]
    return [hostfile.Line(host, wanted.slots, key) for host in names]


def leaves_of(fabric: Fabric) -> dict[str, str]:
    """The switch that each host hangs under: that of its first NIC."""
    leaves: dict[str, str] = {}
    for nic, leaf in fabric.ports:
        leaves.setdefault(fabric.host_of(nic), leaf)
    return leaves


def _one_way(wanted: Wanted, where: str) -> None:
    said = [
        key for key in ("gpus", "hosts", "hostfile") if getattr(wanted, key) is not None
    ]
    if len(said) > 1:
        raise InputError.of(
            where, "", " and ".join(said), "one of gpus, hosts and hostfile"
        )
    if wanted.leaves is not None and wanted.by != "scattered":
        raise InputError.of(
            f"{where}.leaves", "", str(wanted.leaves), 'by = "scattered" beside it'
        )
    if wanted.gpus is not None and (wanted.by != "order" or wanted.slots is not None):
        raise InputError.of(
            where,
            "",
            "gpus with by or slots",
            "gpus alone: it says where every rank is",
        )
    if wanted.hostfile is not None and wanted.slots is not None:
        raise InputError.of(
            f"{where}.slots",
            "",
            str(wanted.slots),
            "slots=N in the lines of the hostfile",
        )


def _listed(
    fabric: Fabric, ranks: int, gpus: Sequence[str], where: str, taken: frozenset[str]
) -> tuple[str, ...]:
    """An explicit list."""
    mistakes = list(_wrong_gpus(fabric, gpus, where, taken))
    if len(gpus) != ranks:
        expected = f"{ranks}, one for every rank"
        mistakes.append(Mistake(where, "gpus", f"{len(gpus)} GPUs", expected))
    InputError.check(mistakes)
    return tuple(gpus)


def _wrong_gpus(
    fabric: Fabric, gpus: Sequence[str], where: str, taken: frozenset[str]
) -> Iterator[Mistake]:
    """GPUs of a list that are not there, or that another job or rank has."""
    names = set(fabric.gpus)
    rank_on: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        key = f"gpus, rank {rank}"
        if gpu not in names:
            expected = f"a GPU of the cluster, such as {fabric.gpus[0]}"
            hint = did_you_mean(gpu, names)
            yield Mistake(where, key, f'"{gpu}"', expected, hint)
        elif gpu in taken:
            yield Mistake(where, key, f"{gpu}, of another job", "a GPU of its own")
        elif gpu in rank_on:
            found = f"{gpu}, where rank {rank_on[gpu]} is"
            yield Mistake(where, key, found, "a GPU of its own")
        rank_on.setdefault(gpu, rank)


def _all_slots(hosts: Hosts, lines: Sequence[hostfile.Line]) -> list[Slots]:
    found: list[Slots] = []
    mistakes: list[Mistake] = []
    for line in lines:
        with InputError.collected(mistakes):
            found.append(_slots(hosts, line))
    InputError.check(mistakes)
    return found


def _slots(hosts: Hosts, line: hostfile.Line) -> Slots:
    if line.host not in hosts:
        names = list(hosts)
        listed = ", ".join(names if len(names) <= 8 else [*names[:3], "...", names[-1]])
        hint = did_you_mean(line.host, names)
        raise InputError.of(
            line.where,
            "",
            f'host "{line.host}"',
            f"a host of the cluster: {listed}",
            hint,
        )
    gpus = hosts[line.host]
    if line.slots is not None and line.slots > len(gpus):
        found = f"{line.slots} slots on {line.host}"
        raise InputError.of(
            line.where, "", found, f"at most {len(gpus)}, the GPUs of {line.host}"
        )
    return Slots(
        line.host, gpus if line.slots is None else gpus[: line.slots], line.where
    )


def _one_rank_a_line(lines: Sequence[hostfile.Line]) -> bool:
    """Bare lines that repeat a host: a rank each, in that order, as Slurm's arbitrary distribution has it."""
    return all(line.slots is None for line in lines) and len(
        {line.host for line in lines}
    ) < len(lines)


def _by_line(hosts: Hosts, lines: Sequence[hostfile.Line]) -> list[str]:
    used: dict[str, int] = {}
    places: list[str] = []
    for line in lines:
        gpus, at = _slots(hosts, line).gpus, used.get(line.host, 0)
        if at >= len(gpus):
            found = f"{line.host} for the {at + 1}th time: rank {len(places)} has no GPU there"
            raise InputError.of(
                line.where, "", found, f"at most {len(gpus)} lines, one for every GPU"
            )
        places.append(gpus[at])
        used[line.host] = at + 1
    return places


def _free(
    hosts: Hosts, slots: int | None, where: str, taken: frozenset[str]
) -> list[Slots]:
    """All hosts, less the GPUs that other jobs have."""
    found = []
    for host, gpus in hosts.items():
        left = tuple(gpu for gpu in gpus if gpu not in taken)
        if slots is not None and slots > len(gpus):
            wrong = f"{slots} on {host}"
            raise InputError.of(
                f"{where}.slots", "", wrong, f"at most {len(gpus)}, the GPUs of {host}"
            )
        if left:
            found.append(Slots(host, left if slots is None else left[:slots], where))
    return found


def _each_once(slots: Sequence[Slots], taken: frozenset[str]) -> None:
    seen: set[str] = set()
    mistakes = []
    for one in slots:
        if one.host in seen:
            mistakes.append(
                Mistake(one.where, "", f"{one.host} twice", "every host once")
            )
        elif shared := [gpu for gpu in one.gpus if gpu in taken]:
            mistakes.append(
                Mistake(
                    one.where, "", f"{shared[0]}, of another job", "GPUs of its own"
                )
            )
        seen.add(one.host)
    InputError.check(mistakes)


def _sorted(
    fabric: Fabric, slots: list[Slots], wanted: Wanted, where: str
) -> tuple[str, ...]:
    """GPUs in the order of ranks."""
    if wanted.by == "rail":
        rails = zip_longest(*(one.gpus for one in slots))
        return tuple(gpu for rail in rails for gpu in rail if gpu is not None)
    if wanted.by in ("leaf", "scattered"):
        groups = _by_leaf(fabric, slots, wanted.leaves, where)
        in_turn = list(_dealt(groups))
        leaf_by_leaf = [one for group in groups for one in group]
        slots = leaf_by_leaf if wanted.by == "leaf" else in_turn
    return tuple(gpu for one in slots for gpu in one.gpus)


def _by_leaf(
    fabric: Fabric, slots: list[Slots], most: int | None, where: str
) -> list[list[Slots]]:
    """Hosts in groups under one leaf each, of at most so many leaves."""
    leaves = leaves_of(fabric)
    under: dict[str, list[Slots]] = {}
    for one in slots:
        under.setdefault(leaves.get(one.host, ""), []).append(one)
    if most is not None and most > len(under):
        expected = f"at most {len(under)}, those over the hosts"
        raise InputError.of(f"{where}.leaves", "", f"{most}", expected)
    return list(under.values())[:most]


def _dealt(groups: Sequence[Sequence[Slots]]) -> Iterator[Slots]:
    """One host of every group in turn: neighbouring hosts share no leaf."""
    for row in zip_longest(*groups):
        yield from (one for one in row if one is not None)
