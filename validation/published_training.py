"""Published training steps of other people's clusters: CSV rows to scenarios, predictions, comparison.

Columns as in ``cases/published/rows.csv``; ``published_setups`` adds what the sources say in words.
"""

from __future__ import annotations

import csv
import math
import multiprocessing
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake, PrestepError
from validation.published_flops import step_time_of
from validation.published_report import Case, PublishedReport
from validation.published_setups import FOLDER, Setup, family_of, setup_of

NEEDED = ("gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "tp", "pp")
COLUMNS = ("id", "source", "hardware", "model", "metric_name", "metric_value", "unit", *NEEDED, "micro_batch", "dp")
WHOLE = ("micro_batch", "dp")  # without these a row is incomplete; what is assumed is said
VOCAB = 51200  # GPT-2's, padded: where neither the row, nor its source, nor its family says one
RECOMPUTE = (("full", "full"), ("select", "selective"), ("none", "none"))
PRECISIONS = (("fp8", "fp8"), ("float8", "fp8"), ("fp4", "nvfp4"), ("bf16", "bf16"), ("fp16", "fp16"))


@dataclass(frozen=True)
class Run:
    """A row as a scenario with what was measured, s."""

    id: str
    slice: str
    group: str
    scenario: Mapping[str, Any]
    measured: float
    assumed: str


def validate_set(name: str, rows: str | Path | None = None, jobs: int = 1) -> PublishedReport:
    """Predicts every row that can be said as a scenario; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    runs, skips = sort(read(Path(rows) if rows else FOLDER / "rows.csv"))
    if jobs == 1 or len(runs) < 2:
        made = list(map(predict, runs))
    else:  # spawned, not forked: Arrow and BLAS have threads of their own
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            # The longest first and one at a time, so that no worker is left alone with a long one at the end.
            order = sorted(range(len(runs)), key=lambda at: -work(runs[at]))
            found = dict(zip(order, pool.map(predict, [runs[at] for at in order]), strict=True))
        made = [found[at] for at in range(len(runs))]
    cases = tuple(
        Case(run.id, run.slice, run.group, run.measured, time, error, run.assumed)
        for run, (time, error) in zip(runs, made, strict=True)
    )
    return PublishedReport(name, "Published training steps", cases, tuple(skips), rows is None)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file.

    Raises
    ------
    InputError
        If it cannot be read, or lacks columns.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{str(k): v or "" for k, v in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(Mistake(str(path), "", str(error), "a CSV file of training steps")) from None
    missing = [name for name in COLUMNS if rows and name not in rows[0]]
    if not rows or missing:
        found = "no rows" if not rows else f"no column {', '.join(missing)}"
        raise InputError(Mistake(str(path), "", found, f"columns {', '.join(COLUMNS)}"))
    return rows


def sort(rows: Sequence[Mapping[str, str]]) -> tuple[list[Run], list[tuple[str, str]]]:
    """Rows that are scenarios, and (row, reason) of those that are not."""
    runs, skips = [], []
    for row in rows:
        try:
            runs.append(run_of(row))
        except InputError as error:
            skips.append((row["id"], "; ".join(str(m) for m in error.mistakes)))
    return runs, skips


def run_of(row: Mapping[str, str]) -> Run:
    """A row as a run.

    Raises
    ------
    InputError
        Saying which columns are missing or what cannot be said as a scenario.
    """
    missing = [name for name in NEEDED if not row[name].strip()]
    if missing:
        raise InputError(Mistake(row["id"], "", f"no {', '.join(missing)}", "a complete configuration"))
    setup = setup_of(row)
    incomplete = [name for name in WHOLE if not row[name].strip()]
    scenario = scenario_of(row, setup)
    from sim.spec import parse_scenario

    parse_scenario(scenario, row["id"])
    group = "|".join(row.get(name, "") for name in ("source", "hardware", "layers", "hidden", "gpus", "global_batch"))
    try:
        measured = step_time_of(row, scenario)
    except (ValueError, ZeroDivisionError, OverflowError):  # no number, or none that says a time
        measured = math.nan
    if not (math.isfinite(measured) and measured > 0):
        raise InputError(Mistake(row["id"], row["metric_name"], row["metric_value"], "a positive number"))
    assumed = ", ".join(f"{name} assumed" for name in incomplete)
    return Run(row["id"], setup.slice or row["source"], group, scenario, measured, assumed)


def scenario_of(row: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    """The scenario's tables."""
    sections = {name: dict(keys) for name, keys in (setup.sections or {}).items()}
    gpus, tp, pp, cp = (_count(row, name, 1) for name in ("gpus", "tp", "pp", "cp"))
    dp = _count(row, "dp", max(1, gpus // (tp * pp * cp)))
    if row.get("dp", "").strip() and dp * tp * pp * cp != gpus:
        found = f"dp {dp} x tp {tp} x pp {pp} x cp {cp} on {gpus} GPUs"
        raise InputError(Mistake(row["id"], "", found, "a layout whose product is the number of GPUs"))
    stages = pp * int(sections.get("parallel", {}).get("vpp", 1))
    alone = max(1, _whole(row, "global_batch", 0) // dp // stages) if setup.stage_batches else 1
    training = {
        "seq_len": _whole(row, "seq_len", 0),
        "micro_batch": _whole(row, "micro_batch", alone),
        "global_batch": _whole(row, "global_batch", 0),
        **_chosen(row.get("recompute", ""), "recompute", RECOMPUTE),
        **_chosen(row.get("precision", ""), "precision", PRECISIONS),
    }
    if setup.selective and training.get("recompute") == "selective":
        training["recompute"] = setup.selective
    parallel: dict[str, Any] = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "uneven_stages": True}
    ep, vpp = _whole(row, "ep", 1), _whole(row, "vpp", 1)
    if ep > 1:
        parallel["ep"] = ep
    if vpp > 1 and pp > 1:
        parallel |= {"vpp": vpp, "schedule": "interleaved"}
    if row.get("sequence_parallel", "").strip():
        parallel["sequence_parallel"] = row["sequence_parallel"].strip().lower() == "true" and tp > 1
    parallel |= _shards(row, sections.get("parallel", {}), dp * cp)
    cluster = dict(sections.pop("cluster", {}))
    cluster |= _cluster(gpus, setup)
    made = {
        "cluster": cluster,
        "model": _positions(
            {"vocab": VOCAB, **family_of(row["model"]), **sections.pop("model", {}), **_model(row)}, training["seq_len"]
        ),
        "training": {**sections.pop("training", {}), **training},
        "parallel": {"data_parallel": "ddp" if dp * cp > 1 else "none", **sections.pop("parallel", {}), **parallel},
    }
    if cut := _counted(made["model"].get("layers", 0), pp * (vpp if vpp > 1 else 1)):
        sections["megatron"] = {**cut, **sections.get("megatron", {})}
    return made | sections


def _counted(layers: int, stages: int) -> dict[str, bool]:
    """Megatron cuts evenly: where the layers alone cannot be, the embedding and the head count as a layer each."""
    if layers % stages == 0 or (layers + 2) % stages:
        return {}
    return {"account_for_embedding": True, "account_for_loss": True}


def _cluster(gpus: int, setup: Setup) -> dict[str, Any]:
    if gpus <= setup.per_host and setup.one_host:
        return {"name": setup.one_host, **({"gpus": gpus} if gpus < setup.per_host else {})}
    if not setup.hosts:
        raise InputError(Mistake(setup.slice, "", f"{gpus} GPUs", "a cluster of several hosts in setups.toml"))
    return {"name": setup.hosts, "hosts": -(-gpus // setup.per_host), "gpus": gpus}


def _model(row: Mapping[str, str]) -> dict[str, Any]:
    shape = {name: _whole(row, name, 0) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    made = {name: value for name, value in shape.items() if value}
    made.setdefault("ffn", 4 * shape["hidden"])
    return {"kind": "transformer", **made}


def _shards(row: Mapping[str, str], parallel: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Fewer shards than data-parallel ranks, where the row says so ("FSDP 128" of 1024; "HSDP": within a host)."""
    text = row.get("zero_or_fsdp", "")
    said = re.fullmatch(r"(?:FSDP|HSDP)2?(?: shard)? (\d+)", text.strip(), re.IGNORECASE)
    shards = int(said[1]) if said else 8 if text.strip().upper() == "HSDP" else ranks
    known = parallel.get("data_parallel") == "fsdp" and 1 < shards < ranks and ranks % shards == 0
    return {"fsdp_shards": shards} if known else {}


def _positions(model: dict[str, Any], seq_len: Any) -> dict[str, Any]:
    """Learned positions whose number nobody says are as many as the sequence has."""
    return {"max_positions": seq_len, **model} if model.get("positions") == "learned" else model


def _whole(row: Mapping[str, str], name: str, default: int) -> int:
    text = (row.get(name) or "").strip()
    if not text:
        return default
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise InputError(Mistake(row["id"], name, f'"{text}"', "a whole number")) from None


def _count(row: Mapping[str, str], name: str, default: int) -> int:
    found = _whole(row, name, default)
    if found < 1:
        raise InputError(Mistake(row["id"], name, f'"{row[name]}"', "a whole number above 0"))
    return found


def _chosen(text: str, key: str, known: Sequence[tuple[str, str]]) -> dict[str, str]:
    return next(({key: value} for part, value in known if part in text.lower()), {})


def work(run: Run) -> float:
    """Roughly what simulating a row costs: microbatches over the stages of a pipeline."""
    t, p = run.scenario["training"], run.scenario["parallel"]
    microbatches = t["global_batch"] / max(1, t["micro_batch"] * p["dp"])
    return float(microbatches * p["pp"] * p.get("vpp", 1))


def predict(run: Run) -> tuple[float, str]:
    """Seconds, or why there are none: one row does not hide the others."""
    from sim.predict import step_time
    from sim.spec import parse_scenario

    try:
        return step_time(parse_scenario(run.scenario, run.id)), ""
    except PrestepError as error:
        return math.nan, str(error)
    except Exception as error:  # a crash is a failed row, and the gate fails with it
        return math.nan, f"{type(error).__name__}: {error}"
