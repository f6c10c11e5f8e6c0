"""Kernels fused into one, as a transformation of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.work import GPU

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


@dataclass(frozen=True)
class _Fused:
    """A kernel that the next one of its stream may join; `heavy` if it has a matrix product or the like already."""

    head: Node
    heavy: bool

    def joinable(self, node: Node) -> bool:
        """Whether a kernel can become a part of this one."""
        if node.op.step != self.head.op.step or _waits(node):
            return False
        return not (self.heavy and node.family in ARITHMETIC)

    def join(self, node: Node) -> _Fused:
        """Takes a kernel in: it costs nothing of its own any more."""
        self.head.duration = max(self.head.duration, node.duration)
        node.duration = node.gap = node.latency = node.host = 0.0
        return _Fused(self.head, self.heavy or node.family in ARITHMETIC)


def _fuse_rank(nodes: Sequence[Node], families: frozenset[str]) -> int:
    """Fuses the kernels of one rank; how many of them are gone."""
    gone, growing = 0, dict[int, _Fused]()
    for node in nodes:
        if node.kind != GPU:
            if node.deps:  # the host looks at results: nothing is fused over that
                growing.clear()
            continue
        if node.comms or node.family not in families:
            growing.pop(node.stream, None)
            continue
        fused = growing.get(node.stream)
        if fused is not None and fused.joinable(node):
            growing[node.stream] = fused.join(node)
            gone += 1
        else:
            growing[node.stream] = _Fused(node, node.family in ARITHMETIC)
    return gone


def _waits(node: Node) -> bool:
    """Whether it waits for another stream."""
    return any(dep.stream != node.stream for dep in node.deps if dep.kind == GPU)
