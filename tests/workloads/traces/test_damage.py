"""A trace may be damaged in any way: it is replayed, or refused with a reason, and never ends in a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import PrestepError
from prestep.sim.replay import report
from prestep.sim.replay.replay import replay_files
from tests.workloads.traces import synthetic

VALUES: dict[str, list[Any]] = {
    "args": [None, [], {}, "x", 5],
    "dur": [-5, None, "nan", 1e12, 0, "x"],
    "ts": [None, "x", -1e9, 0, 1e15],
    "cat": [None, 5, "Kernel", "weird"],
    "tid": [None, "stream 7", -1, 2**70, {}],
    "name": [
        None,
        5,
        "ProfilerStep#9",
        "ncclDevKernel_SendRecv",
        "cudaStreamSynchronize",
        "cudaStreamWaitEvent",
    ],
}


def damage(trace: dict[str, Any], chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 12)):
        event = chance.choice(trace["traceEvents"])
        key = chance.choice([*VALUES, "gone", "argument"])
        if key == "gone":
            trace["traceEvents"].remove(event)
        elif key != "argument":
            event[key] = chance.choice(VALUES[key])
        elif isinstance(event.get("args"), dict) and event["args"]:
            event["args"][chance.choice(list(event["args"]))] = chance.choice(
                [None, "x", -1, [], {}, "[1, ...]", 1e30, 3.5]
            )
    if chance.random() < 0.2:
        trace[
            chance.choice(
                ["deviceProperties", "distributedInfo", "baseTimeNanoseconds"]
            )
        ] = chance.choice([None, [], 5, "x", {"rank": "a"}])


@pytest.mark.parametrize("seed", range(25))
def test_damage_never_ends_in_a_traceback(tmp_path: Path, seed: int) -> None:
    """Whatever a field holds."""
    chance = random.Random(seed)
    for rank in range(2):
        trace = synthetic.trace(rank, world=2)
        damage(trace, chance)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    changes = chance.choice(
        [(), ("faults.slow_rank=1", "faults.slow_factor=2"), ("parallel.dp=8",)]
    )
    try:
        outcome = replay_files([tmp_path], changes=changes)
    except PrestepError as error:
        assert str(error)
    else:
        json.dumps(report.as_json(outcome))
        assert report.as_text(outcome)
