"""What every cluster must satisfy before anything runs on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from prestep.sim.errors import Mistake, did_you_mean
from prestep.topologies.core.links import Ints, Links, Nodes
from prestep.topologies.core.quantity import GRADES

# Enough to see the pattern; a builder's slip repeats on every link.
_SHOWN = 8


def check(name: str, nodes: Nodes, links: Links) -> list[Mistake]:
    """Everything wrong with a cluster: names, numbers, missing reverse links, GPUs that cannot reach each other."""
    src, dst = links.ends(nodes)
    names = list(_names(name, nodes, links, src, dst))
    mistakes = [*names, *_numbers(name, links)]
    if not names:  # else nobody knows what leads where
        alone = list(_reverses(name, links, len(nodes), src, dst))
        if alone:  # nor that GPUs are cut off by the direction that is missing
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        mistakes += [*alone, *_reachable(name, nodes, src, dst)]
    return mistakes


def _names(
    name: str, nodes: Nodes, links: Links, src: Ints, dst: Ints
) -> Iterator[Mistake]:
    if len(nodes.index) < len(nodes):
        twice = [node for node, count in Counter(nodes.names).items() if count > 1]
        yield from (
            Mistake(name, node, "two nodes of this name", "names that differ")
            for node in twice[:_SHOWN]
        )
    # In numpy whether anything is wrong, and only then row by row what.
    pairs = np.sort(src * len(nodes) + dst)
    if (
        (src < 0).any()
        or (dst < 0).any()
        or (src == dst).any()
        or (pairs[1:] == pairs[:-1]).any()
    ):
        yield from _wrong_ends(name, set(nodes.names), links)
    if "gpu" not in nodes.kinds:
        yield Mistake(name, "nodes", "no GPU", 'at least one node of kind "gpu"')


def _wrong_ends(name: str, known: set[str], links: Links) -> Iterator[Mistake]:
    for row, (src, dst) in enumerate(
        zip(links.src.tolist(), links.dst.tolist(), strict=True)
    ):
        for end in {src, dst} - known:
            yield Mistake(
                name,
                links.name(row),
                f'the end "{end}"',
                "a node of the cluster",
                did_you_mean(end, known),
            )
        if src == dst:
            yield Mistake(
                name,
                links.name(row),
                "a link from a node to itself",
                "two different ends",
            )
    pairs = Counter(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    for (src, dst), count in pairs.items():
        if count > 1:
            yield Mistake(
                name,
                f"{src}-{dst}",
                f"{count} links",
                "one link with a count",
                f"count = {count}",
            )


def _numbers(name: str, links: Links) -> Iterator[Mistake]:
    positive = "a finite number above 0"
    wrong = {
        "bandwidth": (
            ~(np.isfinite(links.bandwidth) & (links.bandwidth > 0)),
            positive + ", in bytes/s",
        ),
        "raw": (~(np.isfinite(links.raw) & (links.raw > 0)), positive + ", in bytes/s"),
        "latency": (
            ~(np.isfinite(links.latency) & (links.latency >= 0)),
            "a finite number of seconds, not negative",
        ),
        "count": (links.count < 1, "at least 1"),
    }
    for column in ("evidence", "latency_evidence"):
        grades = getattr(links, column)
        # Row by row only where there is one to find.
        odd = not {*grades.tolist()} <= {*GRADES}
        bad = ~np.isin(grades, GRADES) if odd else np.zeros(0, dtype=bool)
        wrong[column] = bad, f"one of {', '.join(GRADES)}"
    for column, (bad, expected) in wrong.items():
        for row in np.flatnonzero(bad)[:_SHOWN].tolist():
            yield Mistake(
                name,
                f"{links.name(row)}.{column}",
                f"{getattr(links, column)[row]}",
                expected,
            )


def _reverses(
    name: str, links: Links, size: int, src: Ints, dst: Ints
) -> Iterator[Mistake]:
    pairs, back = src * size + dst, dst * size + src
    if np.array_equal(np.sort(pairs), np.sort(back)):
        return
    alone = np.flatnonzero(~np.isin(back, pairs))
    for row in alone[:_SHOWN].tolist():
        ends = links.src[row], links.dst[row]
        yield Mistake(
            name,
            f"{ends[0]}-{ends[1]}",
            "a link in one direction",
            f"the reverse link {ends[1]}-{ends[0]} too",
        )


def _reachable(name: str, nodes: Nodes, src: Ints, dst: Ints) -> Iterator[Mistake]:
    """Links have their reverses, so one flood from the first GPU settles it."""
    gpus = np.flatnonzero(np.array(nodes.kinds) == "gpu")
    label = components(len(nodes), src, dst)
    alone = gpus[label[gpus] != label[gpus[0]]]
    for gpu in alone[:_SHOWN].tolist():
        yield Mistake(
            name,
            nodes.names[gpu],
            f"no path from {nodes.names[gpus[0]]}",
            "every GPU reachable from every other",
        )


def joined(size: int, a: Ints, b: Ints) -> Ints:
    """`components` where links lead both ways."""
    return components(size, np.concatenate([a, b]), np.concatenate([b, a]))


def components(size: int, src: Ints, dst: Ints) -> Ints:
    """Connected component of every node: the lowest label spreads until nothing changes, halving paths as it goes."""
    label = np.arange(size)
    while True:
        spread = label.copy()
        np.minimum.at(spread, dst, label[src])
        spread = np.minimum(spread, spread[spread])
        if np.array_equal(spread, label):
            return label
        label = spread
