"""The process groups that do on other ranks what a group of this rank does here."""

from __future__ import annotations

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
