"""Other formats of recorded runs: read, written, and told apart by content."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.errors import InputError
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.report import as_json
from prestep.workloads import traces
from prestep.workloads.traces import protobuf
from tests.workloads.traces import synthetic


def convert(folder: Path, output: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(folder), "-o", str(output)])
    assert result.exit_code == 0, result.output


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "kineto"
    folder.mkdir()
    synthetic.save(folder, late=300.0)
    return folder


def test_chakra_keeps_the_work(job: Path, tmp_path: Path) -> None:
    """Kineto -> Chakra -> replay: the same collectives with the same bytes, and the same time within its microseconds."""
    convert(job, tmp_path / "et" / "run.et")
    assert sorted(p.name for p in (tmp_path / "et").iterdir()) == [
        f"run.{rank}.et" for rank in range(4)
    ]
    before, after = replay_files([job]), replay_files([tmp_path / "et"])
    for first, then in zip(
        before.replay.job.works, after.replay.job.works, strict=True
    ):
        assert sum(op.bytes for op in first.ops) == sum(op.bytes for op in then.ops)
        assert sum(bool(op.collective) for op in first.ops) == sum(
            bool(op.collective) for op in then.ops
        )
    assert after.worst < 1e-3
    assert after.run.finished == pytest.approx(before.run.finished, rel=0.02)


def test_chakra_without_starts_is_placed_by_its_dependencies(
    job: Path, tmp_path: Path
) -> None:
    """Durations and dependencies are enough: ranks meet in their collectives, the repair is counted, and no step is
    said to be measured.
    """
    from prestep.workloads.traces.readers import chakra

    convert(job, tmp_path / "run.et")
    folder = tmp_path / "untimed"
    folder.mkdir()
    for path in tmp_path.glob("run.*.et"):
        kept = []
        for message in chakra._messages(path.read_bytes()):
            fields = list(protobuf.fields(message)) if kept else []
            kept.append(
                message
                if not fields
                else b"".join(
                    protobuf.text(n, v)
                    if isinstance(v, bytes)
                    else protobuf.number(n, v)
                    for n, v in fields
                    if n != 6
                )
            )
        (folder / f"{path.name}.gz").write_bytes(
            gzip.compress(b"".join(map(protobuf.message, kept)))
        )
    outcome = replay_files([folder])
    assert outcome.notes["nodes without a start, placed after what they depend on"] > 0
    told = as_json(outcome)
    steps = [t for rank in told["measured_step_time"].values() for t in rank.values()]
    assert set(steps) == {None} and told["worst_error"] is None
    assert not told["breakdown"]["measured"] and not told["overlap"]["measured"]
    assert {len(m.members) for m in outcome.replay.meetings} == {4}


def test_kineto_comes_back_as_it_was(job: Path, tmp_path: Path) -> None:
    """Kineto -> Kineto: every step takes what it took."""
    convert(job, tmp_path / "again" / "run.json.gz")
    before, after = replay_files([job]), replay_files([tmp_path / "again"])
    assert [s.measured_host for s in after.steps] == pytest.approx(
        [s.measured_host for s in before.steps], rel=1e-6
    )


def test_a_table_has_all_rows(job: Path, tmp_path: Path) -> None:
    """The table holds the rows of all ranks under the schema."""
    import pyarrow.parquet as parquet

    convert(job, tmp_path / "run.parquet")
    assert parquet.read_table(tmp_path / "run.parquet").num_rows == sum(
        r.spans.num_rows for r in traces.read([job])
    )


def test_a_cut_chakra_trace_is_an_error(job: Path, tmp_path: Path) -> None:
    """A file that ends in the middle of a message says so."""
    convert(job, tmp_path / "run.et")
    (tmp_path / "cut.0.et").write_bytes((tmp_path / "run.0.et").read_bytes()[:-7])
    with pytest.raises(InputError, match="cut off"):
        traces.read([tmp_path / "cut.0.et"])


def linked(with_times: bool) -> dict[str, object]:
    nodes: list[dict[str, object]] = [
        {
            "name": "aten::mm",
            "id": 2,
            "parent": 1,
            "tid": 1,
            "inputs": [],
            "input_shapes": [[8, 8]],
            "input_types": ["Tensor(float)"],
        }
    ]
    if with_times:
        nodes[0] |= {"ts": 1000, "dur": 9}
        nodes.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 7,
                "ts": 1010,
                "dur": 50,
                "args": {"stream": 7},
                "parent": 2,
                "id": 3,
                "input_shapes": [],
                "input_types": [],
            }
        )
    return {"schema": "1.0.1", "pid": 1, "nodes": nodes}


def test_linked_execution_traces_are_read(tmp_path: Path) -> None:
    """An execution trace linked with Kineto has kernels with the operators that launched them."""
    (tmp_path / "et_0_plus.json").write_text(json.dumps(linked(True)))
    kernel = next(
        row
        for row in traces.read([tmp_path])[0].spans.to_pylist()
        if row["kind"] == "kernel"
    )
    assert (kernel["operator"], kernel["end"] - kernel["start"]) == (
        "aten::mm",
        pytest.approx(50e-6),
    )


def test_unlinked_execution_traces_are_refused(tmp_path: Path) -> None:
    """One without times is refused, with what to do."""
    (tmp_path / "et_0.json").write_text(json.dumps(linked(False)))
    with pytest.raises(InputError, match="link it with the Kineto trace"):
        traces.read([tmp_path])


def nsight(path: Path, extra: bool) -> None:
    with sqlite3.connect(path) as db:
        db.execute("create table StringIds (id int, value text)")
        db.executemany(
            "insert into StringIds values (?, ?)",
            [
                (1, "gemm"),
                (2, "cudaLaunchKernel_v7000"),
                (3, "cudaDeviceSynchronize_v3020"),
            ],
        )
        db.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId int, correlationId int, globalPid int, demangledName int)"
        )
        db.execute(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (20000, 70000, 0, 7, 5, 16777216, 1)"
        )
        if extra:
            db.execute(
                "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, globalTid int, correlationId int, nameId int)"
            )
            db.executemany(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, 16777217, ?, ?)",
                [(10000, 14000, 5, 2), (15000, 71000, 6, 3)],
            )
            db.execute(
                "create table NVTX_EVENTS (start int, end int, text text, textId int, globalTid int)"
            )
            db.execute(
                "insert into NVTX_EVENTS values (5000, 75000, 'step 3', null, 16777217)"
            )


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_nsight_exports_are_read(tmp_path: Path, extra: bool, packed: bool) -> None:
    """Kernels, calls and NVTX steps of an export, whichever tables are there, compressed or not."""
    path = tmp_path / "run.sqlite"
    nsight(path, extra)
    if packed:
        with (
            path.open("rb") as plain,
            gzip.open(tmp_path / "run.sqlite.gz", "wb") as out,
        ):
            shutil.copyfileobj(plain, out)
        path = tmp_path / "run.sqlite.gz"
    (step,) = replay_files([path]).steps
    assert step.measured_host == pytest.approx(70e-6 if extra else 50e-6)
    assert step.simulated_host == pytest.approx(step.measured_host)


def test_graphs_that_nsight_recorded_whole_are_work(tmp_path: Path) -> None:
    """By default nsys lists a CUDA graph and not its kernels: 50 us of GPU work in one piece, which is said."""
    path = tmp_path / "run.sqlite"
    nsight(path, True)
    kernels, graphs = (
        f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "GRAPH_TRACE")
    )
    with sqlite3.connect(path) as db:
        db.execute(
            f"create table {graphs} (start int, end int, deviceId int, streamId int, correlationId int, globalPid int, "
            "graphId int)"
        )
        db.execute(
            f"insert into {graphs} select start, end, deviceId, streamId, correlationId, globalPid, 7 from {kernels}"
        )
        db.execute(f"drop table {kernels}")
    outcome = replay_files([path])
    assert outcome.steps[0].simulated_host == pytest.approx(70e-6)
    assert any("--cuda-graph-trace=node" in note for note in outcome.notes)


def test_formats_are_told_by_content(job: Path, tmp_path: Path) -> None:
    """The name of a file says nothing about its format."""
    nsight(tmp_path / "a.json", True)
    shutil.copy(job / "rank0.pt.trace.json.gz", tmp_path / "b.sqlite")
    assert traces.read_file(tmp_path / "a.json").format == "nsight"
    assert traces.read_file(tmp_path / "b.sqlite").format == "kineto"


def test_dumps_of_collectives_are_sent_where_they_are_read(tmp_path: Path) -> None:
    """NCCL's inspector has no step to replay; the refusal names the command that reads it."""
    path = tmp_path / "inspector.log"
    path.write_text('{"header": {"rank": 0}, "coll_perf": {"coll": "AllReduce"}}\n')
    with pytest.raises(InputError, match="prestep doctor cluster"):
        traces.read_file(path)
