"""Predictions written down before the measurement: `python -m lab.preregister predict FOLDER` and `compare`.

A folder has a `plan.json`: what the harness will be given, and the bundled `cluster` it will run on, where that is not
one of the measured H200 hosts. `predict` writes `predicted.json` beside it, with the
commit whose code and constants it comes from, and refuses to write it anew; `compare` reads rows that were measured
later and puts them beside what was written, and predicts nothing.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lab.formats import leafspine
from lab.sets.steps import predict_row
from prestep.sim.errors import InputError, Mistake
from prestep.sim.files import write_text
from prestep.validation.formats.rows import read_rows
from prestep.validation.sets.predict_collective import predict_row as predict_collective

# Another start of the machine may have another host: on H200s a host_factor of 1.0 was seen on one start, the bundled
# 1.35 on another. A plan for another machine says its own.
OTHER_HOST = 1.0
WORLDS = {
    "training_4gpu": 4,
    "training_3gpu": 3,
    "training_2gpu": 2,
    "training_1gpu": 1,
}
USAGE = "python -m lab.preregister predict FOLDER | compare FOLDER ROWS.jsonl ..."

R = TypeVar("R")


def steps_planned(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of training steps as the harness will write them; their only step stands for one that is not there yet."""
    for part, world in WORLDS.items():
        for case in plan.get(part, ()):
            yield {
                "id": case["id"],
                "label": "default",
                "world": world,
                "case": case,
                "cluster": plan.get("cluster"),
                "step_s_by_rank": {"0": [1.0]},
            }
    spine = plan.get("leafspine", {})
    for label in spine.get("labels", ()):
        for case in spine["training"]:
            yield {
                "id": case["id"],
                "label": label,
                "world": 4,
                "case": case,
                "cluster": leafspine.cluster_of(label),
                "step_s_by_rank": {"0": [1.0]},
            }


def collectives_planned(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of collectives as the harness will write them, each series after the line with its variables."""
    series = list(plan.get("collectives", ()))
    spine = plan.get("leafspine", {}).get("collectives", {})
    series += [
        dict(spine, label=label, ranks=4, env={}) for label in spine.get("labels", ())
    ]
    for one in series:
        yield {
            "kind": "env",
            "label": one["label"],
            "nccl": "2.28.9",
            "env": {"NCCL_NVLS_ENABLE": "0"} | one["env"],
        }
        for op in one["ops"]:
            for size in one["sizes"]:
                common = {
                    "kind": "collective",
                    "label": one["label"],
                    "ranks": one["ranks"],
                }
                if "cluster" in plan:
                    common["cluster"] = plan["cluster"]
                yield common | {"op": op, "bytes": size, "s": 1.0, "graph_s": 1.0}


def predict(folder: Path) -> dict[str, Any]:
    """Every prediction of a plan: seconds by name of row, or a text that says why there is none."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    rows = _as_rows(steps_planned(plan), read_rows)
    sized = _as_rows(
        collectives_planned(plan), lambda path: leafspine.read_lines(path)[0]
    )
    other = [row for row in rows if row.label == "default"]
    elsewhere = {"host_factor": plan.get("other_host_factor", OTHER_HOST)}
    return {
        "commit": _commit(),
        "steps": {_named(row): _said(predict_row(row)) for row in rows},
        "steps_other_host": {
            _named(row): _said(predict_row(_on(row, elsewhere))) for row in other
        },
        "collectives": {row.name: _said(predict_collective(row)) for row in sized},
    }


def compare(
    folder: Path, files: Sequence[Path]
) -> dict[str, list[tuple[str, float, float]]]:
    """(name, measured, predicted) of every measured row that was predicted, by part of predicted.json."""
    written = json.loads((folder / "predicted.json").read_text(encoding="utf-8"))
    found: dict[str, list[tuple[str, float, float]]] = {
        "steps": [],
        "steps_other_host": [],
        "collectives": [],
    }
    for path in files:
        if _is_steps(path):
            measured = [
                (_named(row), row.measured) for row in read_rows(path) if not row.error
            ]
            parts = ["steps", "steps_other_host"]
        else:
            measured = [
                (row.name, row.time)
                for row in leafspine.read_lines(path)[0]
                if not row.skip
            ]
            parts = ["collectives"]
        for part in parts:
            predicted = written[part]
            found[part] += [
                (n, t, predicted[n])
                for n, t in measured
                if isinstance(predicted.get(n), float)
            ]
    return found


def table(rows: Sequence[tuple[str, float, float]]) -> str:
    """Every row, and the figures over all of them."""
    errors = {name: predicted / measured - 1 for name, measured, predicted in rows}
    lines = ["| row | measured | predicted | error |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {n} | {m * 1e3:.4g} ms | {p * 1e3:.4g} ms | {errors[n]:+.1%} |"
        for n, m, p in rows
    ]
    return "\n".join([*lines, "", summary(list(errors.values()))])


def summary(errors: Sequence[float]) -> str:
    """Number, mean, median, 90th percentile and worst of absolute errors, and their bias."""
    if not errors:
        return "no rows"
    sizes = sorted(map(abs, errors))
    tenth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return (
        f"{len(sizes)} rows: mean {statistics.mean(sizes):.1%}, median {statistics.median(sizes):.1%}, "
        f"90th percentile {tenth:.1%}, worst {sizes[-1]:.1%}, bias {statistics.mean(errors):+.1%}"
    )


def _as_rows(
    records: Iterator[dict[str, Any]], read: Callable[[Path], list[R]]
) -> list[R]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.jsonl"
        path.write_text(
            "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
        )
        return read(path)


def _named(row: Any) -> str:
    return str(row.name)


def _on(row: Any, cluster: Mapping[str, Any]) -> Any:
    return replace(row, cluster={**row.cluster, **cluster})


def _said(prediction: Any) -> float | str:
    return (
        str(prediction.error) if prediction.error else float(f"{_time(prediction):.6g}")
    )


def _time(prediction: Any) -> float:
    return float(
        prediction.step_time if hasattr(prediction, "step_time") else prediction.time
    )


def _is_steps(path: Path) -> bool:
    first = next(
        (
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ),
        "{}",
    )
    return "step_s_by_rank" in json.loads(first)


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    if len(arguments) == 2 and arguments[0] == "predict":
        path = Path(arguments[1]) / "predicted.json"
        if path.exists():
            raise InputError(
                Mistake(
                    str(path),
                    "",
                    "predictions",
                    "no file yet",
                    "what was written stays",
                )
            )
        write_text(path, json.dumps(predict(path.parent), indent=1) + "\n")
        return 0
    if len(arguments) > 2 and arguments[0] == "compare":
        for part, rows in compare(
            Path(arguments[1]), [Path(file) for file in arguments[2:]]
        ).items():
            print(f"## {part}\n\n{table(rows)}\n")
        return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        sys.exit(str(error))
