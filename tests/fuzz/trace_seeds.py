"""Good traces of every format, small ones, and the commands that read each."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.workloads.traces import synthetic
from tests.workloads.traces.test_chakra import flat, jsonized, nodes_of, written
from tests.workloads.traces.test_formats import linked, nsight
from tests.workloads.traces.test_linked import execution, kineto

REPLAY = ("replay", "FILE", "--json")


def _json(content: Any) -> str:
    return json.dumps(content, indent=0)


@cache
def _chakra() -> tuple[bytes, list[dict[str, Any]]]:
    """A rank's trace as Chakra's protobuf, and its nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synthetic.save(folder, world=1, steps=1)
        (path,) = written(folder, folder / "et" / "run.et")
        return path.read_bytes(), nodes_of(path)


@cache
def _nsight() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.sqlite"
        nsight(path, extra=True)
        return path.read_bytes()


def _kineto(world: int) -> str:
    events = synthetic.step(0, 0, 0.0, world)[0]
    return _json(
        {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "traceEvents": events,
            "distributedInfo": {"rank": 0, "world_size": world},
        }
    )


def texts() -> list[tuple[str, str, str, tuple[str, ...], dict[str, str]]]:
    """Name, suffix, text, words, and texts of files beside it."""
    two, beside = (*REPLAY, "--set", "parallel.dp=8"), _json(kineto(0))
    _, nodes = _chakra()
    return [
        ("trace", ".json", _kineto(2), REPLAY, {}),
        ("trace_dp", ".json", _kineto(2), two, {}),
        ("trace_list", ".json", _json(synthetic.step(0, 0, 0.0, 2)[0]), REPLAY, {}),
        ("chakra_json", ".json", jsonized(nodes), REPLAY, {}),
        ("chakra_flat", ".json", flat(nodes), REPLAY, {}),
        ("pytorch_et", ".json", _json(linked(True)), REPLAY, {}),
        (
            "execution",
            "_rank0.json",
            _json(execution(True)),
            ("replay", "FILE", "BESIDE/kineto_rank0.json", "--json"),
            {"kineto_rank0.json": beside},
        ),
        (
            "execution_old",
            "_rank0.json",
            _json(execution(False)),
            ("convert", "FILE", "BESIDE/kineto_rank0.json", "-o", "OUT"),
            {"kineto_rank0.json": beside},
        ),
        (
            "chakra_groups",
            ".comm_group.json",
            _json({"1": [0, 1], "2": [2, 3]}),
            ("replay", "BESIDE/x.json", "--json"),
            {"x.json": flat(nodes)},
        ),
    ]


def binaries() -> list[tuple[str, str, bytes]]:
    """Name, suffix and bytes of each; replayed."""
    return [("chakra", ".et", _chakra()[0]), ("nsight", ".sqlite", _nsight())]
