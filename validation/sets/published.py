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

from sim import progress
from sim.errors import InputError, Mistake, PrestepError
from sim.predict import step_time
from sim.spec.load import parse_scenario
from sim.tools.orphans import end_with_parent
from validation.formats.published_columns import (
    PRECISIONS,
    RECOMPUTE,
    chosen,
    count,
    whole,
)
from validation.formats.published_families import family_of
from validation.formats.published_fill import VOCAB, complete
from validation.formats.published_flops import METRICS, step_time_of
from validation.formats.published_setups import FOLDER, Setup, setup_of
from validation.report.published import Case, PublishedReport

NEEDED = ("gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "tp", "pp")
COLUMNS = (
    "id",
    "source",
    "hardware",
    "model",
    "metric_name",
    "metric_value",
    "unit",
    *NEEDED,
    "micro_batch",
    "dp",
)
WHOLE = (
    "micro_batch",
    "dp",
)  # without these a row is incomplete; what is assumed is said


@dataclass(frozen=True)
class Run:
    """A row as a scenario with what was measured, s.

    `assumed`: what an incomplete configuration was completed with. `notes`: what else the row leaves to a default.
    """

    id: str
    slice: str
    group: str
    scenario: Mapping[str, Any]
    measured: float
    assumed: str
    notes: str = ""


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> PublishedReport:
    """Predicts every row that can be said as a scenario; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    runs, skips = sort(read(Path(rows) if rows else FOLDER / "rows.csv"))
    cases: list[Case] = []
    for run, (time, error) in zip(runs, _predict_all(runs, jobs), strict=True):
        if isinstance(error, Refusal):
            skips.append((run.id, error))
        else:
            cases.append(_case(run, time, error))
    title = "Published training steps"
    return PublishedReport(name, title, tuple(cases), tuple(skips), rows is None)


def _case(run: Run, time: float, error: str) -> Case:
    about = run.id, run.slice, run.group, run.measured
    return Case(*about, time, error, run.assumed, run.notes)


def _predict_all(runs: Sequence[Run], jobs: int) -> list[tuple[float, str]]:
    if jobs == 1 or len(runs) < 2:
        return list(map(predict, progress.track(runs, "rows")))
    # Spawned, not forked: Arrow and BLAS have threads of their own.
    spawn = multiprocessing.get_context("spawn")
    # The longest first and one at a time, so that no worker is left alone with a long one at the end.
    order = sorted(range(len(runs)), key=lambda at: -work(runs[at]))
    with ProcessPoolExecutor(jobs, spawn, end_with_parent) as pool:
        times = pool.map(predict, [runs[at] for at in order])
        tracked = progress.track(times, "rows", len(runs))
        by_place = dict(zip(order, tracked, strict=True))
    return [by_place[at] for at in range(len(runs))]


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file.

    Raises
    ------
    InputError
        If it cannot be read, or lacks columns.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [
                {str(k): v or "" for k, v in row.items()}
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            Mistake(str(path), "", str(error), "a CSV file of training steps")
        ) from None
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
    setup = setup_of(row)
    cells, filled = complete(row, setup)
    missing = [name for name in NEEDED if not cells[name].strip()]
    if missing:
        raise InputError(
            Mistake(
                row["id"], "", f"no {', '.join(missing)}", "a complete configuration"
            )
        )
    if cells["metric_name"] not in METRICS:
        raise InputError(
            Mistake(
                row["id"],
                "metric_name",
                f'"{cells["metric_name"]}"',
                f"one of {', '.join(METRICS)}",
            )
        )
    scenario = scenario_of(cells, setup)

    parse_scenario(scenario, row["id"])
    group = "|".join(
        row.get(name, "")
        for name in ("source", "hardware", "layers", "hidden", "gpus", "global_batch")
    )
    measured = step_time_of(cells, scenario, setup.counts_recompute)
    assumed, notes = _assumptions(row, cells, setup, filled)
    return Run(
        row["id"],
        setup.slice or row["source"],
        group,
        scenario,
        measured,
        assumed,
        notes,
    )


def _assumptions(
    row: Mapping[str, str],
    cells: Mapping[str, str],
    setup: Setup,
    filled: Sequence[str],
) -> tuple[str, str]:
    """What a row without its whole configuration was completed with, and what else was taken by default."""
    whole_ = (*NEEDED, *WHOLE)
    assumed = [f"{name} assumed" for name in WHOLE if not cells[name].strip()]
    assumed += [text for text in filled if text.split()[0] in whole_] + list(
        setup.guesses
    )
    assumed += [text for text in (family_of(cells)[1],) if text]
    notes = [text for text in filled if text.split()[0] not in whole_]
    notes += [
        f"{name} by default"
        for name in ("ffn", "vocab")
        if not cells.get(name, "").strip()
    ]
    gpus, nodes = count(cells, "gpus", 1), whole(cells, "nodes", 0)
    if nodes > 1 and gpus % nodes == 0 and gpus // nodes != setup.per_host:
        notes.append(
            f"{nodes} hosts of {gpus // nodes} GPUs taken as hosts of {setup.per_host}"
        )
    return ", ".join(assumed), ", ".join(notes)


def scenario_of(row: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    """The scenario's tables."""
    sections = {name: dict(keys) for name, keys in (setup.sections or {}).items()}
    said = {
        name: sections.pop(name, {})
        for name in ("cluster", "model", "training", "parallel")
    }
    gpus, tp, pp, cp = (count(row, name, 1) for name in ("gpus", "tp", "pp", "cp"))
    dp = count(row, "dp", max(1, gpus // (tp * pp * cp)))
    if row.get("dp", "").strip() and dp * tp * pp * cp != gpus:
        found = f"dp {dp} x tp {tp} x pp {pp} x cp {cp} on {gpus} GPUs"
        expected = "a layout whose product is the number of GPUs"
        raise InputError(Mistake(row["id"], "", found, expected))
    stages = pp * int(said["parallel"].get("vpp", 1))
    training = _training(row, setup, dp * stages)
    grid = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "uneven_stages": True}
    model = {"vocab": VOCAB, **family_of(row)[0], **said["model"], **_model(row)}
    made = {
        "cluster": said["cluster"] | _cluster(gpus, setup),
        "model": _positions(model, training["seq_len"]),
        "training": said["training"] | training,
        "parallel": {
            "data_parallel": "ddp" if dp * cp > 1 else "none",
            **said["parallel"],
            **grid,
            **_split(row, tp, pp),
            **_shards(row, said["parallel"], dp * cp),
        },
    }
    vpp = max(1, whole(row, "vpp", 1))
    if cut := _counted(made["model"].get("layers", 0), pp * vpp):
        sections["megatron"] = {**cut, **sections.get("megatron", {})}
    return made | sections


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


def _counted(layers: int, stages: int) -> dict[str, bool]:
    """Megatron cuts evenly: where the layers alone cannot be, the embedding and the head count as a layer each."""
    if layers % stages == 0 or (layers + 2) % stages:
        return {}
    return {"account_for_embedding": True, "account_for_loss": True}


def _cluster(gpus: int, setup: Setup) -> dict[str, Any]:
    if gpus <= setup.per_host and setup.one_host:
        return {
            "name": setup.one_host,
            **({"gpus": gpus} if gpus < setup.per_host else {}),
        }
    if not setup.hosts:
        raise InputError(
            Mistake(
                setup.slice,
                "",
                f"{gpus} GPUs",
                "a cluster of several hosts in setups.toml",
            )
        )
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
    row: Mapping[str, str], parallel: Mapping[str, Any], ranks: int
) -> dict[str, int]:
    """Fewer shards than data-parallel ranks, where the row says so ("FSDP 128" of 1024; "HSDP": within a host)."""
    text = row.get("zero_or_fsdp", "")
    said = re.fullmatch(
        r"(?:FSDP|HSDP)2?(?: shard)? (\d+)", text.strip(), re.IGNORECASE
    )
    shards = int(said[1]) if said else 8 if text.strip().upper() == "HSDP" else ranks
    known = (
        parallel.get("data_parallel") == "fsdp"
        and 1 < shards < ranks
        and ranks % shards == 0
    )
    return {"fsdp_shards": shards} if known else {}


def _positions(model: dict[str, Any], seq_len: Any) -> dict[str, Any]:
    """Learned positions are as many as the sequence has, where nobody says more."""
    if model.get("positions") != "learned":
        return model
    return model | {"max_positions": max(seq_len, model.get("max_positions", 0))}


class Refusal(str):
    """Why a run that reads well cannot be simulated: a skipped row, not a failed one."""

    __slots__ = ()


def work(run: Run) -> float:
    """Roughly what simulating a row costs: microbatches over the stages of a pipeline."""
    t, p = run.scenario["training"], run.scenario["parallel"]
    microbatches = t["global_batch"] / max(1, t["micro_batch"] * p["dp"])
    return float(microbatches * p["pp"] * p.get("vpp", 1))


def predict(run: Run) -> tuple[float, str]:
    """Seconds, or why there are none: one row does not hide the others."""
    try:
        return step_time(parse_scenario(run.scenario, run.id)), ""
    except InputError as error:
        return math.nan, Refusal("; ".join(str(mistake) for mistake in error.mistakes))
    except PrestepError as error:
        return math.nan, str(error)
    except Exception as error:  # a crash is a failed row, and the gate fails with it
        return math.nan, f"{type(error).__name__}: {error}"
