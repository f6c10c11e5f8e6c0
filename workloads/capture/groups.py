"""Process groups of a recording: the parallel axis of each, and its copies on other ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping

Groups = tuple[tuple[int, ...], ...]


def copies(members: tuple[int, ...], world: int) -> Groups:
    """The group and its like on the other ranks, where ranks form a grid; else the group alone.

    A group of n ranks at equal distances s is a line of a grid: its copies begin at every rank of a block of s, in
    every block of n * s.
    """
    if len(members) < 2:
        return (members,)
    stride = members[1] - members[0]
    line = tuple(range(members[0], members[0] + stride * len(members), stride))
    block = stride * len(members)
    if line != members or world % block:
        return (members,)
    return tuple(
        tuple(start + offset + stride * i for i in range(len(members)))
        for start in range(0, world, block)
        for offset in range(stride)
    )


def alike(
    members: tuple[int, ...], world: int, represented: Mapping[int, int]
) -> Groups:
    """Copies of the group whose ranks do what its own do: a stage of a pipeline has groups that other stages have not.

    `represented`: by rank, the rank that was recorded in its place.
    """
    own = {represented[rank] for rank in members}
    return tuple(
        group
        for group in copies(members, world)
        if {represented.get(rank) for rank in group} == own
    )


#: Words of descriptions (device meshes, Megatron's parallel_state) and the axis that they mean; the first one counts.
WORDS = (
    ("dp", ("data", "dp", "ddp", "fsdp", "hsdp", "shard", "replicate")),
    ("tp", ("tensor", "tp", "etp")),
    ("pp", ("pipeline", "pp")),
    ("cp", ("context", "cp", "sequence", "sp")),
    ("ep", ("expert", "ep")),
)
#: Words of groups that stand for several axes at once.
JOINED = ("and", "intra", "inter")


def axis_of(description: str, ranks: int, world: int) -> str:
    """ "tp" for "TENSOR_MODEL_PARALLEL_GROUP" or "mesh_tp"; "world" or "group-of-4" where the program does not say."""
    words = set(re.findall(r"[a-z]+", description.lower()))
    if not words & set(JOINED):
        for axis, names in WORDS:
            if words & set(names):
                return axis
    return "world" if ranks == world else f"group-of-{ranks}"
