"""A cluster for people and for other tools: a listing, a picture, a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim.errors import InputError
from prestep.sim.extras import lazily
from prestep.sim.units import format_bandwidth, format_duration
from prestep.topologies.fabric import Fabric
from prestep.topologies.show.summary import oversubscription, summary

with lazily():
    from prestep.topologies.show import drawing

_SHOWN = 3
_PATHS = 8
_NUMBERS = ("count", "each", "towards CPU", "on the wire", "latency")
_LINK_COLUMNS = ("links", *_NUMBERS, "evidence (bandwidth, latency)", "between")


class _Group(NamedTuple):
    """What the links in one row of the listing have in common: bandwidth of one towards the device and back, ..."""

    kind: str
    down: float
    up: float
    latencies: tuple[float, float]
    evidence: str
    latency_evidence: str


def to_dict(fabric: Fabric) -> dict[str, Any]:
    """The cluster for programs: nodes and links by kind, tiers, and numbers with their sources, in SI units."""
    links = fabric.links
    return {
        "name": fabric.name,
        "gpu": fabric.gpu_model,
        "hosts": len(fabric.hosts),
        "gpus": len(fabric.gpus),
        "nodes": dict(Counter(fabric.nodes.kinds)),
        "links": [
            {
                "kind": group.kind,
                "count": int(links.count[rows].sum()),
                "bandwidth": group.down,
                "bandwidth_back": group.up,
                "raw": float(links.raw[rows[0]] / links.count[rows[0]]),
                "latency": group.latencies[0],
                "evidence": group.evidence,
                "between": _ends(fabric, rows).split(", "),
            }
            for group, rows in _groups(fabric).items()
        ],
        "oversubscription": [vars(tier) for tier in oversubscription(fabric)],
        "facts": {key: vars(known) for key, known in fabric.facts.items()},
    }


def render(fabric: Fabric, width: int | None = None) -> str:
    """The cluster as text: nodes and links by kind, one route, and the numbers' sources; cut at `width` columns."""
    parts = [
        [_heading(fabric)],
        _table(["nodes", "count", "names"], _nodes(fabric)),
        _links(fabric),
        _summary(fabric),
    ]
    if len(fabric.gpus) > 1:
        parts.append(_route(fabric, fabric.gpus[0], fabric.gpus[-1]))
    if fabric.facts:
        parts.append(_facts(fabric))
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return "\n".join(_cut(line, width) for line in text.split("\n"))


def _heading(fabric: Fabric) -> str:
    hosts = len(fabric.hosts)
    model = fabric.gpu_model or "unknown GPU"
    plural = "s" if hosts != 1 else ""
    return f"{fabric.name}: {len(fabric.gpus)} GPUs ({model}) in {hosts} host{plural}"


def _summary(fabric: Fabric) -> list[str]:
    rows = summary(fabric)
    widest = max((len(name) for name, _ in rows), default=0) + 2
    return [f"{name:{widest}}{value}" for name, value in rows]


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 3] + "..."


def picture(fabric: Fabric, path: str | Path) -> None:
    """Writes a drawing of the cluster (.svg).

    Raises
    ------
    InputError
        For another kind of file.
    """
    if Path(path).suffix != ".svg":
        found, expected = f'"{Path(path).suffix}"', "a file that ends in .svg"
        raise InputError.of(str(path), "", found, expected)
    drawing.write(fabric, Path(path))


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Columns two spaces apart; numbers to the right, text to the left."""
    cells = [header, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(header))]
    right = [name in _NUMBERS for name in header]
    lines = [
        "  ".join(
            text.rjust(w) if r else text.ljust(w)
            for text, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return [lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]


def _nodes(fabric: Fabric) -> Iterator[list[str]]:
    for kind in dict.fromkeys(fabric.nodes.kinds):
        names = fabric.nodes.of_kind(kind)
        listed = (
            ", ".join(names) if len(names) <= _SHOWN else f"{names[0]} ... {names[-1]}"
        )
        yield [kind, str(len(names)), listed]


def _links(fabric: Fabric) -> list[str]:
    """One row for each kind of link with the same numbers; a changed link gets a row of its own, and its name."""
    groups = _groups(fabric)
    of_kind = Counter(group.kind for group in groups)
    body = [
        _link_row(fabric, group, rows, named=of_kind[group.kind] > 1)
        for group, rows in groups.items()
    ]
    note = "bandwidth: payload of one physical link in one direction; on the wire: as the datasheet has it"
    return [*_table([*_LINK_COLUMNS], body), note]


def _groups(fabric: Fabric) -> dict[_Group, list[int]]:
    """Rows of links, one direction of each, by kind and numbers."""
    groups: dict[_Group, list[int]] = {}
    links = fabric.links
    for row in range(len(links)):
        back = links.index[links.dst[row], links.src[row]]
        if row <= back:
            groups.setdefault(_group(fabric, row, back), []).append(row)
    return groups


def _group(fabric: Fabric, row: int, back: int) -> _Group:
    """The numbers of a link; `back` is the row of its other direction."""
    links = fabric.links
    down, up = (round(links.bandwidth[at] / links.count[at], 3) for at in (row, back))
    return _Group(
        str(links.kind[row]),
        down,
        up,
        (float(links.latency[row]), float(links.latency[back])),
        str(links.evidence[row]),
        str(links.latency_evidence[row]),
    )


def _link_row(fabric: Fabric, group: _Group, rows: list[int], named: bool) -> list[str]:
    """One row of the table; `named`: with the names of its links instead of the kinds of their ends."""
    links = fabric.links
    upward = "same" if group.down == group.up else format_bandwidth(group.up)
    delay, back = group.latencies
    latency = format_duration(delay)
    if delay != back:
        latency += f" / {format_duration(back)}"
    return [
        group.kind,
        str(int(links.count[rows].sum())),
        format_bandwidth(group.down),
        upward,
        format_bandwidth(links.raw[rows[0]] / links.count[rows[0]]),
        latency,
        f"{group.evidence}, {group.latency_evidence}",
        _names(fabric, rows) if named else _ends(fabric, rows),
    ]


def _names(fabric: Fabric, rows: list[int]) -> str:
    shown = ", ".join(fabric.links.names(rows[:_SHOWN]))
    return f"{shown}, ..." if len(rows) > _SHOWN else shown


def _ends(fabric: Fabric, rows: list[int]) -> str:
    """The kinds of nodes that some links join."""
    kinds = fabric.nodes.kinds
    src, dst = (ends[rows].tolist() for ends in fabric.ends)
    pairs = [f"{kinds[a]}-{kinds[b]}" for a, b in zip(src, dst, strict=True)]
    return ", ".join(dict.fromkeys(pairs))


def _route(fabric: Fabric, src: str, dst: str) -> list[str]:
    lines = [
        f"{src} to {dst}, {format_duration(fabric.latency(fabric.route(src, dst)))} without software:"
    ]
    paths = fabric.routes(src, dst)
    for path, share in paths[:_PATHS]:
        narrow = float(fabric.links.bandwidth[path].min())
        names = " > ".join([src, *fabric.links.dst[path].tolist()])
        lines.append(f"  {share:6.1%} over {names}, {format_bandwidth(narrow)}")
    more = [f"  and {len(paths) - _PATHS} more ways"] if len(paths) > _PATHS else []
    return [*lines, *more, f"  {format_bandwidth(_pair(fabric, src, dst))} in all"]


def _pair(fabric: Fabric, src: str, dst: str) -> float:
    """Bytes/s that one node can send another over all ways together.

    Shares are fixed, so the first link to fill up holds all ways back; a link that several ways have in common, such as
    the NIC, carries the sum of their shares.
    """
    links, share = fabric.spread(src, dst)
    return float((fabric.links.bandwidth[links] / share).min())


def _facts(fabric: Fabric) -> list[str]:
    rows = [[key, known.evidence, known.source] for key, known in fabric.facts.items()]
    return _table(["number", "evidence", "source"], rows)
