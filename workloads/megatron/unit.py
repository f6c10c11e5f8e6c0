"""Units of a model: a layer's forward and backward pass, recorded once on a tape of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

from prestep.sim.graph.opgraph import Program
from prestep.workloads.megatron.passes import Pass, Source, forward, part, pass_of
from prestep.workloads.megatron.split import Halves, halves
from prestep.workloads.orthogonal import Matrices, hidden
from prestep.workloads.torch.again import Again, Kept
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True, eq=False)
class Unit:
    """A layer: both passes, and its bytes: ``kept`` from forward to backward by module, ``transient`` at most beside.

    ``parameters`` counts this rank's trained parameters by name, ``frozen`` those that stay as they are; ``matrices``
    are those that an orthogonal update takes. ``reads`` has the first operation of the forward pass that may read a
    parameter, by its name; ``between`` the pass from one operation to another (to the end: None).
    """

    name: str
    forward: Pass
    backward: Pass
    kept: dict[str, float]
    transient: float
    parameters: dict[str, int]
    reads: dict[str, int]
    between: Callable[[int, int | None], Pass]
    split: Callable[[], Halves] | None = None
    matrices: tuple[Matrices, ...] = ()
    frozen: dict[str, int] = field(default_factory=dict)

    @property
    def stash(self) -> float:
        """Bytes that are kept from forward to backward."""
        return sum(self.kept.values())

    @cached_property
    def halves(self) -> Halves:
        """Backward in two halves, recorded when first wanted."""
        if self.split is None:
            raise RuntimeError(f"{self.name} was not recorded to be split")
        return self.split()


def record(source: Source, again: Again) -> Unit:
    """Runs a module forward and backward on a fresh tape and cuts what it issued in two.

    Where it runs ``again`` its input is kept, with the results that are not made again, and backward begins with
    forward: what else waits for backward is there during it alone.
    """
    results = Kept(again.products) if again.products else None
    t, module, _, y, before = forward(source, results)
    cut, kept = t.issued, t.memory.kept()
    stash = t.memory.now - before
    if again.shortened:
        _repeat(t, source, module, again)
    t.phase = 1
    t.backward(y, Tensor(None, y.shape))
    transient = max(0.0, t.memory.peak - before - stash)
    if again:
        waiting = y.size + (0.0 if results is None else results.size)
        kept, transient = {"": waiting}, transient + max(0.0, stash + y.size - waiting)
    whole, name = t.program(), source.name
    ahead = part(whole, 0, cut)
    back = part(whole, 0 if again.from_input else cut, len(whole))
    return Unit(
        name,
        pass_of(f"{name} forward", ahead, t.shared),
        pass_of(f"{name} backward", back, t.shared),
        kept,
        transient,
        _parameter_counts(module, trained=True),
        {p.name: t.reads[p.name] for p in module.parameters if p.name in t.reads},
        cache(partial(_between, f"{name} forward", ahead, t.shared)),
        partial(halves, source, again.full),
        _matrices(module),
        _parameter_counts(module, trained=False),
    )


def _between(
    name: str, ahead: Program, shared: Shared, first: int, last: int | None
) -> Pass:
    """The operations of a forward pass from one to another."""
    end = len(ahead) if last is None else last
    return pass_of(name, part(ahead, first, end), shared)


def _matrices(module: Module) -> tuple[Matrices, ...]:
    """The parameters that an orthogonal update takes."""
    matrices = (hidden(p.name, p.shape) for p in module.parameters)
    return tuple(filter(None, matrices))


def _parameter_counts(module: Module, trained: bool) -> dict[str, int]:
    """Elements of the parameters, trained or frozen, by their names, which norms share."""
    counts: Counter[str] = Counter()
    for p in module.parameters:
        if p.requires_grad is trained:
            counts[p.name] += p.elements
    return dict(counts)


def _repeat(t: Tape, source: Source, module: Module, again: Again) -> None:
    """The forward pass once more in front of the backward pass, as far as it is needed.

    Its memory is that of the first time.
    """
    x, before, memory = Tensor(None, source.shape), t.issued, t.memory.moment()
    t.drop = again.dropped()
    with t.no_grad():
        source.run(t, module, x)
    t.drop = None
    if again.early:
        t.forget_after_last("gemm", before)
    t.memory.forget(memory)
