"""Region tables of Amazon's tuner plug-in, from its C++ source to sim/collectives/nccl/tuners.toml.

    git show COMMIT:src/tuner/nccl_ofi_regions.cpp | python -m lab.fit.aws_tuner COMMIT > .../tuners.toml

The plug-in compares a point (bytes, ranks) with polygons and takes the first that holds it. Vertices that the source
works out (`extend_region`) are written as numbers.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator

#: Largest operation and communicator that the plug-in knows (nccl_ofi_tuner_region.h).
NAMES = {"TUNER_MAX_SIZE": 100 * 2.0**30, "TUNER_MAX_RANKS": 2.0**20}
PLATFORMS = {
    "p5_p5e": "aws-p5",
    "p5en": "aws-p5en",
    "p6": "aws-p6-b200",
    "p6_b300": "aws-p6-b300",
}
OPS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
}
PROTOS = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
#: GPUs of a host that a branch of the source holds for.
LOCAL = {
    "nRanks == 8 * nNodes": 8,
    "nRanks == 2 * nNodes": 2,
    "nRanks == nNodes": 1,
}
_POINT = r"\{\s*([^{},]+),\s*([^{},]+?)\s*\}"
_VERTEX = re.compile(_POINT + r"|\b(extended_\w+)\b(?!\.)")
_EXTENDED = re.compile(
    r"(extended_\w+)\s*=\s*extend_region\((.*?)\);", re.DOTALL | re.ASCII
)
_REGION = re.compile(
    r"\.algorithm = NCCL_ALGO_(\w+),\s*\.protocol = NCCL_PROTO_(\w+),\s*"
    r"\.num_vertices = (\d+),\s*\.vertices = \{(.*?)(?=\.algorithm|ret = |\Z)",
    re.DOTALL,
)
Point = tuple[float, float]


def extended(a: Point, b: Point, most: Point) -> Point:
    """The farthest point within `most` on the line through two others, in logarithms, as the plug-in works it out."""
    (ax, ay), (bx, by), (mx, my) = (
        (math.log2(x), math.log2(y)) for x, y in (a, b, most)
    )
    if ax == bx:
        return 2**ax, 2**my
    if ay == by:
        return 2**mx, 2**ay
    slope = (ay - by) / (ax - bx)
    start = by - slope * bx
    at_most_bytes = slope * mx + start
    if at_most_bytes < my:
        return 2**mx, 2**at_most_bytes
    return 2 ** ((my - start) / slope), 2**my


def points(text: str, known: dict[str, Point]) -> Iterator[Point]:
    """Vertices of a piece of source; `known`: those with a name."""

    def number(word: str) -> float:
        name, _, axis = word.strip().partition(".")
        if axis in ("x", "y") and name in known:
            return known[name][axis == "y"]
        return NAMES[name] if name in NAMES else float(word)

    for match in _VERTEX.finditer(text):
        x, y, name = match.groups()
        yield known[name] if name else (number(x), number(y))


def tables(source: str) -> Iterator[tuple[str, int, str, list[str]]]:
    """Platform, GPUs of a host, operation, and regions as TOML."""
    for body in re.split(r"(?=region_init_internal_\w+\(nccl_ofi)", source)[1:]:
        platform = PLATFORMS.get(re.match(r"region_init_internal_(\w+)", body)[1])  # type: ignore[index]
        for branch in re.split(r"if \((?=nRanks)", body.partition("\n}")[0])[1:]:
            local = LOCAL[branch.partition(")")[0]]
            for part in re.split(r"collType = ncclFunc", branch)[1:]:
                known: dict[str, Point] = {}
                for name, arguments in _EXTENDED.findall(part):
                    known[name] = extended(*points(arguments, known))
                regions = []
                for algo, proto, count, edge in _REGION.findall(part):
                    corners = list(points(edge, known))
                    assert len(corners) == int(count), (platform, local, part[:30])
                    shown = ", ".join(f"[{x:.0f}, {y:.6g}]" for x, y in corners)
                    regions.append(
                        f'  {{ algo = "{algo.lower()}", proto = "{PROTOS[proto]}", edge = [{shown}] }},'
                    )
                assert len(regions) == part.count(".algorithm =")
                if platform:
                    yield platform, local, OPS[re.match(r"\w+", part)[0]], regions  # type: ignore[index]


def main(commit: str) -> None:
    """Prints the file."""
    print("# Which algorithm and protocol a tuner plug-in takes: the first region that")
    print(
        "# holds (bytes, ranks), in logarithms. By platform, GPUs of a host, operation."
    )
    print("# Written by lab/fit/aws_tuner.py.")
    print(f'source = "aws/aws-ofi-nccl at {commit}, src/tuner/nccl_ofi_regions.cpp"')
    last = ""
    for platform, local, op, regions in tables(sys.stdin.read()):
        if (head := f"[{platform}.{local}]") != last:
            print(f"\n{head}")
        last = head
        print(f"{op} = [", *regions, "]", sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
