"""`python -m lab.fit.scans`: scans of training steps, forward and backward, beside those of serving stacks.

`lab/cases/kernels/harness/scans.py` measured them on an H100. A fifth of the shapes is in no table but in the
set `kernels` (`lab.formats.library_rows.held_out`), like those of `lab.fit.libraries`, whose files these
rows join. Run it after that.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from scipy.optimize import least_squares

from lab.fit.libraries import ROWS, split, write
from lab.formats.packaged import libraries, library_table
from prestep.sim.costs import load_gpu
from prestep.sim.costs.estimators.scans import MEASURED_ON, SOURCES
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.costs.library_families import SCANS
from prestep.sim.costs.library_table import Library

MEASURED = ROWS / "training-scans.jsonl"
CHUNK, MAMBA_CHUNK = 64, 128  # of rows that have none, and of a library's for Mamba-2
GPUS = ("h100", "h200", "b200", "gb200", "b300", "gb300")
CONV = "causal_conv1d_fn"
#: Whose forward passes say how GPUs differ, and octaves within which a row is near ours.
LIBRARIES = {
    "mamba2": (
        ("trtllm/1.3.0rc15", "mamba_chunk_scan_combined", "mamba2 context"),
        0.55,
    ),
    "gdn": (("sglang/0.5.14", "chunk_gated_delta_rule", "gdn context"), 1.0),
    "kda": (("sglang/0.5.16", "chunk_kda", "kda context"), 1.0),
    "gated_norm": (("trtllm/1.3.0rc20", CONV, "mamba2 context"), 1.0),
    "fla_conv1d": (("sglang/0.5.14", CONV, "gdn context"), 3.0),
}


def measured(path: Path = MEASURED) -> pd.DataFrame:
    """Rows as the packaged table has them: of a shape that was measured twice the mean."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    rows = pd.DataFrame([line for line in lines if "kernel" in line])
    rows["chunk"] = rows["chunk"].where(
        rows["chunk"] > 0, CHUNK
    )  # a convolution, a norm
    rows["source"] = rows["kernel"].map(SOURCES)
    rows["variant"] = "training " + rows["direction"]
    rows["gpu"], rows["dtype"] = MEASURED_ON, "bf16"
    who = ["gpu", "dtype", "source", "kernel", "variant"]
    means = rows.groupby([*who, *SCANS.sizes])["us"].mean()
    return means.reset_index()


def joined(path: Path, rows: pd.DataFrame) -> None:
    """A file with these rows in place of its own of their sources."""
    others = pd.read_parquet(path)
    kept = others[~others["source"].isin(set(SOURCES.values()))]
    texts = kept.astype(
        dict.fromkeys(("gpu", "dtype", "source", "kernel", "variant"), str)
    )
    write(pd.concat([texts, rows[list(texts)]]), path)
    print(len(rows), "of", len(texts) + len(rows), path)


def shares(known: pd.DataFrame) -> None:
    """Print each GPU's time over that of the GPU that was measured, by a library's forward passes.

    A library's call is a start, which is the host's, and the kernel: a share of ours on the H100. Where the library ran
    on an H100 too, its share there is taken off. Shapes near rows of the library only.
    """
    forward = known[known["variant"] == "training forward"]
    for name, (library, reach) in LIBRARIES.items():
        own = forward[forward["kernel"] == name]
        found = {gpu: _share(own, gpu, library, reach) for gpu in GPUS}
        base = found.get(MEASURED_ON) or 1.0
        print(
            name, {gpu: round(share / base, 2) for gpu, share in found.items() if share}
        )


def _share(
    own: pd.DataFrame, gpu: str, library: tuple[str, ...], reach: float
) -> float:
    """The slope of a library's times over ours, whose relative errors are least; 0 without a library."""
    source, kernel, variant = library
    who = Library(gpu, "bf16", source, kernel, variant)
    if who not in libraries(SCANS):
        return 0.0
    table = library_table(SCANS, who, load_gpu(gpu).roofline)
    sizes = own[list(SCANS.sizes)].to_numpy(dtype=float, copy=True)
    if "mamba2" in variant:
        sizes[:, -1] = MAMBA_CHUNK
    near = table.beyond(sizes) < reach
    ours, theirs = own["us"].to_numpy()[near], table.seconds(sizes)[near] * 1e6
    fit = least_squares(
        lambda at: (at[0] + at[1] * ours) / theirs - 1.0,
        [50.0, 1.0],
        bounds=(0.0, [300.0, 5.0]),
    )
    return float(fit.x[1])


def main() -> None:
    """Write both files, and print what other GPUs' files say."""
    known, held = split(SCANS, measured())
    joined(HARDWARE / "scans.parquet", known)
    joined(ROWS / "scans.parquet", held)
    shares(known)


if __name__ == "__main__":
    main()
