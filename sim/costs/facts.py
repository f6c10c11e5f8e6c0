"""Facts of a GPU: what its files may state, each with its type, its unit and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from prestep.sim import schema
from prestep.sim.costs import generation as generations
from prestep.sim.costs import terms
from prestep.sim.costs.draw import ATTENTION as OF_ATTENTION
from prestep.sim.costs.draw import Draw
from prestep.sim.costs.estimators import attention
from prestep.sim.costs.estimators.attention import Ratios, Widths
from prestep.sim.costs.estimators.optimizer import Adamw
from prestep.sim.costs.gemm import SAME, TileModel
from prestep.sim.costs.kinds import DTYPE_BYTES, KINDS, SCANS
from prestep.sim.costs.power import Power
from prestep.sim.graph.kernel import ATTENTION, GEMM
from prestep.sim.schema import Items, Number, Schema, Table, Text

#: The second part of a table's name in [terms].
LAYOUTS = ("nn", "nt", "tn")
#: Major versions of CUDA whose cuBLAS a file may compare.
TOOLKITS = tuple(f"{major}" for major in range(9, 20))
BY_CUDA = Table(dict.fromkeys(TOOLKITS, attention.IN_FP8))
POSITIVE, AT_LEAST_0, COUNT = Number(above=True), Number(), Number(1, whole=True)
TABLES_OF_KERNELS = (
    *(*KINDS, *ATTENTION),
    *(terms.name(kind, layout) for kind in terms.LINEAR for layout in LAYOUTS),
)
DRAW = Table(
    {
        "idle": POSITIVE,
        "active": AT_LEAST_0,
        "byte": AT_LEAST_0,
        "flop": Table(dict.fromkeys((*DTYPE_BYTES, OF_ATTENTION), AT_LEAST_0)),
        "moved": AT_LEAST_0,
        "exponent": Number(1),
    },
    ("idle", "active", "byte", "flop"),
)
#: Formats of products of which a GPU may take a library's times ("products_bf16").
STACKS = tuple(f"products_{dtype}" for dtype in DTYPE_BYTES)
STACK = Table(
    {
        "source": Text(),
        "kernel": Text(),
        **dict.fromkeys(("call", "moved"), AT_LEAST_0),
        **dict.fromkeys(("share", "nn", "tn", "error"), POSITIVE),
    },
    ("source", "kernel", "call", "moved", "share", "nn", "tn", "error"),
)
LAUNCHES = Table(
    {"sparse": POSITIVE, "launch": Items(Items(AT_LEAST_0, 2))}, ("sparse", "launch")
)


@dataclass(frozen=True)
class Correction:
    """How measured rows correct a model between them.

    Attributes
    ----------
    length
        Distance between shapes over which rows count, in octaves.
    spread
        Standard deviation of the logarithm of a time about the model.
    """

    length: float
    spread: float


def _each(read: Callable[[Any], Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Reads every value of a table."""
    return lambda table: {key: read(value) for key, value in table.items()}


@dataclass(frozen=True)
class Stack:
    """Which library's table steps take for a family in a number format, and what to take off its times.

    Attributes
    ----------
    source, kernel
        The stack and its kernel, as the table names them.
    call
        Seconds of a call beyond the kernel's.
    moved
        Bytes of memory traffic beside the kernel's, of each element that it reads.
    share
        Time of the kernel in a step over what is left of the library's.
    nn, tn
        The same of products that are data and weight gradients.
    error
        Median error of what steps take, on shapes of measured steps that no constant was fitted to.
    """

    source: str
    kernel: str
    call: float
    moved: float
    share: float
    nn: float
    tn: float
    error: float

    def share_of(self, layout: str) -> float:
        """Of a layout of products; anything else is as the forward pass."""
        return {"nn": self.nn, "tn": self.tn}.get(layout, self.share)


def _made(cls: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Reads a table as a value with a field for every key."""
    return lambda table: cls(**table)


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


_numbers, _rows_of_numbers = _each(float), _each(_floats)
_tile_model, _power = _made(TileModel), _made(Power)
_tile_models, _corrections = _each(_tile_model), _each(_made(Correction))
_stacks, _by_cuda = _each(_made(Stack)), _each(attention.ratios)


def _draw(table: Mapping[str, Any]) -> Draw:
    return Draw(**{**table, "flop": _numbers(table["flop"])})


def _adamw(table: Mapping[str, Any]) -> Adamw:
    launches = tuple((chunks, seconds) for chunks, seconds in table["launch"])
    return Adamw(launches, table["sparse"])


def fact(
    limits: Schema, read: Callable[[Any], Any] = float, default: Any = MISSING
) -> Any:
    """A fact: what a file may say, and how it is read; without a default every GPU must state it."""
    metadata = {"schema": limits, "read": read}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class GpuFacts:
    """What the files of a GPU state; SI units: bytes, seconds, bytes/s, flop/s.

    Attributes
    ----------
    sms
        Streaming multiprocessors.
    memory, bandwidth
        Capacity of the HBM in bytes, and its speed in bytes/s (datasheet).
    usable
        Bytes of it that the driver leaves to programs, CUDA's context among them (PyTorch's `total_memory`); None: all.
    l2, l2_bandwidth
        Size of the L2 in bytes, and its speed in bytes/s.
    gap
        Pause between back-to-back kernels of one stream, s.
    floor
        Shortest time of a kernel, s.
    peak
        Dense flop/s by number format.
    efficiency
        Share of the limits ("flops", "bytes") that kernels without a table reach; by kind, of the arithmetic peak.
    like
        A measured GPU of a similar kind, whose tables stand in where this one has none; "": none.
    generation
        One of those that have a file (`generations`); "": that of `like`.
    capability
        Major and minor compute capability; empty where the file does not say.
    stream
        HBM bytes/s that a streaming kernel reached; None where nobody measured it.
    spread
        Standard deviation of speed between GPUs of the model, relative.
    crowded
        Factor on kernels bound by the SMs' clock while other GPUs of the host work too.
    fused
        Factor on Megatron's fused elementwise kernels over streams of as many bytes; None: that of `like`.
    unaligned
        Factor on a product whose operands' rows are no multiples of 16 bytes.
    unaligned_batch
        Share of fp32's peak that such products reach in a batch, without tensor cores; None: as one product.
    power
        The power limit; None where it is in the measured times or unknown.
    power_limit
        Watts that it may draw; None where the file does not say.
    clock
        The SMs' highest clock, Hz; None where the file does not say.
    draw
        What it draws, W and J; None: as `like`, at the same shares of the limit and the peaks.
    sustained
        Time under hours of load over that of bursts, by number format, or "grouped".
    beyond_alike
        Time of a product in a format beyond that in the format that runs alike (`gemm.SAME`), by format: a share of its
        arithmetic at the peak. Longer significands draw more power, so the clock is lower.
    gemm, products
        Tile models of products: of any number format, and by format.
    correction
        How rows correct models between them, by kind; "default" for the others.
    terms
        Coefficients of the terms of a kind's time, by table (`prestep.sim.costs.terms`), s for a unit of each.
    adamw
        Launches of the fused AdamW.
    cuda
        Time of a product with the cuBLAS of a major version over that of the tables: a share, and one over the
        product's smallest size.
    cuda_attention, cuda_fp8
        Time of attention in 16 bits, and in fp8, with the cuDNN of a major version over that of the tables.
    libraries
        Stacks of which steps take the times of kernels, by family and format ("products_bf16").
    attention_fp8
        Time of attention in fp8 over that in 16 bits, by one library; None: as `like`.
    attention_over
        Time of attention over that on another GPU, by one library; None where nobody measured both.
    attention_widths
        Time of attention with wide heads over that with heads of 128; None: as `like`, if its units are the same.
    scans
        Time of scans, by name ("mamba2"), over that on the GPU where they were measured (`estimators.scans`).
    guessed_load
        Which of `sustained` nobody published: no key of a file, but which file it stands in.
    borne_out
        Kinds and formats of kernels whose lent times measured steps bear out (`gpu_files.borne_out`): no key of
        a file.
    """

    sms: int = fact(COUNT, int)
    memory: float = fact(POSITIVE)
    bandwidth: float = fact(POSITIVE)
    l2: float = fact(POSITIVE)
    l2_bandwidth: float = fact(POSITIVE)
    gap: float = fact(AT_LEAST_0)
    floor: float = fact(POSITIVE)
    peak: Mapping[str, float] = fact(
        Table(dict.fromkeys(DTYPE_BYTES, POSITIVE)), _numbers
    )
    efficiency: Mapping[str, float] = fact(
        Table(dict.fromkeys(("flops", "bytes", *KINDS), POSITIVE), ("flops", "bytes")),
        _numbers,
    )
    like: str = fact(Text(), str, "")
    generation: str = fact(Text(generations.names()), str, "")
    capability: tuple[int, ...] = fact(Items(Number(whole=True), 2), tuple, ())
    usable: float | None = fact(POSITIVE, float, None)
    stream: float | None = fact(POSITIVE, float, None)
    spread: float = fact(AT_LEAST_0, float, 0.0)
    crowded: float = fact(POSITIVE, float, 1.0)
    fused: float | None = fact(POSITIVE, float, None)
    unaligned: float = fact(POSITIVE, float, 1.0)
    unaligned_batch: float | None = fact(POSITIVE, float, None)
    power: Power | None = fact(schema.numbers_of(Power), _power, None)  # noqa: RUF009
    power_limit: float | None = fact(POSITIVE, float, None)
    clock: float | None = fact(POSITIVE, float, None)
    draw: Draw | None = fact(DRAW, _draw, None)  # noqa: RUF009
    sustained: Mapping[str, float] = fact(
        Table(dict.fromkeys((*DTYPE_BYTES, "grouped"), POSITIVE)),
        _numbers,
        {},
    )
    beyond_alike: Mapping[str, float] = fact(
        Table(dict.fromkeys(SAME, AT_LEAST_0)), _numbers, {}
    )
    gemm: TileModel | None = fact(schema.numbers_of(TileModel), _tile_model, None)  # noqa: RUF009
    products: Mapping[str, TileModel] = fact(
        Table(dict.fromkeys(DTYPE_BYTES, schema.numbers_of(TileModel))),
        _tile_models,
        {},
    )
    correction: Mapping[str, Correction] = fact(
        Table(
            dict.fromkeys(
                ("default", GEMM, *ATTENTION, *KINDS),
                schema.all_of(("length", "spread"), POSITIVE),
            )
        ),
        _corrections,
        {},
    )
    terms: Mapping[str, tuple[float, ...]] = fact(
        Table(dict.fromkeys(TABLES_OF_KERNELS, Items(AT_LEAST_0))), _rows_of_numbers, {}
    )
    adamw: Adamw | None = fact(LAUNCHES, _adamw, None)  # noqa: RUF009
    cuda: Mapping[str, tuple[float, ...]] = fact(
        Table(dict.fromkeys(TOOLKITS, Items(Number(-math.inf), 2))),
        _rows_of_numbers,
        {},
    )
    cuda_attention: Mapping[str, Ratios] = fact(BY_CUDA, _by_cuda, {})
    cuda_fp8: Mapping[str, Ratios] = fact(BY_CUDA, _by_cuda, {})
    libraries: Mapping[str, Stack] = fact(
        Table(dict.fromkeys(STACKS, STACK)), _stacks, {}
    )
    attention_fp8: Ratios | None = fact(attention.IN_FP8, attention.ratios, None)  # noqa: RUF009
    attention_over: Ratios | None = fact(attention.ON_BOTH, attention.ratios, None)  # noqa: RUF009
    attention_widths: Widths | None = fact(  # noqa: RUF009
        attention.WIDTHS, attention.widths, None
    )
    scans: Mapping[str, float] = fact(
        Table(dict.fromkeys(SCANS, POSITIVE)), _numbers, {}
    )
    guessed_load: tuple[str, ...] = ()
    borne_out: frozenset[tuple[str, str]] = frozenset()

    @property
    def room(self) -> float:
        """Bytes that programs can have."""
        return self.memory if self.usable is None else self.usable

    @property
    def tiles(self) -> dict[str, TileModel]:
        """Tile models of products by number format; "": of any."""
        return dict(self.products) | ({"": self.gemm} if self.gemm else {})


_STATED = [entry for entry in fields(GpuFacts) if "schema" in entry.metadata]
#: What a file of a GPU, or one with fitted or published constants of it, may say.
SCHEMA = Table({entry.name: entry.metadata["schema"] for entry in _STATED})
#: What the files of a GPU must say between them.
NEEDED = tuple(
    entry.name
    for entry in _STATED
    if entry.default is MISSING and entry.default_factory is MISSING
)


def gpu_facts(table: Mapping[str, Any], guessed_load: tuple[str, ...]) -> GpuFacts:
    """The facts of a checked table (`SCHEMA`) that has what is `NEEDED`."""
    values = {
        entry.name: entry.metadata["read"](table[entry.name])
        for entry in _STATED
        if entry.name in table
    }
    return GpuFacts(**values, guessed_load=guessed_load)
