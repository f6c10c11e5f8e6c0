"""Measured collectives in the JSON lines of the harness, read strictly.

An `env` line gives the NCCL_* settings of its label to the lines after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim.collectives.plan import OPS
from prestep.sim.errors import InputError, unknown
from prestep.validation.formats import records
from prestep.validation.formats.collective_rows import (
    IN_PLACE,
    ONE_WAY,
    Row,
    nccl_op,
)
from prestep.validation.formats.nccl_env import Unpredictable, settings_of
from prestep.validation.formats.overlap_rows import Overlap, read_overlap
from prestep.validation.formats.records import seconds, text_of, whole

# Above this size launches are hidden behind the kernels, so eager times are times on the GPU.
EAGER_IS_GPU = 2**22
KINDS = ("env", "collective", "overlap", "end")


def read_lines(path: str | Path, cluster: str = "") -> tuple[list[Row], list[Overlap]]:
    """Rows of collectives and of overlap in a file of JSON lines.

    A row's `cluster` names the cluster it ran on; others ran on the measured host, or on `cluster`.

    Raises
    ------
    InputError
        With file, line and key of everything that is wrong.
    """
    path, reader = Path(path), _Reader(cluster)
    if path.suffix.lower() == ".csv":
        expected = "JSON lines of `prestep measure`"
        hint = "published tables are read by published-collectives, a set of the repository's lab/"
        raise InputError.of(path.name, "", "a CSV table", expected, hint)
    records.read_lines(text_of(path), path.name, reader.take)
    return reader.rows, reader.overlaps


def _kind(record: object, where: str) -> str:
    if not isinstance(record, Mapping):
        raise InputError.of(where, "", type(record).__name__, "an object")
    kind = str(record.get("kind", "nothing"))
    if kind not in KINDS:
        raise InputError(unknown(where, "kind", kind, KINDS))
    return kind


MEASURED_GPUS = 4  # of the host that rows without a cluster ran on


class _Reader:
    """Keeps what lines say for those after them: environments, and the place in a series."""

    def __init__(self, cluster: str = "") -> None:
        self.cluster = cluster
        self.rows: list[Row] = []
        self.overlaps: list[Overlap] = []
        self.env: dict[str, tuple[dict[str, str], str | None]] = {}
        self.position: dict[tuple[str, str, int], int] = {}
        self.names: dict[str, int] = {}

    def take(self, record: Any, where: str) -> None:
        """Takes up one line."""
        kind = _kind(record, where)
        if kind == "env":
            self.environment(record, where)
        elif kind == "collective":
            self.collective(record, where)
        elif kind == "overlap":
            self.overlaps.append(self.overlap(record, where))

    def environment(self, record: Mapping[str, Any], where: str) -> None:
        env, version = record.get("env", {}), record.get("nccl")
        if not isinstance(env, Mapping):
            raise InputError.of(where, "env", repr(env), "variables by name")
        if version is not None and not re.match(r"2\.\d+", str(version)):
            expected = "a version of NCCL 2, such as 2.28.9"
            raise InputError.of(where, "nccl", repr(version), expected)
        named = {str(k): str(v) for k, v in env.items()}
        self.env[str(record.get("label", "default"))] = (
            named,
            None if version is None else str(version),
        )

    def collective(self, record: Mapping[str, Any], where: str) -> None:
        row = self._in_its_setting(self._timed(record, where), record)
        small = record.get("graph_s") is None and row.size <= EAGER_IS_GPU
        if small and not self._slow_network(row.label):
            why = "the host's time, not the GPU's: no graph_s at 4 MiB and below"
            row = replace(row, skip=why)
        count = self.names[row.name] = self.names.get(row.name, 0) + 1
        self.rows.append(replace(row, id=f"{row.name}#{count}") if count > 1 else row)

    def _timed(self, record: Mapping[str, Any], where: str) -> Row:
        """The row of a record without its setting; every second one of a series is held out."""
        label, op = str(record.get("label", "default")), _named_op(record, where)
        ranks, size = whole(record, "ranks", where, 2), whole(record, "bytes", where, 1)
        time = eager = seconds(record, "s", where)
        calls = 0
        if record.get("graph_s") is not None:
            time = seconds(record, "graph_s", where)
        elif record.get("iters") is not None:
            calls = whole(record, "iters", where, 1)
        series = label, op, ranks
        self.position[series] = self.position.get(series, -1) + 1
        held_out = self.position[series] % 2 == 1
        return Row(label, op, ranks, size, time, eager, held_out, where, calls=calls)

    def overlap(self, record: Mapping[str, Any], where: str) -> Overlap:
        row, label = read_overlap(record, where), str(record.get("label", "default"))
        row = replace(row, cluster=str(record.get("cluster", self.cluster)))
        env, version = self.env.get(label, ({}, None))
        try:
            return replace(row, wanted=settings_of(env, row.op, version, where)[0])
        except Unpredictable as error:
            return replace(row, skip=str(error))

    def _slow_network(self, label: str) -> bool:
        """Over sockets every call takes longer than its launch."""
        return (
            self.env.get(label, ({}, None))[0].get("NCCL_NET", "").lower() == "socket"
        )

    def _in_its_setting(self, row: Row, record: Mapping[str, Any]) -> Row:
        """The row with its cluster and NCCL's settings, or why it cannot be predicted."""
        env, version = self.env.get(row.label, ({}, None))
        if cluster := str(record.get("cluster", self.cluster)):
            row = replace(row, cluster=cluster)
            # Pretended hosts are hosts of that cluster.
            env = {k: v for k, v in env.items() if k != "NCCL_HOSTID"}
        elif row.ranks > MEASURED_GPUS:
            why = f"{row.ranks} ranks: the measured host has 4 GPUs (say `cluster`)"
            return replace(row, skip=why)
        op = nccl_op(row.op)
        try:
            wanted, ignored = settings_of(env, op, version, row.where)
        except Unpredictable as error:
            return replace(row, skip=str(error))
        return replace(row, wanted=wanted, ignored=ignored)


def _named_op(record: Mapping[str, Any], where: str) -> str:
    """The operation of a record, as the harness names it."""
    op = str(record.get("op", "nothing"))
    if op.removesuffix(IN_PLACE) not in OPS and op not in ONE_WAY:
        raise InputError(unknown(where, "op", op, [*OPS, *ONE_WAY]))
    return op
