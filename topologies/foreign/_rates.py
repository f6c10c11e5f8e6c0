"""Link rates for files that name a generation but no bandwidth: NCCL's own constants, and the wire's."""

from __future__ import annotations

from prestep.sim import files
from prestep.topologies.core.quantity import LinkSpec, Quantity

_TABLES = files.beside(__file__)
_NVLINK = {int(sm): rates for sm, rates in _TABLES["nvlink"].items()}
_PCIE = {float(speed): rates for speed, rates in _TABLES["pcie"].items()}
_LATENCY = {kind: Quantity(**latency) for kind, latency in _TABLES["latency"].items()}
PCIE_SPEEDS = tuple(_PCIE)


def nvlink(sm: int) -> LinkSpec:
    """One NVLink of a GPU of compute capability `sm` / 10; the newest known that is not newer."""
    base = max((key for key in _NVLINK if key <= sm), default=60)
    fitted, wire = _NVLINK[base]
    return LinkSpec(
        Quantity(fitted * 1e9, "fitted", f"NCCL src/graph/topo.h: sm{base} NVLink"),
        _LATENCY["nvlink"],
        raw=Quantity(
            wire * 1e9,
            "datasheet",
            f"NVLink of sm{base}: {wire:g} GB/s per link and direction",
        ),
    )


def pcie(speed: float, width: int, evidence: str = "fitted") -> LinkSpec:
    """A PCIe link of `speed` GT/s (one of `PCIE_SPEEDS`) and `width` lanes."""
    rate, wire = _PCIE[speed]
    return LinkSpec(
        Quantity(
            width * rate / 80 * 1e9,
            evidence,
            f"NCCL src/graph/topo.cc: {speed:g} GT/s, {width} lanes",
        ),
        _LATENCY["pcie"],
        raw=Quantity(
            width * wire, "datasheet", f"PCI Express: {speed:g} GT/s, {width} lanes"
        ),
    )


def port(bandwidth: float, evidence: str, source: str, kind: str = "nic") -> LinkSpec:
    """A network port or cable whose rate in bytes/s is known from `source`."""
    return LinkSpec(
        Quantity(bandwidth, evidence, source), _LATENCY.get(kind, _LATENCY["switch"])
    )


def socket(arch: str, vendor: str, family: int, model: int) -> LinkSpec:
    """Between two sockets, as NCCL takes it for a CPU."""
    rate, name = 16.0, "AMD"
    if arch == "ppc64":
        rate, name = 32.0, "POWER"
    elif arch == "arm64" or arch == "aarch64":
        rate, name = 6.0, "Arm"
    elif vendor == "GenuineIntel":
        steps = [
            (0xCF, 40.0, "ERP"),
            (0x8F, 22.0, "SRP"),
            (0x55, 10.0, "SKL"),
            (0, 6.0, "BDW"),
        ]
        rate, name = next(
            (rate, f"Intel {step}")
            for low, rate, step in steps
            if family > 6 or model >= low
        )
    elif vendor == "CentaurHauls" or "Zhaoxin" in vendor:
        rate, name = 6.0, "Zhaoxin"
    return LinkSpec(
        Quantity(
            rate * 1e9,
            "fitted",
            f"NCCL src/graph/topo.h: between sockets of {name}, below the wire",
        ),
        _LATENCY["socket"],
    )
