"""What a machine's links and disks carry: slopes of copies between their two largest sizes, and rates of files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.validation.fit.bootstrap import Estimate, estimate
from prestep.validation.fit.measurement import Measured

LARGE = 64 * 2**20  # bytes from which on a copy's rate is the link's and not its start
BIG_FILE = 512 * 2**20


@dataclass(frozen=True)
class Rate:
    """A bandwidth, bytes/s, and how it was had, in words."""

    value: float
    source: str


def rates(
    measured: Measured, nvlinks: float, limits: Mapping[str, float]
) -> dict[str, Rate]:
    """Bandwidths by key of a cluster file ("nvlink.bandwidth", ...), as far as they were measured.

    Parameters
    ----------
    nvlinks
        Links of a GPU, which share what a copy to another GPU reaches; 0: none.
    limits
        Bytes/s on the wire by key ("nvlink.raw"): a copy that seems faster was not timed right, and does not count.
    """
    copies = measured.rows("micro", "copy", ("bytes", "s"))
    by_key: dict[str, Rate] = {}
    for key, mode, links in (
        ("nvlink.bandwidth", "p2p_read", nvlinks),
        ("nvlink.bandwidth", "p2p_write", nvlinks),
        ("pcie.bandwidth", "h2d_pinned", 1.0),
        ("pcie.upstream", "d2h_pinned", 1.0),
    ):
        slope = _slope([row for row in copies if row.get("mode") == mode])
        wire = limits.get(f"{key.partition('.')[0]}.raw", math.inf) * links
        if slope is not None and links > 0 and slope.value <= wire:
            over = f" over {links:.0f} links" if links != 1.0 else ""
            by_key[key] = Rate(
                slope.value / links, f"copies {mode}: slope {_gb(slope)}{over}"
            )
    return by_key | _disks(
        measured.rows(
            "storage", "storage", ("bytes", "write_s", "sync_s", "read_cold_s")
        )
    )


def _slope(rows: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """Bytes/s between neighbouring large sizes."""
    points = sorted(
        (int(row["bytes"]), float(row["s"]))
        for row in rows
        if int(row["bytes"]) >= LARGE
    )
    slopes = [
        (b - a) / (later - earlier)
        for at, (a, earlier) in enumerate(points)
        for b, later in points[at + 1 :]
        if later > earlier
    ]
    return estimate(slopes, lambda x: np.median(x, axis=-1)) if slopes else None


def _disks(rows: Sequence[Mapping[str, Any]]) -> dict[str, Rate]:
    """Of the folder with the fastest writes: written and synced; read with a cold cache, if it was cold."""
    large = [
        row
        for row in rows
        if int(row["bytes"]) >= BIG_FILE and row.get("filesystem") != "tmpfs"
    ]
    if not large:
        return {}
    writes = [row["bytes"] / (row["write_s"] + row["sync_s"]) for row in large]
    reads = [
        row["bytes"] / row["read_cold_s"] for row in large if row.get("cold_is_cold")
    ]
    found = {
        "nvme.bandwidth": Rate(
            max(writes), f"files written and synced: {_gb(estimate(writes))}"
        )
    }
    if reads:
        found["nvme.upstream"] = Rate(
            max(reads), f"files read from a cold cache: {_gb(estimate(reads))}"
        )
    return found


def _gb(found: Estimate) -> str:
    return f"{found.value / 1e9:.4g} GB/s (90 % of draws {found.low / 1e9:.4g} to {found.high / 1e9:.4g})"
