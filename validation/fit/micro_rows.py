"""Microbenchmark rows (`micro.jsonl`, triton `do_bench`), brought to the times that kernels take inside a step.

`do_bench` runs one kernel in short bursts after flushing the L2: an event pair and a cold cache make short kernels look
longer, high clocks make long ones look shorter. Both are fitted against the traces.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from prestep.sim import files
from prestep.sim.costs import terms
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.tables import Kriged, Row
from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.kernel import Kernel
from prestep.validation.fit.kernels import fit_gemm_model, fit_terms

NOISE = (
    0.06  # relative, of rows without an in-situ counterpart; shorter than 30 us: 15 %
)
OVERHEAD = 4.0e-6  # s, event pair and cold cache around memory-bound kernels; measured against traces
FITTED = ("gemm", "attention_fwd", "attention_bwd")
# Its transpose is of a whole matrix, four times as slow as the transposes of heads that a step makes: not used.
OPS = {
    "gelu": "gelu",
    "to_fp32": "cast",
    "sum": "sum",
    "layer_norm": "layer_norm_fwd",
    "softmax": "softmax",
}
DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "tf32",
    "float8_e4m3fn": "fp8",
    "fp8_block": "fp8_block",
}


def micro_rows(path: Path) -> list[Row]:
    """Rows of `micro.jsonl`: raw for the kinds in `FITTED`, less `OVERHEAD` for the others.

    Raises
    ------
    InputError
        With every line that is no kernel's row.
    """
    rows, mistakes = [], list[Mistake]()
    for at, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = _row(files.json_of(line))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            mistakes.append(
                Mistake(
                    f"{path.name}:{at}",
                    "",
                    found[:100],
                    "a kernel's row, as `prestep measure` writes",
                )
            )
            continue
        if row is not None:
            rows.append(row)
    if mistakes:
        raise InputError(mistakes)
    return rows


def kept_apart(kernel: Kernel) -> bool:
    """Whether a product or attention of `micro_4gpu.jsonl` is judged on instead of used: a third, by shape."""
    return (
        kernel.kind in FITTED
        and zlib.crc32("x".join(map(str, kernel.shape)).encode()) % 3 == 0
    )


def _row(record: dict[str, object]) -> Row | None:
    kernel = _kernel(record)
    if kernel is None or not record.get("s"):
        return None
    seconds = float(record["s"])  # type: ignore[arg-type]
    time = seconds if kernel.kind in FITTED else max(seconds - OVERHEAD, 0.3 * seconds)
    return Row(kernel, time, NOISE if seconds > 3e-5 else 0.15, 1, "micro")


def in_situ(traces: list[Row], micro: list[Row], gpu: Gpu) -> list[Row]:
    """`micro` with the rows of `FITTED` kinds corrected: raw = overhead + factor x (what the traces alone predict).

    The scatter left about that line becomes the rows' noise. A kind without traces keeps its raw times.
    """
    done: list[Row] = []
    for kind in FITTED:
        mine = [row for row in micro if row.kernel.kind == kind]
        done += _in_situ_of(kind, traces, mine, gpu)
    return done + [row for row in micro if row.kernel.kind not in FITTED]


def _in_situ_of(kind: str, traces: list[Row], micro: list[Row], gpu: Gpu) -> list[Row]:
    """The rows of one kind, each as it would have been measured among the kernels of a step."""
    models = _models(kind, [row for row in traces if row.kernel.kind == kind], gpu)
    raw, traced = _shared(micro, models)
    if not len(raw):
        return micro
    overhead, factor = line(traced, raw)
    scatter = float(np.std(np.log(raw / (overhead + factor * traced))))
    print(
        f"micro {kind}: overhead {overhead * 1e6:.1f} us, factor {factor:.3f}, "
        f"scatter {100 * scatter:.1f} %"
    )
    return [_corrected(row, overhead, factor, scatter) for row in micro]


def _shared(
    micro: list[Row], models: dict[tuple[str, str], Kriged]
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the rows that a table of the traces covers: as measured alone, and as that table has them."""
    groups = [(row, terms.group(row.kernel)[1:]) for row in micro]
    covered = [(row, models[group]) for row, group in groups if group in models]
    raw = np.array([row.duration for row, _ in covered])
    traced = np.array([model(row.kernel) for row, model in covered])
    return raw, traced


def _corrected(row: Row, overhead: float, factor: float, scatter: float) -> Row:
    """The row without its own overhead, on the scale of the traces, at least as uncertain as the line."""
    time = max(row.duration - overhead, 0.3 * row.duration) / factor
    return replace(row, duration=time, noise=round(max(row.noise, scatter), 3))


def _models(kind: str, rows: list[Row], gpu: Gpu) -> dict[tuple[str, str], Kriged]:
    """A table per (layout, dtype) from the traces alone."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(terms.group(row.kernel)[1:], []).append(row)
    if not rows:
        return {}
    if kind == "gemm":
        tiles = fit_gemm_model(rows, gpu)
        return {
            key: Kriged(mine, tiles, terms.GEMM_AXES, length=2.0, spread=0.12)
            for key, mine in groups.items()
        }
    term, axes = terms.LINEAR[kind]
    base = partial(terms.linear, term, fit_terms(rows)[kind])
    return {
        key: Kriged(mine, base, axes, length=3.0, spread=0.15)
        for key, mine in groups.items()
    }


def line(traced: np.ndarray, raw: np.ndarray) -> tuple[float, float]:
    """Overhead (not negative) and factor of raw = overhead + factor x known, by relative least squares, twice.

    The second time leaves out what lies more than a quarter off: shapes for which cuBLAS chose another kernel.
    """
    keep = np.ones(len(raw), bool)
    for _ in range(2):
        design = np.stack([1.0 / raw[keep], traced[keep] / raw[keep]], axis=1)
        overhead, factor = np.linalg.lstsq(
            design, np.ones(int(keep.sum())), rcond=None
        )[0]
        if overhead < 0:
            overhead, factor = (
                0.0,
                float(np.exp(np.log(raw[keep] / traced[keep]).mean())),
            )
        keep = np.abs(np.log(raw / (overhead + factor * traced))) < 0.25
    return float(overhead), float(factor)


def _kernel(record: dict[str, object]) -> Kernel | None:
    get = record.get
    if get("kind") == "gemm":
        shape = tuple(int(record[axis]) for axis in "mnk")  # type: ignore[call-overload]
        return Kernel("gemm", shape, DTYPES[str(get("dtype"))], str(get("layout")))
    if get("kind") == "attention":
        names = ("batch", "heads", "kv_heads", "seq", "head_dim")
        shape = tuple(int(record[name]) for name in names)  # type: ignore[call-overload]
        return Kernel(f"attention_{get('dir')}", shape)
    if get("kind") == "memory" and get("op") in OPS:
        elements, op = int(record["elements"]), OPS[str(get("op"))]  # type: ignore[call-overload]
        if op in ("layer_norm_fwd", "softmax"):
            columns = min(elements, 4096)
            return Kernel(op, (elements // columns, columns))
        return Kernel(op, (elements,), bytes=float(record["bytes_moved"]))  # type: ignore[arg-type]
    return None
