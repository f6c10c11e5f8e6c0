"""Operations of programs that are no language models: recurrent networks, bags, graphs, thin products, convolutions.

Recommenders, speech, physics, graph networks and pictures in three dimensions issue them. Sizes are grids of powers of
two and their like, not those of any program. Every kind is a family of its own, so that what the other families hold
out stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors, both

ROUND = 4
#: Sequence, batch, width, layers of a recurrent network.
RECURRENT = (
    (64, 32, 256, 1), (64, 128, 512, 1), (128, 64, 1024, 1), (256, 32, 512, 2), (128, 256, 256, 2), (512, 64, 1024, 2),
)  # fmt: skip
#: Rows of a table, width, bags, rows in a bag.
BAGS = (
    (100_000, 16, 2048, 1), (100_000, 64, 8192, 1), (1_000_000, 64, 8192, 8), (1_000_000, 128, 16384, 4),
    (10_000, 32, 65536, 2), (4_000_000, 64, 16384, 20),
)  # fmt: skip
#: Nodes, width, edges of a graph.
GRAPHS = (
    (4096, 64, 32768), (16384, 128, 131072), (65536, 64, 1_048_576), (131072, 32, 524288), (32768, 256, 262144),
)  # fmt: skip
#: Rows, columns and depth of products with one or two short sides.
THIN = (
    (1_048_576, 64, 64), (1_048_576, 64, 3), (1_048_576, 1, 128), (262144, 256, 32), (65536, 16, 512), (65536, 8, 2048),
    (131072, 128, 128), (64, 64, 1_048_576), (256, 256, 262144), (32, 512, 65536), (16384, 1, 1024), (4096, 10, 4096),
)  # fmt: skip
#: Batch, rows, columns and depth of many small products.
BATCHED = (
    (4096, 16, 16, 16),
    (8192, 64, 64, 32),
    (1024, 49, 49, 32),
    (512, 128, 64, 128),
    (65536, 4, 4, 4),
)


@dataclass(frozen=True)
class Convolution:
    """A layer: `dims` of space with `side` points each, `groups` of channels; transposed ones enlarge pictures."""

    dims: int
    batch: int
    channels: int
    out: int
    side: int
    kernel: int
    stride: int = 1
    groups: int = 1
    transposed: bool = False

    @property
    def size(self) -> tuple[int, ...]:
        return (
            self.dims, self.batch, self.channels, self.out, self.side, self.kernel, self.stride, self.groups,
        )  # fmt: skip

    def call(self, x: Any, weight: Any) -> Any:
        name = f"conv{'_transpose' * self.transposed}{self.dims}d"
        function = getattr(F, name)
        padding = self.kernel // 2 if self.kernel % 2 else 0
        return function(
            x, weight, stride=self.stride, padding=padding, groups=self.groups
        )

    def operands(self, on: Tensors, dtype: str) -> tuple[Any, Any]:
        space = (self.side,) * self.dims
        rows, columns = self.out, self.channels // self.groups
        if self.transposed:
            rows, columns = self.channels, self.out // self.groups
        kernel = (self.kernel,) * self.dims
        x = on.normal(self.batch, self.channels, *space, dtype=dtype, grad=True)
        return x, on.normal(rows, columns, *kernel, dtype=dtype, grad=True)


CONVOLUTIONS = (
    *(Convolution(2, 64, width, width, 28, 3, stride, width // per)
      for width in (192, 384, 768) for per in (16, 24, 48) for stride in (1, 2)),
    *(Convolution(2, 64, width, width, side, kernel, 1, width)
      for width, side in ((96, 56), (384, 14), (768, 7)) for kernel in (3, 5, 7)),
    *(Convolution(2, 32, width, width // 2, side, kernel, 2, 1, True)
      for width, side in ((512, 8), (256, 32), (128, 64)) for kernel in (2, 4)),
    *(Convolution(3, batch, width, width, side, 3, 1, 1)
      for batch, width, side in ((2, 32, 64), (4, 64, 32), (2, 128, 32), (8, 256, 16))),
    *(Convolution(3, 2, width, width // 2, side, 2, 2, 1, True) for width, side in ((64, 32), (256, 16))),
    *(Convolution(1, 32, width, width, side, kernel, stride)
      for width, side in ((64, 16000), (256, 4000), (512, 1000)) for kernel, stride in ((3, 1), (9, 1), (4, 2))),
)  # fmt: skip


def cases() -> Iterator[Case]:
    yield from _recurrent()
    yield from _bags()
    yield from _graphs()
    yield from _products()
    yield from _convolutions()
    yield from _spectra()


def _recurrent() -> Iterator[Case]:
    for size in RECURRENT:
        for name, module in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
            for dtype in ("fp32", "bf16"):
                setting = {"dtype": dtype}
                build = _network(module, size, dtype)
                yield from both("recurrent", name, size, build, setting, ROUND)


def _network(
    module: Callable[..., Any], size: tuple[int, ...], dtype: str
) -> Callable[[Tensors], tuple[Call, Sequence[Any]]]:
    steps, batch, width, layers = size

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(steps, batch, width, dtype=dtype, grad=True)
        network = module(width, width, layers, device=x.device, dtype=x.dtype)
        return lambda: network(x)[0], [x, *network.parameters()]

    return build


def _bags() -> Iterator[Case]:
    for size in BAGS:
        for mode in ("sum", "mean"):
            for dtype in ("fp32", "bf16"):
                for sparse in (False, True):
                    setting = {"dtype": dtype, "mode": mode, "sparse": sparse}
                    build = _bag(size, mode, dtype, sparse)
                    yield from both("bag", "embedding_bag", size, build, setting, ROUND)


def _bag(
    size: tuple[int, ...], mode: str, dtype: str, sparse: bool
) -> Callable[[Tensors], tuple[Call, Sequence[Any]]]:
    rows, width, bags, each = size

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        table = on.normal(rows, width, dtype=dtype, grad=True)
        ids = on.below(rows, bags * each)
        begins = torch.arange(0, bags * each, each, device=table.device)
        return lambda: F.embedding_bag(ids, table, begins, mode=mode, sparse=sparse), [
            table
        ]

    return build


# x: nodes by width; y: edges by width; ids: a node for each edge.
ON_EDGES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index_select": lambda x, y, ids: x.index_select(0, ids),
    "index_rows": lambda x, y, ids: x[ids],
    "index_add": lambda x, y, ids: torch.zeros_like(x).index_add_(0, ids, y),
    "scatter_add": lambda x, y, ids: torch.zeros_like(x).scatter_add_(
        0, ids[:, None].expand_as(y), y
    ),
    "scatter_amax": lambda x, y, ids: torch.zeros_like(x).scatter_reduce_(
        0, ids[:, None].expand_as(y), y, "amax"
    ),
    "index_put_accumulate": lambda x, y, ids: torch.zeros_like(x).index_put_(
        (ids,), y, accumulate=True
    ),
    "gather": lambda x, y, ids: x.gather(0, ids[:, None].expand_as(y)),
    "degree": lambda x, y, ids: torch.bincount(ids, minlength=x.shape[0]),
}


def _graphs() -> Iterator[Case]:
    for size in GRAPHS:
        for name, function in ON_EDGES.items():
            for dtype in ("fp32", "bf16"):
                for order in ("random", "sorted", "skewed"):
                    setting = {"dtype": dtype, "order": order}
                    make = _on_edges(function, size, dtype, order)
                    yield Case("graph", name, size, make, setting, round=ROUND)


def _on_edges(
    function: Callable[..., Any], size: tuple[int, ...], dtype: str, order: str
) -> Callable[[Tensors], Call]:
    nodes, width, edges = size

    def make(on: Tensors) -> Call:
        x, y = (
            on.normal(nodes, width, dtype=dtype),
            on.normal(edges, width, dtype=dtype),
        )
        ids = on.skewed(nodes, edges) if order == "skewed" else on.below(nodes, edges)
        ids = ids.sort().values if order == "sorted" else ids
        return lambda: function(x, y, ids)

    return make


def _products() -> Iterator[Case]:
    for m, n, k in THIN:
        for dtype in ("fp32", "tf32", "bf16"):
            for way, layout in (("nn", False), ("nt", True)):
                make = _product((m, k), (n, k) if layout else (k, n), dtype, layout)
                setting = {"dtype": dtype, "layout": way}
                yield Case("mm_thin", "mm", (m, n, k), make, setting, round=ROUND)
    for batch, m, n, k in BATCHED:
        for dtype in ("fp32", "tf32", "bf16"):
            make = _product((batch, m, k), (batch, k, n), dtype, False)
            size = (batch, m, n, k)
            yield Case("mm_small", "bmm", size, make, {"dtype": dtype}, round=ROUND)


def _product(
    left: tuple[int, ...], right: tuple[int, ...], dtype: str, transposed: bool
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x, y = on.normal(*left, dtype=dtype), on.normal(*right, dtype=dtype)
        y = y.mT if transposed else y
        return _with_tf32(lambda: x @ y, dtype == "tf32")

    return make


def _with_tf32(call: Call, allowed: bool) -> Call:
    """A call under the setting of products in 32 bits that its case names."""

    def run() -> Any:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            return call()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return run


def _convolutions() -> Iterator[Case]:
    for layer in CONVOLUTIONS:
        name = f"conv{'_transpose' * layer.transposed}{layer.dims}d"
        for dtype in ("bf16", "tf32", "fp16"):
            setting = {"dtype": dtype}
            build = _layer(layer, dtype)
            yield from both("conv_odd", name, layer.size, build, setting, ROUND)
    for layer in CONVOLUTIONS[::5]:
        make = _twice(layer)
        setting = {"dtype": "tf32"}
        yield Case(
            "conv_twice", f"conv{layer.dims}d", layer.size, make, setting, "bwd", ROUND
        )


def _layer(
    layer: Convolution, dtype: str
) -> Callable[[Tensors], tuple[Call, Sequence[Any]]]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, weight = layer.operands(on, dtype)
        return lambda: layer.call(x, weight), [x, weight]

    return build


def _twice(layer: Convolution) -> Callable[[Tensors], Call]:
    """The gradient of a gradient's norm, as penalties of critics take it."""

    def make(on: Tensors) -> Call:
        x, weight = layer.operands(on, "tf32")
        out = layer.call(x, weight)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        norm = grad.square().sum()
        return lambda: torch.autograd.grad(norm, [weight], retain_graph=True)

    return make


def _spectra() -> Iterator[Case]:
    for batch, channels, side, modes in (
        (16, 32, 64, 12), (16, 64, 128, 16), (8, 32, 256, 24), (32, 64, 64, 16),
    ):  # fmt: skip
        size = (batch, channels, side, modes)
        steps: dict[str, Callable[[Any, Any, Any], Any]] = {
            "rfft2": lambda x, spectrum, weight: torch.fft.rfft2(x),
            "irfft2": lambda x, spectrum, weight: torch.fft.irfft2(
                spectrum, s=x.shape[-2:]
            ),
            "complex_product": lambda x, spectrum, weight: torch.einsum(
                "bixy,ioxy->boxy",
                spectrum[..., : weight.shape[2], : weight.shape[3]],
                weight,
            ),
        }
        for name, function in steps.items():
            make = _spectrum(function, size)
            yield Case("spectrum", name, size, make, {"dtype": "fp32"}, round=ROUND)


def _spectrum(
    function: Callable[..., Any], size: tuple[int, ...]
) -> Callable[[Tensors], Call]:
    batch, channels, side, modes = size

    def make(on: Tensors) -> Call:
        x = on.normal(batch, channels, side, side, dtype="fp32")
        spectrum = on.normal(batch, channels, side, side // 2 + 1, dtype="complex64")
        weight = on.normal(channels, channels, modes, modes, dtype="complex64")
        return lambda: function(x, spectrum, weight)

    return make
