"""Measured collectives (JSON lines of the harness) and their predictions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.collectives.plan import Settings

CASES = Path(__file__).parent / "cases" / "h200"
FILES = (CASES / "collectives_2gpu.jsonl", CASES / "collectives_4gpu.jsonl")
# Above this size launches are hidden behind the kernels, so eager times are times on the GPU.
EAGER_IS_GPU = 2**22


@dataclass(frozen=True)
class Row:
    """One measured size: `time` is seconds on the GPU, `eager` with the host's launches."""

    label: str
    op: str
    ranks: int
    size: int
    time: float
    eager: float
    held_out: bool

    @property
    def wanted(self) -> Settings:
        """NCCL's settings that the label stands for: default, Ring-LL128, ch4."""
        if self.label.startswith("ch"):
            return Settings(max_channels=int(self.label[2:]))
        if "-" in self.label and self.op == "all_reduce":
            algo, proto = self.label.split("-")
            return Settings(algo=algo.lower(), proto=proto)
        return Settings()

    @property
    def series(self) -> str:
        """What a tolerance is set for."""
        if self.label.startswith("ch"):
            return "channel-limited"
        if self.label != "default":
            return self.label
        return "default, 1 MiB and more" if self.size >= 2**20 else "default, below 1 MiB"


def read(files: Iterable[Path] = FILES) -> list[Row]:
    """All rows whose time on the GPU is known; every second size of a series is held out of fits."""
    rows: list[Row] = []
    position: dict[tuple[str, str, int], int] = {}
    for file in files:
        for record in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if record["kind"] == "collective":
                key = record["label"], record["op"], record["ranks"]
                position[key] = position.get(key, -1) + 1
                rows += _row(record, position[key] % 2 == 1)
    return rows


def _row(record: dict[str, Any], held_out: bool) -> list[Row]:
    time = record.get("graph_s") or (record["s"] if record["bytes"] > EAGER_IS_GPU else None)
    if time is None:
        return []
    return [
        Row(record["label"], record["op"], record["ranks"], record["bytes"], time, record["s"], held_out)
    ]  # fmt: skip


def members(row: Row, gpus: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Operation and ranks of a row on a host with these GPUs (`send_0_1` is one-way, the other ranks idle)."""
    if row.op == "send_0_1":
        return "send", gpus[: row.ranks]
    return row.op, gpus[: row.ranks]
