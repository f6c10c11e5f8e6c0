"""Activation checkpointing: a region's input is kept, and the region runs again in backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prestep.workloads.memory.account import Storage
from prestep.workloads.torch.again import Again, Kept
from prestep.workloads.torch.functional import AGAIN
from prestep.workloads.torch.recorder import FORWARD
from prestep.workloads.torch.tape import Tape, Tensor


def checkpoint(
    t: Tape,
    forward: Callable[[Tensor], Tensor],
    x: Tensor,
    kept_results: Again | None = None,
) -> Tensor:
    """Activation checkpointing: keeps the input and runs the region again in backward, or what `kept_results` says."""
    t.cpu("checkpoint")
    products = kept_results is not None and kept_results.products
    attention = kept_results is not None and kept_results.attention
    beside = Kept(products, again_attention=attention, itemsize=x.itemsize)
    if products:
        t.drop, t.drop_collective = beside, beside.collective
    with t.no_grad(), t.saved_by("saved_tensor"):
        out = forward(x)
    t.drop = t.drop_collective = None
    wanted = x.requires_grad
    kept = Tensor(x.storage, x.shape, x.itemsize)
    held = Storage(t.memory, beside.size, "activations") if beside.size else None
    region = _Region(t, forward, kept, wanted, kept_results, held)
    # Without an input that needs a gradient the region's parameters still do.
    anchor = x if wanted else Tensor(None, x.shape)
    anchor.requires_grad = True
    return t.apply(out, [anchor], region.backward)


@dataclass
class _Region:
    """A checkpointed region.

    Attributes
    ----------
    tape : Tape
    forward : callable
        Runs the region.
    kept : Tensor
        Its input, until it runs again.
    wanted : bool
        Whether the input needs a gradient.
    kept_results : Again, optional
        What is kept beside the input instead of being computed again.
    held : Storage, optional
        The memory of that; the operators that run again take it over.
    """

    tape: Tape
    forward: Callable[[Tensor], Tensor]
    kept: Tensor
    wanted: bool
    kept_results: Again | None
    held: Storage | None = None

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Runs the region again, with history, and then its backward pass."""
        t = self.tape
        t.cpu("checkpoint_backward")
        # A leaf without memory: the input goes with the last operator that needs it.
        leaf = Tensor(None, self.kept.shape, self.kept.itemsize)
        leaf.requires_grad, leaf.name = True, "detached"
        outer, t.phase = t.phase, FORWARD
        y = self._again(t.apply(self.kept.moved(), [leaf], _passed_on))
        t.phase = outer
        if t.deferred is None:
            # Autograd runs the region's own nodes, so nobody holds its gradient until they end.
            t.backward(y, g.moved())
        else:
            t.backward(y, g)
        return [leaf.grad if self.wanted else None]

    def _again(self, x: Tensor) -> Tensor:
        """The region's result; since PyTorch 2.1 only what backward needs is computed."""
        t, results = self.tape, self.kept_results
        self.held = None
        stops_early = t.choices is None or t.choices.since(2, 1)
        if results is not None:
            t.drop, t.drop_collective = results.dropped(), results.drops_collective
        with t.saved_by(AGAIN):
            run = partial(self.forward, x)
            y = t.recompute(run) if stops_early else run()
        t.drop = t.drop_collective = None
        return y


def _passed_on(g: Tensor) -> list[Tensor | None]:
    """The gradient of the same value."""
    return [g]


def detached(x: Tensor) -> Tensor:
    """The same value without its history."""
    return Tensor(x.storage, x.shape, x.itemsize)


def again(t: Tape, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Keeps only the input of a region, which runs again before its backward (tensor_parallel.checkpoint)."""
    with t.no_grad():
        out = run(x)
    source = detached(x)

    def backward(g: Tensor) -> list[Tensor | None]:
        source.requires_grad, source.name = True, "detached"
        y = run(source)
        t.backward(y, g)
        grad, source.grad = source.grad, None
        return [grad]

    return t.apply(out, [x], backward)


def discarded(
    t: Tape, run: Callable[[Tensor], Tensor], x: Tensor, apart: bool
) -> Tensor:
    """``run(x)``; where ``apart``, its result is not kept but made again in backward."""
    y = run(x)
    source = detached(x)
    return replayed(t, y, lambda: run(source)) if apart else y


def replayed(t: Tape, y: Tensor, run: Callable[[], object]) -> Tensor:
    """A value that nobody keeps: ``run`` makes it again before its backward (CheckpointWithoutOutput)."""

    def backward(g: Tensor) -> list[Tensor | None]:
        with t.no_grad():
            run()
        return [g]

    history = Tensor(None, y.shape, y.itemsize, y.node)
    history.requires_grad = y.requires_grad
    return t.apply(Tensor(None, y.shape, y.itemsize), [history], backward)
