"""Regions of a layer that run again in backward instead of keeping their results."""

from __future__ import annotations

from collections.abc import Callable

from prestep.workloads.megatron.elementwise import unsaved
from prestep.workloads.torch.tape import Tape, Tensor


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

    return t.apply(Tensor(None, y.shape, y.itemsize), [unsaved(y)], backward)
