"""A hybrid's layers under ``torch.compile``: one graph of norm, part and residual sum, or the norm alone before a scan.

Libraries' scans are no kernels of Inductor's: Dynamo breaks its graph at them (fla's are under
``torch.compiler.disable``), and the layer's operators run as they are written. So do experts, as in other blocks. No
trace has such a layer: kernels are those of the same units in whole blocks. DistributedDataParallel's cuts within a
layer are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from prestep.workloads.models import hybrid
from prestep.workloads.torch import aten
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.block_units import ATTENTION, DOWN, GATE, NORM, OUTPUT, UP
from prestep.workloads.torch.compiled_graph import Compiled, graph_of
from prestep.workloads.torch.compiled_latent import LatentUnits
from prestep.workloads.torch.compiled_units import Grads, Late
from prestep.workloads.torch.modules import FeedForward
from prestep.workloads.torch.moe import MixtureOfExperts
from prestep.workloads.torch.scan_layers import HybridBlock
from prestep.workloads.torch.tape import Tape, Tensor


def compiled_layer(t: Tape, block: HybridBlock, x: Tensor) -> Tensor:
    """Runs a hybrid's layer."""
    outer, t.layer = t.layer, block.index
    units = _units(block)
    values = {"x": x}
    if units[-1] == NORM:
        OneNorm(t, block, units, {"n1"}).forward(values)
        y = aten.add(t, x, _as_written(t, block, values.pop("n1")))
    else:
        latent = block.letter == hybrid.ATTENTION and issubclass(
            graph_of(block), LatentUnits
        )
        graph = LatentOneNorm if latent else OneNorm
        graph(t, block, units, {"y"}).forward(values)
        y = values["y"]
    t.layer = outer
    return y


def _units(block: HybridBlock) -> list[int]:
    """What of a layer is one graph."""
    if block.letter == hybrid.ATTENTION:
        return [NORM, ATTENTION, OUTPUT]
    if isinstance(block.part, FeedForward):
        return [NORM, GATE, *([UP] if block.part.gated else []), DOWN]
    return [NORM]


def _as_written(t: Tape, block: HybridBlock, x: Tensor) -> Tensor:
    """A part that is not compiled."""
    if isinstance(block.part, MixtureOfExperts):
        return experts_between(t, block.part, x)
    return block.part.forward(t, x)  # type: ignore[no-any-return]


def experts_between(t: Tape, layer: MixtureOfExperts, x: Tensor) -> Tensor:
    """Experts as they are written, between compiled graphs."""
    products, t.products = t.products, ""  # torchao converts linear layers alone
    t.compiles = True
    y = layer.forward(t, x)
    t.products, t.compiles = products, False
    return y


class OneNorm(Compiled):
    """A layer with one norm, up to its residual sum, or the norm alone."""

    def __init__(
        self, t: Tape, block: Block, units: Sequence[int], wanted: set[str]
    ) -> None:
        super().__init__(t, block, units, wanted)
        self.inputs, self.outputs = ["x"], list(wanted)
        self.whole = False  # weight gradients come where they can

    def _takes(self, unit: int) -> tuple[str, ...]:
        """The norm's output by its one name, and no residual within."""
        if unit == GATE:
            return ("n1", "n2")
        if unit == DOWN:
            return ("prod",) if self.gated else ("act",)
        return super()._takes(unit)

    def _makes(self, unit: int) -> tuple[str, ...]:
        """The norm's output by both names, and the layer's."""
        return {NORM: ("n1", "n2"), OUTPUT: ("y",)}.get(unit, super()._makes(unit))

    @property
    def ends(self) -> bool:
        """All but a norm alone."""
        return self.units[-1] != NORM

    # -- forward --------------------------------------------------------------------------------
    def forward_norm(self, v: dict[str, Tensor]) -> None:
        super().forward_norm(v)
        if GATE in self.units:
            v["n2"] = v.pop("n1")

    def forward_output(self, v: dict[str, Tensor]) -> None:
        wo = self.block.attention.wo
        self._keep("merged", v.pop("merged"), wo)
        self.t.saves()  # what comes after is not computed again
        self._summed(self._linear(wo, "merged"))
        self._fused("fused_add", self.width, 3 + self._read(wo))
        v["y"] = self._new(self.width)

    # -- backward -------------------------------------------------------------------------------
    def backward_output(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        wo = self.block.attention.wo
        whole = self._gathered(g["y"])
        kept = self.saved.pop("merged", None)
        w.append(self._weight_grad(wo, "merged", kept, whole))
        self._send(g, "merged", "merged", wo, made=False)
        g["x"] = g.pop("y")

    def backward_norm(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        residual = [g.pop(name) for name in ("x", "x2") if name in g]
        parts = self._of_norm(g)
        behind = OUTPUT if GATE in self.units else NORM
        passes = 2 + len(residual) + len(parts) + self._masked(*self._behind(behind))
        self._fused("fused_norm_bwd", self.width, passes)
        w += self._norm_weights(self.block.norm1.parameters)
        g["x"] = self._new(self.width)
        del parts, residual, self.saved["x"], self.saved["stat1"]

    def _of_norm(self, g: dict[str, Tensor]) -> list[Tensor]:
        """Gradients of the norm's output, of this rank's tokens."""
        names = ("n1", "q", "k", "v", "n2", "n2 up", "n2 gate")
        parts = self._parts(g, *names)
        if ATTENTION in self.units:
            return self._input_gradient(parts)
        return self._summed_gradient(parts) if GATE in self.units else parts


class LatentOneNorm(OneNorm, LatentUnits):
    """The same with latent attention."""
