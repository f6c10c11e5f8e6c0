"""The scenario of a published run: its tables, from what its setup and its row say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.formats.published_columns import (
    PRECISIONS,
    RECOMPUTE,
    chosen,
    count,
    whole,
)
from lab.formats.published_families import family_of
from lab.formats.published_fill import VOCAB
from lab.formats.published_setups import Setup
from prestep.sim.errors import InputError, Mistake


@dataclass(frozen=True)
class _Grid:
    """Ranks by axis."""

    gpus: int
    dp: int
    tp: int
    pp: int
    cp: int

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, context parallelism's included."""
        return self.dp * self.cp


def _grid(row: Mapping[str, str]) -> _Grid:
    """The layout of a row.

    Raises
    ------
    InputError
        If the row gives a layout whose product is not the number of its GPUs.
    """
    gpus, tp, pp, cp = (count(row, name, 1) for name in ("gpus", "tp", "pp", "cp"))
    dp = count(row, "dp", max(1, gpus // (tp * pp * cp)))
    if row.get("dp", "").strip() and dp * tp * pp * cp != gpus:
        found = f"dp {dp} x tp {tp} x pp {pp} x cp {cp} on {gpus} GPUs"
        expected = "a layout whose product is the number of GPUs"
        raise InputError(Mistake(row["id"], "", found, expected))
    return _Grid(gpus, dp, tp, pp, cp)


def scenario_of(row: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    """The scenario's tables: what the setup says, and what the row says over it."""
    sections = {name: dict(keys) for name, keys in (setup.sections or {}).items()}
    cluster, model, training, parallel = (
        sections.pop(name, {}) for name in ("cluster", "model", "training", "parallel")
    )
    grid = _grid(row)
    stages = grid.pp * int(parallel.get("vpp", 1))
    training |= _training(row, setup, grid.dp * stages)
    model = {"vocab": VOCAB, **family_of(row)[0], **model, **_model(row)}
    tables = {
        "cluster": cluster | cluster_of(grid.gpus, setup),
        "model": _positions(model, training["seq_len"]),
        "training": training,
        "parallel": _parallel(row, grid, parallel),
    }
    if cut := _cut(row, model, grid.pp):
        sections["megatron"] = {**cut, **sections.get("megatron", {})}
    return tables | sections


def _parallel(
    row: Mapping[str, str], grid: _Grid, setup: Mapping[str, Any]
) -> dict[str, Any]:
    """[parallel]; `setup` are the keys that the row's setup has."""
    return {
        "data_parallel": "ddp" if grid.replicas > 1 else "none",
        **setup,
        "dp": grid.dp,
        "tp": grid.tp,
        "pp": grid.pp,
        "cp": grid.cp,
        "uneven_stages": True,
        **_split(row, grid.tp, grid.pp),
        **_shards(row, setup, grid),
    }


def _training(row: Mapping[str, str], setup: Setup, parts: int) -> dict[str, Any]:
    """[training]; `parts`: replicas times stages, among which a batch of stages is divided."""
    batch = whole(row, "global_batch", 0)
    alone = max(1, batch // parts) if setup.stage_batches else 1
    training = {
        "seq_len": whole(row, "seq_len", 0),
        "micro_batch": whole(row, "micro_batch", alone),
        "global_batch": batch,
        **chosen(row, "recompute", RECOMPUTE),
        **chosen(row, "precision", PRECISIONS),
    }
    if setup.selective and training.get("recompute") == "selective":
        training["recompute"] = setup.selective
    if setup.whole and training.get("recompute") == "full":
        training["recompute"] = setup.whole
    return training


def _split(row: Mapping[str, str], tp: int, pp: int) -> dict[str, Any]:
    """Experts, chunks and sequences, as far as a row says them."""
    split: dict[str, Any] = {}
    ep, vpp = whole(row, "ep", 1), whole(row, "vpp", 1)
    if ep > 1:
        split["ep"] = ep
    if vpp > 1 and pp > 1:
        split |= {"vpp": vpp, "schedule": "interleaved"}
    sequence = row.get("sequence_parallel", "").strip().lower()
    if sequence:
        split["sequence_parallel"] = sequence == "true" and tp > 1
    return split


def _cut(row: Mapping[str, str], model: Mapping[str, Any], pp: int) -> dict[str, bool]:
    """Megatron cuts evenly: where the layers alone cannot be, the embedding and the head count as a layer each."""
    layers, stages = model.get("layers", 0), pp * max(1, whole(row, "vpp", 1))
    if layers % stages == 0 or (layers + 2) % stages:
        return {}
    return {"account_for_embedding": True, "account_for_loss": True}


def cluster_of(gpus: int, setup: Setup) -> dict[str, Any]:
    """One host where the GPUs fit in it, else as many as they need."""
    if gpus <= setup.per_host and setup.one_host:
        part = {"gpus": gpus} if gpus < setup.per_host else {}
        return {"name": setup.one_host, **part}
    if not setup.hosts:
        expected = "a cluster of several hosts in setups.toml"
        raise InputError(Mistake(setup.slice, "", f"{gpus} GPUs", expected))
    return {"name": setup.hosts, "hosts": -(-gpus // setup.per_host), "gpus": gpus}


def _model(row: Mapping[str, str]) -> dict[str, Any]:
    shape = {
        name: whole(row, name, 0)
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    }
    made = {name: value for name, value in shape.items() if value}
    made.setdefault("ffn", 4 * shape["hidden"])
    return {"kind": "transformer", **made}


def _shards(
    row: Mapping[str, str], parallel: Mapping[str, Any], grid: _Grid
) -> dict[str, int]:
    """Fewer shards than data-parallel ranks, where the row says so ("FSDP 128" of 1024; "HSDP": within a host).

    Ranks of context parallelism share parameters too.
    """
    ranks = grid.replicas
    text = row.get("zero_or_fsdp", "").strip()
    counted = re.fullmatch(r"(?:FSDP|HSDP)2?(?: shard)? (\d+)", text, re.IGNORECASE)
    if counted:
        shards = int(counted[1]) * grid.cp
    else:
        shards = 8 if text.upper() == "HSDP" else ranks
    divides = 1 < shards < ranks and ranks % shards == 0
    is_fsdp = parallel.get("data_parallel") == "fsdp"
    return {"fsdp_shards": shards} if is_fsdp and divides else {}


def _positions(model: dict[str, Any], seq_len: Any) -> dict[str, Any]:
    """Learned positions are as many as the sequence has, where nobody says more; others have no rows."""
    if model.get("positions") != "learned":
        return {key: value for key, value in model.items() if key != "max_positions"}
    return model | {"max_positions": max(seq_len, model.get("max_positions", 0))}
