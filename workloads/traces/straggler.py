"""A rank that is slower than the others, as a transformation of a recorded run."""

from __future__ import annotations

import re
from dataclasses import replace

from prestep.sim.errors import InputError
from prestep.sim.units import parse_duration
from prestep.workloads.traces.changes import Changes, asked_factor, integer, scale
from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.kernels import SPIN
from prestep.workloads.traces.work import GPU, Op


def straggler(draft: Draft, changes: Changes) -> None:
    """Makes a rank slow, by a factor on its kernels or a spin in every layer.

    Raises
    ------
    InputError
        If it is not said which rank, or there is no such rank.
    """
    if not any(key.startswith("faults.") for key in changes.keys):
        return
    if "faults.slow_rank" not in changes.keys:
        raise InputError.of(
            "--set", "faults.slow_rank", "nothing", "the rank that is slow"
        )
    rank = integer(changes, "faults.slow_rank", 0)
    if rank >= draft.world:
        raise InputError.of(
            "--set", "faults.slow_rank", str(rank), f"a rank below {draft.world}"
        )
    with_rank(draft, rank, "faults.slow_rank")
    if "faults.slow_factor" in changes.keys:
        factor = asked_factor(changes, "faults.slow_factor")
        scale(draft, lambda node: factor, only=[rank])
        draft.changes.append(f"kernels of rank {rank} take {factor:g} of their time")
    if "faults.slow_per_layer" in changes.keys:
        delay = parse_duration(
            changes.keys["faults.slow_per_layer"], "--set", "faults.slow_per_layer"
        )
        draft.programs[rank] = _spun(draft.programs[rank], delay)
        draft.changes.append(
            f"rank {rank} spins {delay * 1e3:g} ms in every layer's forward pass"
        )


def _spun(nodes: list[Node], delay: float) -> list[Node]:
    """A spin before every forward attention, which stands for a layer.

    Raises
    ------
    InputError
        If there is no attention.
    """
    result = []
    for node in nodes:
        forward = (
            node.kind == GPU
            and node.family == "attention"
            and "backward" not in node.op.operator
        )
        if forward and not re.search(
            "bwd|bprop|dot_do_o|convert_dq|reduce_head", node.op.name
        ):
            op = Op(
                GPU,
                SPIN,
                node.op.issue,
                node.op.start,
                node.op.start,
                node.stream,
                step=node.op.step,
            )
            result.append(Node(op, node.stream, duration=delay, gap=0.0))
        result.append(node)
    if len(result) == len(nodes):
        expected = "a trace with attention in its layers"
        raise InputError.of(
            "--set", "faults.slow_per_layer", "none", expected, "use faults.slow_factor"
        )
    return result


def with_rank(draft: Draft, rank: int, key: str) -> None:
    """Makes sure a rank is played by itself: one that was not recorded does what a recorded one does.

    `key` of `--set` asks for it.

    Raises
    ------
    InputError
        If the ranks are not alike.
    """
    if rank in draft.programs:
        return
    if any(m.op == "send" or rank not in m.ranks for m in draft.meetings):
        found = f"rank {rank}, which was not recorded"
        raise InputError.of("--set", key, found, "a recorded rank, as ranks differ")
    source = next(iter(draft.programs.values()))
    copies = {
        id(node): replace(node, deps=list(node.deps), comms=list(node.comms))
        for node in source
    }
    for copied in copies.values():
        copied.deps = [copies[id(d)] for d in copied.deps]
    draft.programs[rank] = list(copies.values())
    draft.notes["ranks played as copies of a recorded one"] += 1
