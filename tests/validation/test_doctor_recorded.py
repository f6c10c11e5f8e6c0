"""What jobs record of their own collectives, with figures that the recorders' documentation works out."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.errors import InputError
from prestep.validation.doctor import evidence, recorded
from prestep.validation.doctor.recorded import read

#: Operation, bytes, us and algbw (GB/s): the two records in NCCL's ext-profiler/inspector/README.md, of 8 ranks.
DOCUMENTED = [
    ("AllReduce", 17179869184, 61974, 277.210914),
    ("ReduceScatter", 2147483648, 41057, 418.439467),
]
GIB = 2**30


def inspector(path: Path, records: list[tuple[str, int, int, float]]) -> Path:
    header = {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1}
    lines = []
    for number, (op, size, time, speed) in enumerate(records):
        about = {"coll": op, "coll_sn": number, "coll_msg_size_bytes": size}
        about |= {"coll_exec_time_us": time, "coll_algobw_gbs": speed}
        about |= {"coll_timing_source": "kernel_gpu"}
        lines.append(json.dumps({"header": header, "coll_perf": about}))
    path.write_text("\n".join(lines) + "\n")
    return path


def dump(*milliseconds: float | None) -> dict[str, Any]:
    """A dump of 8 ranks: all-gathers of 1 GiB in bf16, which took so long."""
    whole = [[GIB // 2]]
    entries = [
        {
            "process_group": ("0", "default_pg"),
            "profiling_name": "nccl:_all_gather_base",
            "input_sizes": [[GIB // 16]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": whole,
            "output_dtypes": ["BFloat16"],
            "state": "completed",
            **({} if time is None else {"duration_ms": time}),
        }
        for time in milliseconds
    ]
    ranks = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(8)))}}
    return {"version": "2.10", "pg_config": ranks, "entries": entries}


@pytest.mark.parametrize("record", DOCUMENTED, ids=lambda record: record[0])
def test_bytes_are_those_of_nccl_tests(
    tmp_path: Path, record: tuple[str, int, int, float]
) -> None:
    """Bytes of all ranks by the time are the bandwidth that the inspector itself prints."""
    (found,) = read(inspector(tmp_path / "a.log", [record]))
    assert found.size / found.time / 1e9 == pytest.approx(record[3], rel=1e-6)


@pytest.mark.parametrize("as_pickle", [True, False])
def test_dumps_of_the_flight_recorder_are_read(tmp_path: Path, as_pickle: bool) -> None:
    """Pickle or JSON; the gathered buffer counts, and entries without a time do not."""
    path = tmp_path / "nccl_trace_rank_0"
    about = dump(5.0, None, 4.0)
    path.write_bytes(pickle.dumps(about) if as_pickle else json.dumps(about).encode())
    ranks = tuple(range(8))
    assert [(one.op, one.size, one.ranks, one.time) for one in read(path)] == [
        ("all_gather", GIB, ranks, 0.005),
        ("all_gather", GIB, ranks, 0.004),
    ]
    (row,) = evidence.read([path]).with_rows(8).run.rows
    assert (row.op, row.size, row.ranks, row.time) == ("all_gather", GIB, 8, 0.004)


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    """A dump that names a function is refused before it is called."""

    class Harmful:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps(dump(1.0) | {"profiling_name": Harmful()}))
    assert recorded.is_recorded(path.read_bytes())
    with pytest.raises(InputError, match="names code"):
        read(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(dump(None)).encode(), "TORCH_NCCL_ENABLE_TIMING"),
        (pickle.dumps(dump(1.0))[:-20], "a whole dump"),
        (json.dumps(dump(1.0)).encode()[:-20], "JSON lines of NCCL's inspector"),
        (
            b'{"coll_perf": {"coll": "AllReduce", "coll_exec_time_us": 3}}',
            "no 'n_ranks'",
        ),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    """Cut, untimed and incomplete ones, with what was expected."""
    (tmp_path / "dump").write_bytes(content)
    with pytest.raises(InputError, match=expected):
        read(tmp_path / "dump")


def test_the_doctor_takes_them(tmp_path: Path) -> None:
    """The documented all-reduce, 485 GB/s of bus bandwidth, is what eight H100 reach; at half of it they are not good."""
    log = inspector(tmp_path / "a.log", DOCUMENTED[:1])
    slow = [(op, size, 2 * time, 0.0) for op, size, time, _ in DOCUMENTED[:1]]
    codes = [
        CliRunner().invoke(cli.main, ["doctor", "cluster", "dgx-h100", str(path)])
        for path in (log, inspector(tmp_path / "slow.log", slow))
    ]
    assert [code.exit_code for code in codes] == [0, 1], codes[0].output
