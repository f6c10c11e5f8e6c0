"""Chakra traces: what ASTRA-sim's feeder wants of them, and their JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.errors import InputError
from prestep.sim.replay.replay import replay_files
from prestep.workloads import traces
from prestep.workloads.traces import protobuf
from prestep.workloads.traces.readers import chakra
from tests.workloads.traces import synthetic

NAMES = {
    chakra.COMP: "COMP_NODE",
    chakra.SEND: "COMM_SEND_NODE",
    chakra.RECV: "COMM_RECV_NODE",
    chakra.COLL: "COMM_COLL_NODE",
}


def nodes_of(path: Path) -> list[dict[str, Any]]:
    """Nodes of a file as {id, name, type, deps, start, duration, attributes by name, their fields}."""
    messages = list(chakra._messages(path.read_bytes()))
    assert [number for number, _ in protobuf.fields(messages[0])] == [
        1
    ]  # GlobalMetadata with a version
    made = []
    for message in messages[1:]:
        fields = list(protobuf.fields(message))
        one = {number: value for number, value in fields if number not in (5, 10)}
        attributes = dict(
            chakra._attribute(value) for number, value in fields if number == 10
        )
        kinds = {
            chakra._attribute(v)[0]: max(f for f, _ in protobuf.fields(v))
            for n, v in fields
            if n == 10
        }
        made.append(
            {
                "id": one[1],
                "name": one[2].decode(),
                "type": one[3],
                "deps": [v for n, v in fields if n == 5],
                "start": one[6],
                "duration": one[7],
                "attr": attributes,
                "kinds": kinds,
            }
        )
    return made


def written(folder: Path, output: Path) -> list[Path]:
    result = CliRunner().invoke(
        main, ["convert", str(folder), "-o", str(output), "--to", "chakra"]
    )
    assert result.exit_code == 0, result.output
    return sorted(output.parent.glob("*.et"))


def in_pairs(folder: Path) -> None:
    """Four ranks that reduce in pairs; every rank calls its group "1"."""
    for rank in range(4):
        made = synthetic.trace(rank)
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        made["distributedInfo"]["pg_config"] = [{"pg_name": "1", "ranks": pair}]
        for event in made["traceEvents"]:
            if "Collective name" in event["args"]:
                event["args"] |= {
                    "Process Group Name": "1",
                    "Process Group Ranks": str(pair),
                    "Group size": 2,
                }
        (folder / f"rank{rank}.json").write_text(json.dumps(made))


def test_every_node_has_what_the_feeder_reads(tmp_path: Path) -> None:
    """Ids are unique, dependencies go to earlier nodes, and every type of node has its attributes under their types."""
    folder = tmp_path / "run"
    folder.mkdir()
    synthetic.save(folder)
    for path in written(folder, tmp_path / "et" / "run.et"):
        nodes = nodes_of(path)
        ids = [node["id"] for node in nodes]
        assert len(set(ids)) == len(ids) and min(ids) > 0
        for node in nodes:
            assert all(dep < node["id"] for dep in node["deps"])
            assert node["kinds"]["is_cpu_op"] == 27  # bool_val
            if node["type"] == chakra.COLL:
                assert not node["attr"]["is_cpu_op"]
                assert node["attr"]["comm_type"] == 0  # ALL_REDUCE
                assert node["attr"]["comm_size"] == 2 * synthetic.SIZE
                assert node["attr"]["pg_name"] == "0"  # all ranks
                assert (node["kinds"]["comm_size"], node["kinds"]["pg_name"]) == (
                    9,
                    29,
                )  # int64_val, string_val
            else:
                assert {"num_ops", "tensor_size"} <= set(node["attr"])
        gemms = [node for node in nodes if node["name"] == "nvjet_sm90_gemm"]
        assert {node["attr"]["num_ops"] for node in gemms} == {2 * 2048**3}
        assert {node["attr"]["tensor_size"] for node in gemms} == {3 * 2 * 2048**2}


def test_groups_are_numbers_that_all_ranks_share(tmp_path: Path) -> None:
    """Groups that PyTorch calls alike on different ranks get numbers of their own, and a file says who is in them."""
    folder = tmp_path / "run"
    folder.mkdir()
    in_pairs(folder)
    paths = written(folder, tmp_path / "et" / "run.et")
    assert json.loads((tmp_path / "et" / "run.comm_group.json").read_text()) == {
        "1": [0, 1],
        "2": [2, 3],
    }
    names = [
        {n["attr"]["pg_name"] for n in nodes_of(path) if n["type"] == chakra.COLL}
        for path in paths
    ]
    assert names == [{"1"}, {"1"}, {"2"}, {"2"}]
    again = replay_files([tmp_path / "et"])
    assert {m.ranks for m in again.replay.job.meetings} == {(0, 1), (2, 3)}
    assert again.worst < 1e-3
    (tmp_path / "et" / "run.comm_group.json").write_text("[1]")
    with pytest.raises(InputError, match="groups and their ranks"):
        traces.read([tmp_path / "et"])


def jsonized(nodes: list[dict[str, Any]]) -> str:
    """As MLCommons' chakra_jsonizer prints messages: one object after the other, long numbers as text."""
    parts: list[dict[str, Any]] = [{"version": "0.0.4"}]
    for node in nodes:
        attributes = [
            {"name": name, "boolVal": value}
            if isinstance(value, bool)
            else {"name": name, "stringVal": value}
            if isinstance(value, str)
            else {"name": name, "int64Val": str(value)}
            for name, value in node["attr"].items()
        ]
        parts.append(
            {
                "id": str(node["id"]),
                "name": node["name"],
                "type": NAMES[node["type"]],
                "attr": attributes,
                "dataDeps": [str(d) for d in node["deps"]],
                "startTimeMicros": str(node["start"]),
                "durationMicros": str(node["duration"]),
            }
        )
    return "\n".join(json.dumps(part, indent=2) for part in parts)


def flat(nodes: list[dict[str, Any]]) -> str:
    """As the feeder's JSON: one list of flat nodes, without starts."""
    listed = [
        {
            "Id": n["id"],
            "Name": n["name"],
            "NodeType": n["type"],
            "runtime": n["duration"],
            "data_deps": n["deps"],
            **n["attr"],
        }
        for n in nodes
    ]
    return json.dumps({"workload_graph": listed})


@pytest.mark.parametrize("form", [jsonized, flat])
def test_json_says_what_protobuf_says(tmp_path: Path, form: Any) -> None:
    """Either JSON form has the same kernels and collectives as the binary one."""
    folder, other = tmp_path / "run", tmp_path / "json"
    folder.mkdir()
    other.mkdir()
    synthetic.save(folder)
    for rank, path in enumerate(written(folder, tmp_path / "et" / "run.et")):
        (other / f"run.rank{rank}.json").write_text(form(nodes_of(path)))
    binary, read = traces.read([tmp_path / "et"]), traces.read([other])
    assert {recording.format for recording in read} == {"chakra_json"}
    for one, two in zip(binary, read, strict=True):
        kept = [
            sorted(
                (
                    r["name"],
                    r["bytes"],
                    r["collective"],
                    round((r["end"] - r["start"]) * 1e6),
                )
                for r in rows
                if r["kind"] != "launch"
            )
            for rows in (one.spans.to_pylist(), two.spans.to_pylist())
        ]
        assert kept[0] == kept[1]
    assert {len(m.members) for m in replay_files([other]).replay.meetings} == {4}


def test_cut_json_is_an_error(tmp_path: Path) -> None:
    """JSON that ends in the middle says so."""
    folder = tmp_path / "run"
    folder.mkdir()
    synthetic.save(folder, only=(0,))
    (path,) = written(folder, tmp_path / "et" / "run.et")
    (tmp_path / "cut.json").write_text(jsonized(nodes_of(path))[:-40])
    with pytest.raises(InputError, match="ends early"):
        traces.read([tmp_path / "cut.json"])
