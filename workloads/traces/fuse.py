"""Kernels fused into one, as a transformation of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.traces.draft import Draft, Node
from workloads.traces.work import GPU

# Of these a fused kernel has one: others are its prologue and epilogue.
ARITHMETIC = ("gemm", "attention", "convolution")


def fuse(draft: Draft, families: Sequence[str]) -> int:
    """Fuses neighbours on a stream that are of the families; the number of kernels that are gone.

    A fused kernel lasts as long as the longest of its parts: what they hand to each other stays on the chip. That is
    the best a fusion can do. The parts' launches and the pauses between them are gone too.
    """
    gone = sum(
        _fuse_rank(nodes, frozenset(families)) for nodes in draft.programs.values()
    )
    draft.changes.append(
        f"{' and '.join(families)} kernels fused: {gone} launches fewer"
    )
    draft.notes[
        "fused kernels take the time of their longest part (guess: the best case)"
    ] += gone
    return gone


def _fuse_rank(nodes: Sequence[Node], families: frozenset[str]) -> int:
    gone, open_ = 0, dict[int, tuple[Node, bool]]()
    for node in nodes:
        if node.kind != GPU:
            if node.deps:  # the host looks at results: nothing is fused over that
                open_.clear()
            continue
        heavy, one = node.family in ARITHMETIC, open_.get(node.stream)
        if node.comms or node.family not in families:
            open_.pop(node.stream, None)
        elif (
            one is None
            or node.op.step != one[0].op.step
            or (heavy and one[1])
            or _waits(node)
        ):
            open_[node.stream] = node, heavy
        else:
            head = one[0]
            head.duration = max(head.duration, node.duration)
            node.duration = node.gap = node.latency = node.host = 0.0
            open_[node.stream], gone = (head, one[1] or heavy), gone + 1
    return gone


def _waits(node: Node) -> bool:
    """Whether it waits for another stream."""
    return any(dep.stream != node.stream for dep in node.deps if dep.kind == GPU)
