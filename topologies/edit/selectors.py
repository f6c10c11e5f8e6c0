"""What a what-if means by its selector: which links, and which devices.

=======================================  ==================================================================
selector                                 what it means
=======================================  ==================================================================
`nvlink`, `nic`, `spine`                 all links of a kind (for `off`: the NICs or switches of that name too)
`leaf`, `spine`, `core`, `nvswitch`      a tier of switches: the links that come into it from below
`gpu`, `cpu`, `pcieswitch`               devices of a kind, and every link at one
`link`                                   every link
`nic[host3]`, `nvlink[gpu0]`             those in one host, or at one node
`gpu[17]`, `leaf[0-3,7]`, `nic[host0.3]` those of a number in the cluster, or in a host
`host3`, `host3/nic0`                    every link in or at a host, or at a node
`plane0`, `group1`                       switches of a plane or a group, and every link at one
`link[a->b]`, `a>b`                      one direction of one link
`link[a-b]`, `a-b`                       both directions of it
=======================================  ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from prestep.sim.errors import Mistake, did_you_mean
from prestep.topologies.core.kinds import TIERS
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric

_PART = re.compile(r"([^\[\]]+)\[(.+)\]")
_NUMBERS = re.compile(r"\d+(?:-\d+)?(?:\s*,\s*\d+(?:-\d+)?)*")
_IN_HOST = re.compile(r"(.+)\.(\d+(?:-\d+)?)")
# Names looked through for a close one: more would take minutes on 100,000 GPUs.
_MOST_NAMES = 2000


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of `fabric.links`, ascending, and names of the devices that are meant themselves."""

    rows: Ints
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(len(self.rows)) or bool(self.nodes)

    def cables(self, fabric: Fabric) -> Ints:
        """The links that go when this is off: both directions, and every link at its devices."""
        rows = set(self.rows.tolist()) | set(_at(fabric, self.nodes).tolist())
        index, links = fabric.links.index, fabric.links
        back = {index.get((links.dst[row], links.src[row]), row) for row in rows}
        return np.array(sorted(rows | back), dtype=np.int64)


_NONE = Selection(np.empty(0, dtype=np.int64))


def resolve(fabric: Fabric, selector: str) -> Selection:
    """What a selector means on a fabric; an empty selection when nothing."""
    selector = selector.strip()
    if part := _PART.fullmatch(selector):
        return _part(fabric, part[1].strip(), part[2].strip())
    nodes = fabric.nodes
    if selector == "link":
        return Selection(np.arange(len(fabric.links)))
    if selector in fabric.links.kinds:
        return Selection(fabric.links.of_kind(selector), nodes.of_kind(selector))
    if selector in nodes.kinds:
        return _of_kind(fabric, selector, nodes.of_kind(selector))
    if selector in nodes.index:
        return _whole(fabric, [selector])
    if selector in fabric.hosts:
        return _whole(fabric, _inside(fabric, selector))
    unit = [name for name in nodes.names if name.startswith(f"{selector}/")]
    return _whole(fabric, unit) if unit else Selection(_link(fabric, selector))


#: Kinds that many clusters have: who names one has not mistyped another.
KINDS_ELSEWHERE = frozenset(
    ("nvlink", "nvswitch", "pcie", "nic", "leaf", "spine", "core", "rail")
)


def missing(fabric: Fabric, selector: str, key: str, where: str) -> Mistake:
    """The mistake of a selector that means nothing on this fabric, with what comes close."""
    part = _PART.fullmatch(selector.strip())
    kind, inside = (part[1].strip(), part[2]) if part else ("", "")
    text, signs = (inside, _ENDS) if kind == "link" else (selector, _ENDS[:2])
    if hint := _wrong_end(fabric, text, signs):
        expected = f"a link of {fabric.name}, such as {fabric.links.name(0)}"
        return Mistake(where, key, f'"{selector}", which is no link', expected, hint)
    if kind in _kinds(fabric):
        hint = did_you_mean(inside, _some_names(fabric)) or _some_hosts(fabric)
        found = f'"{selector}", which {fabric.name} does not have'
        return Mistake(where, key, found, _bracketed(fabric, kind), hint)
    found = f'"{selector}", which matches no link and no device'
    name = part[1].strip() if part else selector
    hint = _close_to(fabric, name)
    if name in KINDS_ELSEWHERE:
        hint = f"{fabric.name} has no {name}; `prestep topology show {fabric.name}` draws what it has"
    return Mistake(where, key, found, _anything(fabric), hint)


def _close_to(fabric: Fabric, name: str) -> str:
    """A kind, host, node or link of nearly that name."""
    links = fabric.links.names(range(min(len(fabric.links), _MOST_NAMES)))
    return did_you_mean(name, [*_kinds(fabric), *_some_names(fabric), *links])


def _some_names(fabric: Fabric) -> list[str]:
    """Names of hosts and nodes among which to look for a close one."""
    return [*fabric.hosts[:_MOST_NAMES], *fabric.nodes.names[:_MOST_NAMES]]


def _kinds(fabric: Fabric) -> list[str]:
    """Kinds of links and nodes that a selector may name."""
    return list(dict.fromkeys([*fabric.links.kinds, *fabric.nodes.kinds, "link"]))


def _anything(fabric: Fabric) -> str:
    """What a selector may be."""
    kinds = ", ".join(_kinds(fabric))
    link = fabric.links.name(0)
    return (
        f"a kind ({kinds}), a link such as {link}, or a host or node of {fabric.name}"
    )


def _bracketed(fabric: Fabric, kind: str) -> str:
    """What may stand in the brackets after a kind."""
    count = len(fabric.nodes.of_kind(kind))
    numbers = f", or a number from 0 to {count - 1}" if count else ""
    return f"in the brackets a host, or a node that has a {kind}{numbers}"


#: What stands between the ends of a link.
_ENDS = ("->", ">", "-")


def _wrong_end(fabric: Fabric, text: str, signs: Sequence[str]) -> str:
    """What is wrong with `a->b`: an end that is no node, or where the first one's links lead; "" for other texts."""
    arrow = next((sign for sign in signs if sign in text), None)
    if arrow is None:
        return ""
    ends = [piece.strip() for piece in text.split(arrow, 1)]
    for end in ends:
        if end not in fabric.nodes.index:
            close = did_you_mean(end, fabric.nodes.names[:_MOST_NAMES])
            return close or f'there is no node "{end}"'
    near = fabric.links.dst[fabric.links.src == ends[0]].tolist()
    return f"{ends[0]} has links to {_first(near, 4)}"


def _first(names: Sequence[str], count: int) -> str:
    """The first of some names, and dots where there are more."""
    return f"{', '.join(names[:count])}{', ...' if len(names) > count else ''}"


def _some_hosts(fabric: Fabric) -> str:
    return f"hosts: {_first(fabric.hosts, 3)}"


def _part(fabric: Fabric, kind: str, where: str) -> Selection:
    """`kind[where]`."""
    links, nodes = fabric.links, fabric.nodes
    if kind == "link" and len(rows := _link(fabric, where)):
        return Selection(rows)
    if kind not in (*links.kinds, *nodes.kinds, "link", "host"):
        return _NONE
    devices = _devices(fabric, kind, where)
    if kind == "host":
        return _whole(fabric, [n for host in devices for n in _inside(fabric, host)])
    if kind not in links.kinds and kind != "link":
        return _of_kind(fabric, kind, devices) if devices else _NONE
    near = _at(fabric, devices or _inside(fabric, where))
    if kind == "link":
        return Selection(near)
    rows = links.of_kind(kind)
    own = tuple(name for name in devices if name in nodes.of_kind(kind))
    return Selection(rows[np.isin(rows, near)], own)


def _whole(fabric: Fabric, nodes: list[str]) -> Selection:
    """Some nodes and every link at one of them."""
    return Selection(_at(fabric, nodes), tuple(nodes))


def _devices(fabric: Fabric, kind: str, where: str) -> list[str]:
    """Nodes (of kind `host`: hosts) that the brackets name: by number, number in a host, name, host, or pattern."""
    nodes = fabric.nodes
    named = list(fabric.hosts if kind == "host" else nodes.of_kind(kind))
    if _NUMBERS.fullmatch(where):
        return [named[at] for at in _numbers(where, len(named))]
    if (found := _IN_HOST.fullmatch(where)) and found[1] in fabric.hosts:
        own = [
            name
            for name in named
            if kind != "host" and fabric.host_of(name) == found[1]
        ]
        return [own[at] for at in _numbers(found[2], len(own))]
    if kind == "host":
        return [name for name in named if fnmatchcase(name, where)]
    if where in fabric.hosts:
        return [name for name in named if fabric.host_of(name) == where]
    return [name for name in named if fnmatchcase(name, where)]


def _numbers(text: str, count: int) -> list[int]:
    """Those of `0-3,7` (0, 1, 2, 3, 7) that are below `count`, however far the ranges reach."""
    found: list[int] = []
    for piece in text.split(","):
        low, _, high = piece.strip().partition("-")
        found.extend(range(int(low), min(int(high or low) + 1, count)))
    return list(dict.fromkeys(found))


def _inside(fabric: Fabric, name: str) -> list[str]:
    """The node of that name, or the nodes of the host (or of hosts, by a pattern)."""
    pairs = zip(fabric.nodes.names, fabric.nodes.hosts, strict=True)
    return [
        node
        for node, host in pairs
        if fnmatchcase(node, name) or (host and fnmatchcase(host, name))
    ]


def _of_kind(fabric: Fabric, kind: str, devices: Iterable[str]) -> Selection:
    """Devices of one kind with their links; of a tier, those that come from below."""
    named = tuple(devices)
    rows = _at(fabric, named)
    if kind in TIERS:
        level = {name: at for at, name in enumerate(TIERS)}
        of = dict(zip(fabric.nodes.names, fabric.nodes.kinds, strict=True))
        links = fabric.links
        # Two leaves may be joined without a spine switch: their link is of kind "spine" all the same.
        names = [
            (links.kind[row], of[links.src[row]], of[links.dst[row]])
            for row in rows.tolist()
        ]
        top = np.array(
            [
                max(level.get(name, -1) for name in three) == level[kind]
                for three in names
            ],
            dtype=bool,
        )
        rows = rows[top] if top.any() else rows
    return Selection(rows, named)


def _at(fabric: Fabric, names: Iterable[str]) -> Ints:
    """Rows with an end among some nodes."""
    src, dst = fabric.ends
    wanted = np.zeros(len(fabric.nodes), dtype=np.bool_)
    wanted[[fabric.nodes.index[name] for name in set(names)]] = True
    return np.flatnonzero(wanted[src] | wanted[dst])


def _link(fabric: Fabric, text: str) -> Ints:
    """`a->b` and `a>b`: one direction; `a-b`: both. Names of hosts and nodes may hold dashes themselves."""
    index = fabric.links.index
    for arrow in ("->", ">"):
        src, found, dst = (piece.strip() for piece in text.partition(arrow))
        if found:
            rows = [index[src, dst]] if (src, dst) in index else []
            return np.array(rows, dtype=np.int64)
    for at, letter in enumerate(text):
        ends = text[:at].strip(), text[at + 1 :].strip()
        if letter == "-" and ends in index:
            return np.array(sorted((index[ends], index[ends[::-1]])), dtype=np.int64)
    return np.empty(0, dtype=np.int64)
