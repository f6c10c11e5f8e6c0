"""What was recorded, damaged by what it means: captures, tables in Parquet, and traces of a job's ranks."""

from __future__ import annotations

import copy
import gzip
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prestep.workloads.capture import recording
from tests.fuzz.damage import PACKED, Chance, changed, flipped
from tests.fuzz.running import GOOD, command
from tests.fuzz.seeds import seeds
from tests.fuzz.values import STRANGE
from tests.workloads.test_capture_recording import COMPUTE, all_reduce, tables
from tests.workloads.traces import synthetic

Event = dict[str, Any]


def capture(chance: Chance, folder: Path) -> str:
    """A recording with changed values or bytes: run, shown, set beside a trace."""
    tree = copy.deepcopy(_recording())
    for _ in range(chance.choice((1, 1, 2))):
        tree = changed(tree, chance) if isinstance(tree, dict | list) else tree
    try:
        data = json.dumps(tree).encode("utf-8", "replace")
    except (ValueError, TypeError):
        return ""  # a value that JSON has no text for
    packed = gzip.compress(data)
    (folder / "x.capture").write_bytes(
        flipped(packed, chance) if chance.random() < 0.1 else packed
    )
    words = chance.choice(
        (
            "run FILE --json",
            "capture show FILE --json",
            "run FILE --cluster dgx-h200 --json",
            "replay BESIDE/trace.json --compare FILE --json",
        )
    )
    return command(words.split(), folder, "x.capture", codes=GOOD)


@cache
def _recording() -> Any:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "job.capture"
        recording.write(path, tables([*COMPUTE, all_reduce(1)], 2))
        return json.loads(gzip.decompress(path.read_bytes()))


def results(chance: Chance, folder: Path) -> str:
    """A sweep's results with other columns, values or types: drawn."""
    rows = [
        {
            "set.training.micro_batch": str(n),
            "step_time": 0.1 * n,
            "mfu": 0.4,
            "tokens_per_second_per_gpu": 1e4 * n,
            "error": "",
        }
        for n in (1, 2, 4)
    ]
    return _table(chance, rows, folder, "plot FILE --x training.micro_batch -o OUT.svg")


def kernels(chance: Chance, folder: Path) -> str:
    """A table of measured kernels beside a cluster, with other columns, values or types."""
    row = {
        "kind": "gemm",
        "layout": "nn",
        "dtype": "bf16",
        "shape": "256x256x256",
        "bytes": 393216.0,
        "seconds": 5e-6,
        "noise": 0.02,
        "count": 10,
        "source": "measured",
    }
    rows = [dict(row, shape=f"{n}x256x256", seconds=n * 2e-8) for n in (256, 512)]
    (folder / "mine.toml").write_text(
        'extends = "h200-host-4"\n[gpu]\nextends = "h200"\ntable = "x.parquet"\n'
    )
    (folder / "step.toml").write_text(seeds()["scenario"].text)
    words = "run BESIDE/step.toml --cluster BESIDE/mine.toml --json"
    return _table(chance, rows, folder, words)


def _table(chance: Chance, rows: list[dict[str, Any]], folder: Path, words: str) -> str:
    names = list(rows[0])
    columns = {name: [row[name] for row in rows] for name in names}
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice(names)
        kind = chance.randrange(5)
        if kind == 0:
            columns.pop(name, None)
        elif kind == 1 and name in columns:
            columns[name] = [chance.choice(STRANGE)] * len(rows)
        elif kind == 2 and name in columns:
            column = columns[name]
            if column:
                column[chance.randrange(len(column))] = chance.choice(STRANGE)
        elif kind == 3:
            columns = {key: value * 0 for key, value in columns.items()}
        elif name in columns:
            columns[f"{name}."] = columns.pop(name)
    path = folder / "x.parquet"
    try:
        pq.write_table(pa.table(columns), path)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return ""  # no such column can be
    if chance.random() < 0.1:
        path.write_bytes(flipped(path.read_bytes(), chance))
    return command(words.split(), folder, path.name, codes=GOOD)


def ranks(chance: Chance, folder: Path) -> str:
    """Traces of a job that miss ranks, have one twice, come from different runs, or whose events were moved."""
    for old in folder.glob("rank*"):
        old.unlink()
    world = chance.choice((1, 2, 4))
    names = [_save(chance, folder, number, world) for number in range(world)]
    if chance.random() < 0.2:
        names.append(chance.choice(names))
    if chance.random() < 0.2 and len(names) > 1:
        names.remove(chance.choice(names))
    words = ["replay", *names, "--json"]
    if chance.random() < 0.5:
        words += chance.choice(ASKED)
    return command(words, folder)


#: What a replay is asked beside.
ASKED = (
    *(["--comm", "simulated", "--cluster", name] for name in ("dgx-h100", "rail-h200")),
    *(["--set", change] for change in ("parallel.dp=2", "parallel.dp=8")),
    *(["--set", change] for change in ("gpu.flops=2x", "kernels.gemm=0.5x")),
    *(["--ranks", number] for number in ("1", "3", "8", "64")),
    ["--cluster", "dgx-a100", "--set", "nvlink.bandwidth=0.5x"],
)


def _save(chance: Chance, folder: Path, rank: int, world: int) -> str:
    """One rank's trace; now and then of another world, with other steps, late, or with damaged events."""
    unlike = chance.random() < 0.25
    trace = synthetic.trace(
        rank if chance.random() < 0.9 else chance.randrange(8),
        chance.choice((1, 2, 8)) if unlike else world,
        steps=chance.choice((1, 2, 3)) if unlike else 2,
        late=chance.choice((0.0, 350.0, 1e7)),
        clock=chance.choice((0.0, 0.0, -2000.0, 1e12)),
    )
    if chance.random() < 0.6:
        for _ in range(chance.choice((1, 2, 5))):
            chance.choice(DAMAGE)(trace["traceEvents"], chance)
    path = folder / f"rank{rank}.pt.trace.json"
    path.write_text(json.dumps(trace))
    return str(path)


def _shifted(events: list[Event], chance: Chance) -> None:
    by = chance.choice((-5e3, -10.0, 10.0, 5e3, 1e9))
    for event in _some(events, chance):
        event["ts"] += by


def _scaled(events: list[Event], chance: Chance) -> None:
    factor = chance.choice((0.0, 1e-3, 3.0, 1e3))
    for event in _some(events, chance):
        event["dur"] = event.get("dur", 0.0) * factor


def _twice(events: list[Event], chance: Chance) -> None:
    events.extend(copy.deepcopy(_some(events, chance)))


def _lost(events: list[Event], chance: Chance) -> None:
    gone = set(map(id, _some(events, chance)))
    events[:] = [event for event in events if id(event) not in gone]


def _shuffled(events: list[Event], chance: Chance) -> None:
    chance.shuffle(events)


def _one_number(events: list[Event], chance: Chance) -> None:
    """Launches and kernels that all say they belong together."""
    key = chance.choice(("correlation", "External id", "stream", "device"))
    for event in _some(events, chance):
        event.setdefault("args", {})[key] = 7


def _other_lane(events: list[Event], chance: Chance) -> None:
    for event in _some(events, chance):
        event[chance.choice(("pid", "tid"))] = chance.choice((0, 1, 99, "x"))


def _other_name(events: list[Event], chance: Chance) -> None:
    name = chance.choice(events).get("name", "x")
    for event in _some(events, chance):
        event["name"] = name


def _some(events: list[Event], chance: Chance) -> list[Event]:
    """All of a category, one event, or those of a share of the time."""
    if not events:
        return []
    if chance.random() < 0.4:
        kind = chance.choice(events).get("cat")
        return [event for event in events if event.get("cat") == kind]
    if chance.random() < 0.5:
        return [chance.choice(events)]
    first = chance.randrange(len(events))
    return events[first : first + chance.randrange(1, 30)]


DAMAGE: tuple[Callable[[list[Event], Chance], None], ...] = (
    *(_shifted, _scaled, _twice, _lost, _shuffled),
    *(_one_number, _other_lane, _other_name),
)


#: Endings of files, and what reads them.
ENDINGS = (
    *(".pt.trace.json.gz", ".json.gz", ".json", ".toml", ".gz", ".parquet", ".zip"),
)
READERS = (
    *("replay FILE --json", "convert FILE -o OUT.et", "run FILE --json"),
    *("calibrate FILE -o OUT --cluster rail-h100", "doctor nccl FILE --json"),
    *("plot FILE --x training.micro_batch -o OUT.svg", "explain FILE", "submit FILE"),
)


def packed(chance: Chance, folder: Path) -> str:
    """A trace or a scenario that is packed twice, cut short, of several parts, or not what its name says."""
    trace = json.dumps(synthetic.trace(0, 1, 1)).encode()
    data = trace if chance.random() < 0.7 else seeds()["scenario"].data
    for _ in range(chance.choice((1, 1, 2))):
        data = chance.choice(PACKED)(data, chance)
    name = f"packed{chance.choice(ENDINGS)}"
    (folder / name).write_bytes(data)
    return command(chance.choice(READERS).split(), folder, name)
