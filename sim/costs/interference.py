"""What communication beside it costs a kernel.

A communication kernel holds one SM per channel until it ends. A GEMM is a set of equal tiles that run in
rounds over the SMs, so losing SMs costs whole rounds. cuBLAS gives a kernel of up to three tiles per SM a fixed
share per thread block; the blocks that find no SM run after the others, and the kernel takes twice as long.
Larger ones draw tiles from a counter and take ``ceil(tiles / free SMs)`` rounds, plus one because the blocks
that started late finish late. Other kernels slow down by measured factors (``interference.toml``).

All constants are facts of one machine: ``Beside`` has them, ``BUNDLED`` those of the measured host. A file of NCCL's
constants may lay others over them in its table ``[overlap]`` (``prestep calibrate`` fits them to overlap rows).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.costs.kinds import work
from prestep.sim.errors import Mistake
from prestep.sim.graph.kernel import BACKWARD, FUSED_ATTENTION, PREFIX, Kernel

# Elements of the output tile of cuBLAS's large Hopper kernels (nvjet 256x128, 128x256).
TILE = 256 * 128
SMALLEST_TILE = 64 * 128  # small products are cut finer, so that they too fill the GPU
STATIC = 1.9  # two rounds instead of one, a little less than twice: measured 1.75 to 2.07 over 16 shapes
ROUNDS = 3  # products of up to so many tiles per SM: 2.1 took 1.87 times as long (traces of 13B), 3.9 took 1.42 times
STREAM = 2e8  # guess, bytes: four times the L2 of Hopper; what moves less leaves HBM to others for a part of its time


@dataclass(frozen=True)
class Beside:
    """What kernels and collectives cost each other on one machine.

    Attributes
    ----------
    communication : float
        Factor >= 1 on a collective's time beside kernels.
    streaming : float
        The same beside kernels other than products that move at least ``STREAM`` bytes; 0: no different.
    hops : float
        Factor >= 1 on steps from rank to rank under LL and LL128 (`Plan.hops`) beside kernels.
    static : float
        Factor on a product of up to `ROUNDS` tiles per SM.
    free, least : float
        Flop/s of large products whose clock power does not hold down, and of the slowest that power holds down.
    default : float
        Factor on a kernel whose kind is not in ``factor``, beside ``reference_channels`` channels.
    factor : Mapping
        The same by kind.
    """

    communication: float
    default: float
    reference_channels: float
    free: float
    least: float
    factor: Mapping[str, float]
    static: float = STATIC
    streaming: float = 0.0
    hops: float = 1.0

    def slowdown(
        self, kernel: Kernel, channels: int, sms: int, alone: float = 0.0
    ) -> float:
        """Factor >= 1 on a kernel's time while communication holds ``channels`` of the GPU's ``sms``.

        ``alone`` is a matrix product's time (s) in a stream of nothing but products, where power may hold the clock
        down; 0: among other kernels, where it does not. SMs lost to communication free power, so the clock rises: what
        is lost is the smaller of the two, not their product.
        """
        if channels <= 0:
            return 1.0
        if kernel.is_product:
            lost = self._gemm(kernel, min(channels, sms - 1), sms)
            return max(1.0, lost / self._throttle(kernel, alone))
        factor = self.known(kernel)
        if factor is None:
            factor = self.default
        return float(
            1.0 + (factor - 1.0) * min(1.0, channels / self.reference_channels)
        )

    def known(self, kernel: Kernel) -> float | None:
        """The factor of a kernel's kind and layout, else of its kind."""
        kind = factor_name(kernel)
        own = self.factor.get(f"{kind} {kernel.layout}".strip())
        return self.factor.get(kind) if own is None else own

    def contention(self, kernel: Any = None) -> float:
        """Factor >= 1 on the time of a collective beside this kernel (they share HBM and L2); None: beside any."""
        if (
            not self.streaming
            or not isinstance(kernel, Kernel)
            or kernel.is_product
            or kernel.kind == "spin"
        ):
            return self.communication
        return self.streaming if work(kernel)[1] >= STREAM else self.communication

    def _throttle(self, kernel: Kernel, alone: float) -> float:
        """How much slower a matrix product runs alone because power holds its clock down; 1 where it does not."""
        m, n, k = kernel.shape
        rate = 2.0 * m * n * k / alone if alone > 0 else math.inf
        return self.free / rate if self.least <= rate <= self.free else 1.0

    def _gemm(self, kernel: Kernel, channels: int, sms: int) -> float:
        m, n, _ = kernel.shape
        free = sms - channels
        if m * n < free * SMALLEST_TILE:
            return 1.0
        if not draws_tiles(kernel, sms):
            return self.static
        tiles = math.ceil(m / 256) * math.ceil(n / 128)
        return max(1.0, (math.ceil(tiles / free) + 1) / math.ceil(tiles / sms))


def draws_tiles(kernel: Kernel, sms: int) -> bool:
    """Whether a product or cuDNN's attention draws its tiles from a counter, where a generation's kernels have one."""
    if kernel.is_product:
        m, n, _ = kernel.shape
        return m * n > ROUNDS * sms * TILE
    return kernel.kind.removesuffix(BACKWARD) == FUSED_ATTENTION["cudnn"]


def scarcity(channels: int) -> float:
    """How much of `Beside.communication` a collective suffers by its channels; with the 24 of its traces: 1.

    The fewer move its bytes, the longer each waits for memory that kernels use as well. Beside products and attention
    of two H200 collectives took 1.28, 1.18 and 1.09 times as long with 1 to 8, 16 and 32 channels (lab/cases/beside).
    """
    return min(1.4, max(0.4, 1.6 - channels / 40)) if channels else 1.0


def factor_name(kernel: Kernel) -> str:
    """What factors call a kernel's kind; attention of all libraries leaves about as much to others."""
    is_attention = kernel.is_attention
    return kernel.direction if is_attention else kernel.kind.removeprefix(PREFIX)


FILE = Path(__file__).with_suffix(".toml")
_FACTOR = schema.Number(above=True)
_PLAIN = ("communication", "streaming", "hops", "default", "reference_channels")
_KEYS: dict[str, schema.Schema] = {
    "renamed": schema.Named(schema.Text()),
    **dict.fromkeys(_PLAIN, _FACTOR),
    "power": schema.all_of(("free", "least"), _FACTOR),
    "factor": schema.Named(_FACTOR),
}
SCHEMA = schema.Table(_KEYS, _KEYS)
_AT_LEAST_1 = schema.Number(1.0)


class _Factors(schema.Named):
    """Factors by the names that kernels have now: one under a former name would be read by nobody."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        yield from super().mistakes(where, key, value)
        for name in value if isinstance(value, Mapping) else ():
            if now := _table()["renamed"].get(name.partition(" ")[0]):
                hint = "kernels are named as PyTorch's operations are"
                found, expected = "a former name", f'"{now}"'
                yield Mistake(where, f"{key}.{name}", found, expected, hint)


#: A machine's table [overlap] in a file of NCCL's constants.
OVERLAP = schema.Table(
    {
        **{entry.name: _AT_LEAST_1 for entry in fields(Beside)},
        **dict.fromkeys(("least", "streaming"), schema.Number()),
        "factor": _Factors(_AT_LEAST_1),
        "evidence": schema.Text(schema.GRADES),
    }
)


@cache
def _table() -> dict[str, Any]:
    return schema.read(FILE, SCHEMA)


def _bundled() -> Beside:
    table = _table()
    power = {key: float(table["power"][key]) for key in ("free", "least")}
    plain = {key: float(table[key]) for key in _PLAIN}
    return Beside(**plain, **power, factor=table["factor"])


BUNDLED = _bundled()


def laid_over(rows: Mapping[str, Any]) -> Beside:
    """The bundled constants, with those of a machine's table ``[overlap]`` over them."""
    factor = {**BUNDLED.factor, **rows.get("factor", {})}
    return replace(
        BUNDLED,
        **{key: value for key, value in rows.items() if key != "evidence"}
        | {"factor": factor},
    )


def is_known(kernel: Kernel) -> bool:
    """Whether a kernel's slowdown beside communication was measured or follows from its tiles."""
    certain = kernel.is_product or kernel.kind == "spin"
    return certain or BUNDLED.known(kernel) is not None
