"""A PyTorch execution trace beside the Kineto trace of the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.replay.replay import replay_files
from prestep.workloads import traces
from tests.workloads.traces.synthetic import call, kernel

OPS = [
    ("aten::mm", [1], [2]),
    ("aten::relu", [2], [3]),
    ("aten::mm", [3], [4]),
    ("aten::add_", [4, 2], [4]),
]
STREAMS = (7, 7, 20, 7)


def kineto(shift: int) -> dict[str, Any]:
    """Operators without shapes, ids `shift` above the execution trace's; the third runs on a stream of its own."""
    events = [call("ProfilerStep#1", 0.0, 2000.0, category="user_annotation")]
    for i, (name, _, _) in enumerate(OPS):
        ids = {"External id": 10 + i + shift}
        events.append(call(name, 100.0 + 50 * i, 40.0, category="cpu_op", **ids))
        events.append(call("cudaLaunchKernel", 110.0 + 50 * i, 5.0, 900 + i, **ids))
        events.append(
            kernel(f"{name} kernel", 400.0 + 300 * i, 300.0, 900 + i, STREAMS[i], **ids)
        )
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"name": "NVIDIA H200"}],
        "traceEvents": events,
    }


def execution(new: bool) -> dict[str, Any]:
    """The same operators as ExecutionTraceObserver writes them, in a new or an old schema."""
    nodes: list[dict[str, Any]] = [
        {"id": 1, "name": "[pytorch|profiler|execution_trace|process]"}
    ]
    for i, (name, reads, writes) in enumerate(OPS):
        inputs, outputs = (
            [[s, s + 100, 0, 64, 2, "cuda:0"] for s in listed]
            for listed in (reads, writes)
        )
        shapes, types = (
            [[8 + i, 8]] * len(reads),
            ["Tensor(c10::BFloat16)"] * len(reads),
        )
        node: dict[str, Any] = {"id": 20 + i, "name": name}
        if new:
            node["inputs"] = {"values": inputs, "shapes": shapes, "types": types}
            node["outputs"] = {"values": outputs, "shapes": [], "types": []}
            node["attrs"] = [{"name": "rf_id", "type": "uint64", "value": 10 + i}]
        else:
            node |= {
                "rf_id": 10 + i,
                "inputs": inputs,
                "input_shapes": shapes,
                "input_types": types,
                "outputs": outputs,
            }
        nodes.append(node)
    return {
        "schema": "1.1.1-chakra.0.0.4" if new else "1.0.1",
        "pid": 1,
        "nodes": nodes,
    }


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("shift", [0, 1, 500])
def test_shapes_and_data_come_from_the_execution_trace(
    tmp_path: Path, new: bool, shift: int
) -> None:
    """Operators are found by their ids less a constant: kernels get shapes, and streams wait for each other's data."""
    (tmp_path / "kineto.json").write_text(json.dumps(kineto(shift)))
    (tmp_path / "et.json").write_text(json.dumps(execution(new)))
    (recording,) = traces.read([tmp_path])
    rows = [row for row in recording.spans.to_pylist() if row["kind"] == "kernel"]
    assert [json.loads(row["shape"])[0] for row in rows] == [
        [8, 8],
        [9, 8],
        [10, 8],
        [11, 8],
    ]
    assert {row["dtype"][:19] for row in rows} == {
        '["c10::BFloat16"]',
        '["c10::BFloat16", "',
    }
    outcome = replay_files([tmp_path])
    assert outcome.worst < 1e-9
    assert outcome.notes["data of an execution trace that goes between streams"] == 2


def test_an_execution_trace_of_another_run_is_refused(tmp_path: Path) -> None:
    """When its operators are not those of the Kineto trace, that is an error."""
    other = execution(True)
    for node in other["nodes"]:
        node["name"] = node["name"].replace("mm", "bmm").replace("relu", "gelu")
    (tmp_path / "kineto.json").write_text(json.dumps(kineto(0)))
    (tmp_path / "et.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match="the execution trace of the same steps"):
        traces.read([tmp_path])


def test_execution_traces_find_their_ranks_by_name(tmp_path: Path) -> None:
    """Of several ranks the numbers in the names decide; one without a partner is an error."""
    for rank in range(2):
        (tmp_path / f"worker{rank}.json").write_text(json.dumps(kineto(rank)))
        (tmp_path / f"eg_{rank}.json").write_text(json.dumps(execution(True)))
    assert [
        r.repaired["operators linked with an execution trace"]
        for r in traces.read([tmp_path])
    ] == [4, 4]
    (tmp_path / "eg_5.json").write_text(json.dumps(execution(True)))
    with pytest.raises(InputError, match="of no known rank"):
        traces.read([tmp_path])
