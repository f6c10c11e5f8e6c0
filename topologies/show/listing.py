"""A cluster for people and for other tools: a listing, a picture, a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sim.errors import InputError, Mistake, did_you_mean
from sim.units import format_bandwidth, format_duration
from topologies.fabric import Fabric
from topologies.show.summary import summary

_PICTURES = (".png", ".svg")
_SHOWN = 3
_PATHS = 8
_NUMBERS = ("count", "each", "towards CPU", "on the wire", "latency")
_LINK_COLUMNS = ("links", *_NUMBERS, "evidence (bandwidth, latency)", "between")
_Group = tuple[str, float, float, tuple[float, float], str, str]


def render(fabric: Fabric, width: int = 132) -> str:
    """The cluster as text: nodes and links by kind, one route, and the numbers' sources; cut at `width` columns."""
    gpus, hosts, model = (
        len(fabric.gpus),
        len(fabric.hosts),
        fabric.gpu_model or "unknown GPU",
    )
    head = f"{fabric.name}: {gpus} GPUs ({model}) in {hosts} host{'s' if hosts != 1 else ''}"
    lines = [
        head,
        "",
        *_table(["nodes", "count", "names"], _nodes(fabric)),
        "",
        *_links(fabric),
    ]
    told = summary(fabric)
    wide = max((len(what) for what, _ in told), default=0) + 2
    lines += ["", *(f"{what:{wide}}{much}" for what, much in told)] if told else []
    if gpus > 1:
        lines += ["", *_route(fabric, fabric.gpus[0], fabric.gpus[-1])]
    lines += ["", *_facts(fabric)] if fabric.facts else []
    return "\n".join(
        line if len(line) <= width else line[: width - 3] + "..." for line in lines
    )


def picture(fabric: Fabric, path: str | Path) -> None:
    """Draw the cluster to a .png or .svg file.

    Raises
    ------
    InputError
        For another kind of file.
    """
    _check_suffix(Path(path), _PICTURES)
    # matplotlib is slow to import
    from topologies.show.drawing import draw

    draw(fabric, Path(path))


def _check_suffix(path: Path, known: Iterable[str]) -> None:
    if path.suffix not in known:
        expected = f"a file that ends in {' or '.join(known)}"
        raise InputError(
            Mistake(
                str(path),
                "",
                f'"{path.suffix}"',
                expected,
                did_you_mean(path.suffix, known),
            )
        )


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
    links = fabric.links
    groups: dict[_Group, list[int]] = {}
    for row in range(len(links)):
        back = links.index[links.dst[row], links.src[row]]
        if back < row:
            continue
        one = [round(links.bandwidth[at] / links.count[at], 3) for at in (row, back)]
        delays = float(links.latency[row]), float(links.latency[back])
        grades = str(links.evidence[row]), str(links.latency_evidence[row])
        key = (str(links.kind[row]), one[0], one[1], delays, *grades)
        groups.setdefault(key, []).append(row)
    several = {
        kind for kind in links.kinds if sum(key[0] == kind for key in groups) > 1
    }
    body = [
        _link_row(fabric, key, rows, key[0] in several) for key, rows in groups.items()
    ]
    note = "bandwidth: payload of one physical link in one direction; on the wire: as the datasheet has it"
    return [*_table([*_LINK_COLUMNS], body), note]


def _link_row(fabric: Fabric, key: _Group, rows: list[int], name: bool) -> list[str]:
    kind, down, up, (delay, back), grade, delay_grade = key
    links = fabric.links
    kind_of = dict(zip(fabric.nodes.names, fabric.nodes.kinds, strict=True))
    ends = ", ".join(
        dict.fromkeys(
            f"{kind_of[links.src[row]]}-{kind_of[links.dst[row]]}" for row in rows
        )
    )
    if name:
        ends = ", ".join(links.names(rows[:_SHOWN])) + (
            ", ..." if len(rows) > _SHOWN else ""
        )
    latency = format_duration(delay) + (
        "" if delay == back else f" / {format_duration(back)}"
    )
    wire = format_bandwidth(links.raw[rows[0]] / links.count[rows[0]])
    upward = "same" if down == up else format_bandwidth(up)
    count = str(int(links.count[rows].sum()))
    return [
        kind,
        count,
        format_bandwidth(down),
        upward,
        wire,
        latency,
        f"{grade}, {delay_grade}",
        ends,
    ]


def _route(fabric: Fabric, src: str, dst: str) -> list[str]:
    lines = [
        f"{src} to {dst}, {format_duration(fabric.latency(fabric.route(src, dst)))} without software:"
    ]
    # Shares are fixed, so the first path to fill up holds the others back.
    total = float("inf")
    paths = fabric.routes(src, dst)
    for at, (path, share) in enumerate(paths):
        narrow = float(fabric.links.bandwidth[path].min())
        total = min(total, narrow / share)
        if at >= _PATHS:
            continue
        names = " > ".join([src, *fabric.links.dst[path].tolist()])
        lines.append(f"  {share:6.1%} over {names}, {format_bandwidth(narrow)}")
    more = [f"  and {len(paths) - _PATHS} more ways"] if len(paths) > _PATHS else []
    return [*lines, *more, f"  {format_bandwidth(total)} in all"]


def _facts(fabric: Fabric) -> list[str]:
    rows = [[key, known.evidence, known.source] for key, known in fabric.facts.items()]
    return _table(["number", "evidence", "source"], rows)
