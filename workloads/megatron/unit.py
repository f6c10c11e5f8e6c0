"""Units of a model: a layer's forward and backward pass, recorded once on a tape of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from sim.graph.kernel import Kernel
from workloads.megatron.passes import Build, Pass, Run, forward, made, part
from workloads.megatron.split import Halves, halves
from workloads.orthogonal import Matrices, hidden
from workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from workloads.torch.modules import Module

__all__ = ["NEVER", "Again", "Pass", "Unit", "record"]


@dataclass(frozen=True)
class Again:
    """What of a unit's forward pass runs again in backward.

    ``full``: all of it, from its input; ``products``: every other product and what is no product, where attention's and
    the others' results are kept (torchtitan's selective checkpointing by operator). ``early``: not what comes after the
    last product's input, which nothing in backward needs.
    """

    full: bool = False
    products: bool = False
    early: bool = False

    def __bool__(self) -> bool:
        return self.full or self.products

    @property
    def shortened(self) -> bool:
        """Only a part of the forward pass runs again."""
        return self.products or (self.full and self.early)

    @property
    def from_input(self) -> bool:
        """Backward begins with all of the forward pass."""
        return self.full and not self.shortened

    def dropped(self) -> Callable[[Kernel], bool]:
        """Which kernels of the forward pass are not repeated, asked in their order."""
        seen = 0

        def drop(kernel: Kernel) -> bool:
            nonlocal seen
            product = kernel.kind.startswith("gemm")
            seen += product
            return "attention" in kernel.kind or (product and seen % 2 == 1)

        return drop if self.products else lambda kernel: False


NEVER = Again()


@dataclass(frozen=True, eq=False)
class Unit:
    """A layer: both passes, and its bytes: ``stash`` kept from forward to backward, ``transient`` above that at most.

    ``parameters`` counts this rank's parameters by name; ``matrices`` are those that an orthogonal update takes.
    """

    name: str
    forward: Pass
    backward: Pass
    stash: float
    transient: float
    parameters: dict[str, int]
    split: Callable[[], Halves] | None = None
    matrices: tuple[Matrices, ...] = ()

    @cached_property
    def halves(self) -> Halves:
        """Backward in two halves, recorded when first wanted."""
        if self.split is None:
            raise RuntimeError(f"{self.name} was not recorded to be split")
        return self.split()


def record(
    name: str,
    tape: Callable[[], Tape],
    build: Build,
    run: Run,
    shape: tuple[int, ...],
    recompute: Again,
) -> Unit:
    """Runs a module forward and backward on a fresh tape and cuts what it issued in two.

    With ``recompute`` only the input is kept, and backward begins with forward again.
    """
    t, module, _, y, before = forward(tape, build, run, shape)
    cut, stash, output = t.issued, t.memory.now - before, y.size
    if recompute.shortened:
        _repeat(t, run, module, shape, recompute)
    t.phase = 1
    t.backward(y, Tensor(None, y.shape))
    whole, shared = t.program(), t.shared
    transient = max(0.0, t.memory.peak - before - stash)
    if recompute.full:
        stash, transient = output, transient + stash
    back = part(whole, 0 if recompute.from_input else cut, len(whole))
    return Unit(
        name,
        made(f"{name} forward", part(whole, 0, cut), shared),
        made(f"{name} backward", back, shared),
        stash,
        transient,
        _parameter_counts(module),
        partial(halves, name, tape, build, run, shape, recompute.full),
        _matrices(module),
    )


def _matrices(module: Module) -> tuple[Matrices, ...]:
    """The parameters that an orthogonal update takes."""
    matrices = (hidden(p.name, p.shape) for p in module.parameters)
    return tuple(filter(None, matrices))


def _parameter_counts(module: Module) -> dict[str, int]:
    counts: dict[str, int] = {}
    for p in module.parameters:
        counts[p.name] = counts.get(p.name, 0) + p.elements
    return counts


def _repeat(
    t: Tape, run: Run, module: Module, shape: tuple[int, ...], again: Again
) -> None:
    """The forward pass once more in front of the backward pass, as far as it is needed."""
    x, before = Tensor(None, shape), t.issued
    t.drop = again.dropped()
    with t.no_grad():
        run(t, module, x)
    t.drop = None
    if again.early:
        t.forget_after_last("gemm", before)
