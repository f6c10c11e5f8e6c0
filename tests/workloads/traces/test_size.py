"""Traces that are large, or of many ranks, are read and replayed in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prestep.sim.engine.streams import Stream
from prestep.sim.replay.replay import replay_files
from tests.workloads.traces import synthetic

READ = """
import resource, sys
from prestep.workloads import traces
traces.read_file(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
recording = traces.read_file(sys.argv[2])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(recording.spans.num_rows, (after - before) * 1024)
"""


def test_a_trace_larger_than_the_memory_it_may_have_is_streamed(tmp_path: Path) -> None:
    """A file is read in less memory than it has bytes, whether or not events stand as Kineto writes them."""
    trace = synthetic.trace(0)
    events = trace.pop("traceEvents")
    (tmp_path / "small.json").write_text(json.dumps(trace | {"traceEvents": events}))
    padding = json.dumps(
        {
            "ph": "X",
            "cat": "python_function",
            "name": "f",
            "ts": 1,
            "dur": 1,
            "args": {"s": "{x}" * 300},
        }
    )
    with (tmp_path / "large.json").open("w") as file:
        file.write(json.dumps(trace)[:-1] + ', "traceEvents": [')
        file.write(
            ",\n  ".join([*map(json.dumps, events), *[padding] * 120_000]) + "]}"
        )
    size = (tmp_path / "large.json").stat().st_size
    command = [
        sys.executable,
        "-c",
        READ,
        str(tmp_path / "small.json"),
        str(tmp_path / "large.json"),
    ]
    rows, grown = map(
        int,
        subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.split(),
    )
    assert rows == len([e for e in events if e["name"] != "aten::mm"])
    assert size > 100e6
    assert grown < 0.75 * size


def test_memory_of_a_replay_grows_with_its_operations_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream knows the times of its own kernels, not those of all ranks."""
    held = []
    durations = Stream._durations

    def counted(self: Stream) -> list[float]:
        times = durations(self)
        held.append(len(times))
        return times

    monkeypatch.setattr(Stream, "_durations", counted)
    synthetic.save(tmp_path, world=24)
    outcome = replay_files([tmp_path])
    assert sum(held) <= outcome.replay.graph.operations
    assert outcome.worst < 1e-6
