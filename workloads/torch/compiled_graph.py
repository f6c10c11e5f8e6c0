"""A compiled graph as autograd sees it: some consecutive units of a block, one node."""

from __future__ import annotations

from functools import partial

from prestep.workloads.torch.block import Block
from prestep.workloads.torch.block_units import (
    DOWN,
    NAMES,
    adapter_matrices,
    parameters_of,
    unit_biases,
    unit_parameters,
)
from prestep.workloads.torch.compiled_latent import LatentUnits
from prestep.workloads.torch.compiled_units import SAVES, Grads, Late, Units, live_in
from prestep.workloads.torch.latent_attention import LatentAttention
from prestep.workloads.torch.tape import Tensor


def _alias(x: Tensor) -> Tensor:
    """The same memory without history."""
    return Tensor(x.storage, x.shape, x.itemsize)


class Compiled(Units):
    """Some consecutive units of a block, compiled as one: one autograd node."""

    @property
    def ends(self) -> bool:
        """Whether the block ends in this graph: the product at its end says what is not computed again."""
        return DOWN in self.units

    # -- autograd -------------------------------------------------------------------------------
    def forward(self, values: dict[str, Tensor]) -> None:
        """Takes its inputs from ``values`` and puts its outputs there."""
        t = self.t
        local = {name: _alias(values[name]) for name in self.inputs}
        self.live = self._live({n for n in self.inputs if values[n].requires_grad})
        self._begin(next(iter(local.values())).shape[:2])
        t.cpu("compiled_forward")
        with t.launching_by("compiled_launch"):
            for unit in self.units:
                getattr(self, f"forward_{NAMES[unit]}")(local)
        if not self.ends:
            t.saves()
        self._forget()
        parameters = parameters_of(self.block, self.units)
        parameters += adapter_matrices(t, self.block, self.units)
        first, *others = sorted(self.outputs, key=lambda name: name not in self.live)
        main = t.apply(
            _alias(local[first]),
            [*(values[name] for name in self.inputs), *parameters],
            self.backward,
        )
        self.first, values[first] = first, main
        for name in others:  # a further output hands its gradient over and adds nothing to the first one's
            values[name] = _alias(local[name])
            if name in self.live:
                t.apply(values[name], [main], partial(self._receive, name))

    def _live(self, live: set[str]) -> set[str]:
        """Values whose gradients are wanted: they depend on inputs that are, or on what is trained."""
        for unit in self.units:
            own = unit_parameters(self.block, unit)
            trains = any(p.requires_grad or p in self.adapters for p in own)
            if trains or live & set(self._takes(unit)):
                live = live | set(self._makes(unit))
        return live

    def _forget(self) -> None:
        """Drops what was saved for units that no gradient is sent through."""
        for unit in self.units:
            if not live_in(self._makes(unit), self.live):
                for name in SAVES[unit]:
                    self.saved.pop(name, None)

    def _receive(self, name: str, g: Tensor) -> list[Tensor | None]:
        self.gradients[name] = g
        return [None]

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs and then of all parameters, handed over together at the end."""
        self.gradients[self.first] = g
        del g
        self.t.cpu("compiled_backward")
        weights: dict[int, Grads] = {}
        late: Late = []
        with self.t.launching_by("compiled_launch"):
            for unit in reversed(self.units):
                weights[unit] = []
                if not live_in(self._makes(unit), self.live):
                    weights[unit] = [None] * len(unit_parameters(self.block, unit))
                    continue
                getattr(self, f"backward_{NAMES[unit]}")(
                    self.gradients, weights[unit], late
                )
            for launch in late:
                launch()
        ordered = [w for u in self.units for w in weights[u]]
        biases = [b for u in self.units for b in unit_biases(self.block, u)]
        ordered += [self.bias_gradients.get(b) for b in biases]
        matrices = adapter_matrices(self.t, self.block, self.units)
        ordered += [self.adapter_gradients[each] for each in matrices]
        self.saved.clear()
        return [*(self.gradients.get(name) for name in self.inputs), *ordered]


class Graph(Compiled):
    """Of a block with queries, keys and values from projections of their own."""


class LatentGraph(LatentUnits, Compiled):
    """Of a block with latent attention."""


def graph_of(block: Block) -> type[Compiled]:
    """The kind of graph that a block is made of."""
    return LatentGraph if isinstance(block.attention, LatentAttention) else Graph
