"""Logs of nccl-tests, text and JSON, are read for what they say and refused for what they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.validation.formats import nccl_tests

HEAD = """# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: {program}
# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1001 on   nodeA device  0 [0000:0f:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1002 on   nodeA device  1 [0000:2d:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1003 on   nodeB device  0 [0000:0f:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1004 on   nodeB device  1 [0000:2d:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3\n#\n"


def row(size: int, out: object = "20.5", inside: object = "19.5") -> str:
    return f"{size:12}  {size // 4:12}     float     sum      -1  {out}  0.05  0.08  0  {inside}  0.05  0.08  0\n"


def log(
    tmp_path: Path,
    *rows: str,
    program: str = "all_reduce_perf",
    head: str = HEAD,
    name: str = "run.log",
) -> Path:
    path = tmp_path / name
    path.write_text(head.replace("{program}", program) + "".join(rows) + TAIL)
    return path


def test_a_text_log(tmp_path: Path) -> None:
    """Ranks, hosts, version and operation are in the head; a row's time is in microseconds."""
    rows = nccl_tests.read(log(tmp_path, row(1024), row(2048, 21.0)), cluster="aws-p5")
    assert [(one.op, one.size, one.ranks, one.hosts, one.per_host) for one in rows] == [
        ("all_reduce", 1024, 4, 2, 2),
        ("all_reduce", 2048, 4, 2, 2),
    ]
    assert [one.time for one in rows] == pytest.approx([20.5e-6, 21e-6])
    assert rows[0].wanted == Nccl(version="2.28.9")
    assert [one.held_out for one in rows] == [False, True]
    assert rows[0].where.startswith("run.log:")


def test_in_place_counts_where_it_differs(tmp_path: Path) -> None:
    """A gather in place saves a copy and is a series of its own; an all-reduce in place is the same work."""
    rows = nccl_tests.read(log(tmp_path, row(1024), program="all_gather_perf"))
    assert [(one.op, one.time) for one in rows] == [
        ("all_gather", 20.5e-6),
        ("all_gather_inplace", 19.5e-6),
    ]
    assert nccl_tests.read(log(tmp_path, row(1024)))[0].op == "all_reduce"


@pytest.mark.parametrize(
    ("program", "op"),
    [
        ("alltoall_perf_mpi", "all_to_all"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("sendrecv_perf", "sendrecv"),
        ("reduce_perf", "reduce"),
        ("broadcast_perf", "broadcast"),
    ],
)
def test_programs(tmp_path: Path, program: str, op: str) -> None:
    """A program's name is its operation's; the longest name that fits counts."""
    assert nccl_tests.read(log(tmp_path, row(1024), program=program))[0].op == op


def test_an_old_log_is_told_by_its_name(tmp_path: Path) -> None:
    """Before 2.17 the log does not name its program: the file's name or the caller does, or it is an error."""
    head = (
        "\n".join(line for line in HEAD.splitlines() if "starting" not in line) + "\n"
    )
    assert (
        nccl_tests.read(log(tmp_path, row(1024), head=head, name="n2_alltoall.out"))[
            0
        ].op
        == "all_to_all"
    )
    assert (
        nccl_tests.read(log(tmp_path, row(1024), head=head), op="broadcast")[0].op
        == "broadcast"
    )
    with pytest.raises(InputError, match="--op"):
        nccl_tests.read(log(tmp_path, row(1024), head=head))


def test_lines_of_other_programs(tmp_path: Path) -> None:
    """NCCL_DEBUG lines give version and variables; what mpirun and NCCL print besides is left alone."""
    noise = (
        "Authorization required, but no authorization protocol specified\n"
        "nodeA:1001:1001 [0] NCCL INFO NCCL version 2.29.2+cuda13.0\n"
        "nodeA:1001:1001 [0] NCCL INFO NCCL_PROTO set by environment to Simple.\n"
        "nodeA:1001:1001 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    )
    rows = nccl_tests.read(log(tmp_path, noise, row(1024)))
    assert rows[0].wanted == Nccl(version="2.29.2", algo="ring", proto="Simple")


def test_timing_of_every_iteration(tmp_path: Path) -> None:
    """Per-iteration timing adds four columns to each side."""
    side = "20.5 0.05 0.08 0 19 22 21.9 3.1"
    line = f"  1024  256  float  none  -1  {side}  {side.replace('20.5', '19.5')}\n"
    rows = nccl_tests.read(log(tmp_path, line, program="all_gather_perf"))
    assert [one.time for one in rows] == pytest.approx([20.5e-6, 19.5e-6])


@given(times=st.lists(st.floats(0.01, 1e7), min_size=1, max_size=6))
def test_times_survive(
    tmp_path_factory: pytest.TempPathFactory, times: list[float]
) -> None:
    """Whatever is printed is read back, in order."""
    lines = [row(1024 << at, f"{time:.2f}") for at, time in enumerate(times)]
    rows = nccl_tests.read(log(tmp_path_factory.mktemp("log"), *lines))
    assert [one.time for one in rows] == pytest.approx(
        [float(f"{time:.2f}") * 1e-6 for time in times]
    )


@pytest.mark.parametrize(
    "bad", [row(1024, "N/A"), row(1024, "0.00"), "  1024  256  float  sum  -1  20.5\n"]
)
def test_a_bad_row_is_named(tmp_path: Path, bad: str) -> None:
    """A row without a time is a mistake with its line; the good ones do not hide it."""
    with pytest.raises(InputError) as error:
        nccl_tests.read(log(tmp_path, row(512), bad))
    assert [mistake.where for mistake in error.value.mistakes] == [
        f"run.log:{len(HEAD.splitlines()) + 2}"
    ]


@pytest.mark.parametrize(
    "head",
    [
        "size time algbw",
        "# size(B) time(us) algbw(GB/s)",
        "#  size  count  time  algbw  busbw",
    ],
)
def test_a_table_cut_down_by_hand(tmp_path: Path, head: str) -> None:
    """Columns by their names, with units or without; the command above it says the rest."""
    cells = {"size": "1048576", "time": "20.5"}
    line = " ".join(
        cells.get(word.partition("(")[0], "7") for word in head.strip("# ").split()
    )
    path = tmp_path / "report.log"
    path.write_text(f"all_reduce_perf -b 1M -e 1M -g 8\n{head}\n{line}\n")
    (found,) = nccl_tests.read(path)
    assert (found.op, found.ranks, found.size, found.time) == (
        "all_reduce",
        8,
        1048576,
        pytest.approx(20.5e-6),
    )


@pytest.mark.parametrize("head", ["msg-size time algbw", "size (B) avg-time algbw"])
def test_a_table_without_its_columns_is_no_crash(tmp_path: Path, head: str) -> None:
    """It has no row of times, and is told so."""
    path = tmp_path / "report.log"
    path.write_text(f"all_reduce_perf -b 1M -e 1M -g 8\n{head}\n1048576 20.5 7\n")
    with pytest.raises(InputError, match="no row of times"):
        nccl_tests.read(path)


def test_a_log_without_rows_or_ranks(tmp_path: Path) -> None:
    """A log that stopped before its first row, or ran on one GPU, says so."""
    with pytest.raises(InputError, match="no row"):
        nccl_tests.read(log(tmp_path))
    alone = (
        "\n".join(line for line in HEAD.splitlines() if not line.startswith("#  Rank"))
        + "\n"
    )
    with pytest.raises(InputError, match="ranks"):
        nccl_tests.read(log(tmp_path, row(1024), head=alone))


def json_report(tmp_path: Path, **changes: Any) -> Path:
    devices = [
        {"rank": r, "hostname": "nodeA", "device_info": "NVIDIA H100 80GB HBM3"}
        for r in range(2)
    ]
    side = {"time": 20.5, "alg_bw": 0.05, "bus_bw": 0.08, "nwrong": 0.0}
    told = {
        "version": 2,
        "args": ["./build/all_gather_perf", "-g", "2"],
        "nccl_version": 22809,
        "env": ["HOME=/root", "NCCL_MAX_NCHANNELS=4"],
        "config": {"nthreads": 1, "ngpus": 2, "devices": devices},
        "results": [
            {"size": 1024, "type": "float", "out_of_place": side, "in_place": None},
            {
                "size": 2048,
                "type": "float",
                "out_of_place": side,
                "in_place": {"cpu_time": 19.5},
            },
        ],
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(told | changes))
    return path


def test_a_json_log(tmp_path: Path) -> None:
    """Devices are listed once a process; the environment is in the report; a side that is null was not timed."""
    rows = nccl_tests.read(json_report(tmp_path))
    assert [(one.op, one.size, one.ranks) for one in rows] == [
        ("all_gather", 1024, 4),
        ("all_gather", 2048, 4),
        ("all_gather_inplace", 2048, 4),
    ]
    assert rows[0].wanted == Nccl(version="2.28.9", max_channels=4)
    assert rows[2].time == pytest.approx(19.5e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"results": None},
        {"results": [{"size": "big"}]},
        {"results": [{"size": 8, "out_of_place": {"time": "nan"}}]},
    ],
)
def test_a_bad_json_log(tmp_path: Path, change: dict[str, Any]) -> None:
    """A report without results, sizes or times is an input error."""
    with pytest.raises(InputError, match=r"run\.json"):
        nccl_tests.read(json_report(tmp_path, **change))


def test_logs_are_told_by_their_content(tmp_path: Path) -> None:
    """Text and JSON of nccl-tests are recognised; JSON lines of the harness are not taken for them."""
    assert nccl_tests.is_log(log(tmp_path, row(8)).read_text())
    assert nccl_tests.is_log(json_report(tmp_path).read_text())
    assert not nccl_tests.is_log(
        '{"kind": "env", "label": "default"}\n{"kind": "collective"}\n'
    )
