"""`prestep doctor nccl`: normal logs, slow ones and their causes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.fit.doctor import choosing, chosen
from prestep import cli
from prestep.sim.collectives.settings import Nccl
from prestep.sim.exchanges.table import sweep
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor.causes import causes
from prestep.validation.doctor.diagnosis import diagnosed
from prestep.validation.doctor.normal import interval, limit, slow
from prestep.validation.doctor.sweep import Situation, series_of
from prestep.validation.formats.collective_rows import Row

HEAD = """\
# nThread 1 nGpus 1 minBytes 4194304 maxBytes 268435456 step: 4(factor)
# Collective test starting: all_reduce_perf
{ranks}
{debug}
#       size         count      type   redop    root     time   algbw   busbw #wrong
"""


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["doctor", "nccl", *map(str, arguments)])


def text(
    factor: float = 1.0,
    debug: str = "",
    gpu: str = "NVIDIA H100 80GB HBM3",
    **settings: object,
) -> str:
    """An all-reduce on a DGX H100 as nccl-tests prints it, `factor` times as slow as predicted with some settings."""
    nccl = Nccl(**settings)  # type: ignore[arg-type]
    fabric = load_cluster("dgx-h100")
    rows = sweep(fabric, min_bytes=2**22, max_bytes=2**28, nccl=nccl)
    ranks = "\n".join(
        f"#  Rank {k:2} Group  0 Pid 7 on node0 device {k:2} [0x1b] {gpu}"
        for k in range(8)
    )
    lines = [
        f"{int(row.plan.size):12} {int(row.plan.size) // 4:12} float sum -1 {row.time * 1e6 * factor:.2f} 1 1 0"
        for row in rows
    ]
    return HEAD.format(ranks=ranks, debug=debug) + "\n".join(lines) + "\n"


def written(folder: Path, content: str, name: str = "all_reduce_perf.log") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def test_a_log_as_predicted_is_normal(tmp_path: Path) -> None:
    """Exit 0; the cluster is recognised by the name of the GPU; each measured time lies in its interval."""
    made = doctor(written(tmp_path, text()), "--json")
    assert made.exit_code == 0, made.output
    table = json.loads(made.stdout)
    assert table["good"] and table["cluster"] == "dgx-h100" and not table["causes"]
    (one,) = table["sweeps"]
    assert one["op"] == "all_reduce" and len(one["sizes"]) == 7
    assert all(s["low"] < s["measured"] < s["high"] for s in one["sizes"])


def test_a_slow_log_is_abnormal_and_the_right_cause_is_first(tmp_path: Path) -> None:
    """Exit 1; every size is slow, and the cause that the log was made with predicts it."""
    path = written(tmp_path, text(p2p_disable=True))
    made = doctor(path, "--cluster", "dgx-h100", "--json")
    assert made.exit_code == 1
    table = json.loads(made.stdout)
    assert all(size["slow"] for size in table["sweeps"][0]["sizes"])
    first = table["causes"][0][0]
    assert first["cause"] == "p2p-off" and first["explained"] > 0.9 and first["check"]
    page = doctor(path)
    assert page.exit_code == 1 and "not good" in page.stdout
    assert "1. P2P" in page.stdout and "check:" in page.stdout


def test_lines_of_the_log_show_and_exclude_causes(tmp_path: Path) -> None:
    """A variable that was set names its cause; a connection over P2P excludes that P2P is off."""
    set_ = "n0:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1."
    shown = doctor(written(tmp_path, text(debug=set_, p2p_disable=True)), "--json")
    (sign,) = json.loads(shown.stdout)["causes"][0][0]["signs"]
    assert sign["where"] == "all_reduce_perf.log:11"
    way = "n0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    other = doctor(written(tmp_path, text(debug=way, p2p_disable=True)), "--json")
    table = json.loads(other.stdout)
    assert "p2p-off" in table["ruled_out"]
    assert "p2p-off" not in {one["cause"] for group in table["causes"] for one in group}


def test_a_log_without_times_is_judged_by_its_lines(tmp_path: Path) -> None:
    """NCCL_DEBUG alone: a line that shows a cause makes it abnormal."""
    good = "n0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
    assert doctor(written(tmp_path, good)).exit_code == 0
    bad = good + "n0:1:1 [0] NCCL INFO Using network Socket\n"
    made = doctor(written(tmp_path, bad))
    assert made.exit_code == 1 and "TCP sockets" in made.stdout


@pytest.mark.parametrize("damaged", ["   268435456   67108", " 1024 256 float sum"])
def test_a_damaged_line_is_skipped_and_named(damaged: str, tmp_path: Path) -> None:
    """A log that was cut is judged by its other lines."""
    content = text() + damaged + "\n"
    made = doctor(written(tmp_path, content))
    line = len(content.splitlines())
    assert made.exit_code == 0
    assert f"skipped: all_reduce_perf.log:{line}" in made.stdout


def test_mistakes_are_told(tmp_path: Path) -> None:
    """Exit 2: no log of NCCL, a GPU that no bundled cluster has, two runs at once."""
    cases = {
        "expected nccl-tests": [written(tmp_path, "hello\n", "a.log")],
        "--cluster NAME|FILE": [
            written(tmp_path, text(gpu="NVIDIA X9"), "all_reduce_b.log")
        ],
        "one kind of GPU": [
            written(tmp_path, text(), "all_reduce_c.log"),
            written(tmp_path, text(gpu="NVIDIA B200"), "all_reduce_d.log"),
        ],
    }
    for expected, paths in cases.items():
        made = doctor(*paths)
        assert made.exit_code == 2 and expected in made.output


def situation(cluster: str, changed: dict[str, str], op: str) -> Situation:
    """An operation on an emulated cluster as it is with some links changed."""
    fabric = load_cluster(cluster)
    slow_ = with_overrides(fabric, changed)
    group = len(fabric.gpus)
    sizes = [2**k for k in range(14, 27, 2)]
    rows = [Row("nccl-tests", op, group, size, 1.0, 1.0) for size in sizes]
    asked = Situation(slow_, Nccl(), series_of(rows))
    timed = [
        Row("nccl-tests", op, group, size.size, size.expected.time, 1.0)
        for size in asked.sizes
    ]
    return Situation(fabric, Nccl(), series_of(timed))


def test_a_cause_predicts_its_own_log_exactly() -> None:
    """No distance is left, and nothing else comes first: an all-to-all tells a NIC from the spine."""
    here = situation("h200-leafspine-4x1", {"spine.bandwidth": "0.5x"}, "all_to_all")
    found = diagnosed(here)
    (first,) = found.suspects[0]
    assert first.name == "shared-spine"
    assert first.distance == pytest.approx(0.0, abs=1e-9)
    assert first.explained == pytest.approx(1.0)


def test_causes_that_predict_the_same_share_a_place() -> None:
    """A ring crosses every NIC and the spine alike."""
    here = situation("h200-leafspine-4x1", {"spine.bandwidth": "0.5x"}, "all_reduce")
    names = {suspect.name for suspect in diagnosed(here).suspects[0]}
    assert names >= {"nic-slow", "shared-spine"}


def test_a_good_log_that_leans_says_what_may_hide_in_it() -> None:
    """B300 without NVLink SHARP (NVIDIA/nccl#2140): as fast as some good machines, and what rings take."""
    fabric = load_cluster("dgx-b300")
    for busbw, named in (695e9, ["sharp-off"]), (845e9, []):
        time = 2**33 * 1.75 / busbw
        rows = [Row("nccl-tests", "all_reduce", 8, 2**33, time, time)]
        found = diagnosed(Situation(fabric, Nccl(version="2.30.4"), series_of(rows)))
        assert not found.abnormal
        assert [group[0].name for group in found.suspects[:1]] == named


def test_slower_logs_are_no_more_normal() -> None:
    """The excess grows with the time, and a size is slow from the end of its interval on."""
    (sweep_,) = situation("h200-leafspine-4x1", {}, "all_reduce").sweeps
    size = sweep_.sizes[-1]
    low, high = interval(size)
    assert low < size.expected.time < high and not slow(size)
    worse = type(size)(size.size, high * 1.01, size.expected)
    assert worse.excess > size.excess and slow(worse)


def test_limits_come_from_the_chosen_machines() -> None:
    """Machines that are faster than predicted need no more than nine in ten; the checksum splits them for good."""
    here = situation("h200-leafspine-4x1", {}, "all_reduce")
    assert all(
        value == pytest.approx(0.0, abs=1e-9)
        for of in chosen([("a", here.sweeps[0])]).values()
        for value in of.values()
    )
    assert limit("shaped", "bandwidth") == pytest.approx(1.645, abs=1e-3)
    assert choosing("polaris") and not choosing("sirius")


def test_every_cause_says_what_to_check_and_changes_something() -> None:
    """Its changes are of links or of NCCL's settings, and each has a text."""
    here = situation("h200-leafspine-2x2", {}, "all_reduce")
    for name, cause in causes().items():
        assert cause.title and cause.check, name
        for change in cause.changes(here):
            assert change.text and (change.links or change.nccl), name


@pytest.mark.parametrize("rank", [0, 3, 7])
@pytest.mark.parametrize("damage", ["#  Rank  {rank} Group  0 Pid 7 on no", ""])
def test_a_damaged_line_of_a_device_loses_no_gpu(
    tmp_path: Path, rank: int, damage: str
) -> None:
    """A device whose line is cut is counted; one without a line is, where later ones have theirs. Both are told."""
    if not damage and rank == 7:
        return  # nothing says that there was an eighth
    lines = text().splitlines()
    (at,) = [i for i, line in enumerate(lines) if f"Rank {rank:2} " in line]
    lines[at] = damage.format(rank=rank)
    made = doctor(written(tmp_path, "\n".join(lines)), "--json")
    table = json.loads(made.stdout)
    assert made.exit_code == 0 and table["ranks"] == 8 and len(table["skipped"]) == 1
    assert "devices" in table["skipped"][0]


@pytest.mark.parametrize("least", [2**26, 2**27])
def test_a_machine_at_half_its_bandwidth_is_abnormal_by_two_sizes(
    least: int, tmp_path: Path
) -> None:
    """A public report: a log of two large sizes, both marked slow, was called as fast as good machines."""
    lines = text(2.0).splitlines(keepends=True)
    rows = [line for line in lines if line.startswith(" ")]
    few = [row for row in rows if int(row.split()[0]) >= least]
    content = "".join([line for line in lines if line not in rows] + few)
    answer = doctor(written(tmp_path, content))
    assert answer.exit_code == 1 and "not good" in answer.output


def test_a_report_of_two_hosts_at_half_their_rate_is_abnormal(tmp_path: Path) -> None:
    """NVIDIA/nccl issue 2409: 2 x 8 H100 with 400G RoCE reached 216 and 231 GB/s; good machines reach about 470."""
    ranks = "\n".join(
        f"#  Rank {8 * host + k:2} Group  0 Pid 1 on node{host} device {k:2} [0x1b] NVIDIA H100 80GB HBM3"
        for host in range(2)
        for k in range(8)
    )
    rows = (
        "  1073741824    268435456     float     sum      -1   9299.1  115.47  216.50       0\n"
        "  8589934592   2147483648     float     sum      -1  69723.5  123.20  231.00       0\n"
    )
    log = written(tmp_path, HEAD.format(ranks=ranks, debug="") + rows)
    assert doctor(log, "--cluster", "roce-h100").exit_code == 1


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_the_verdict_claims_no_more_than_the_range_tells(
    factor: float, tmp_path: Path
) -> None:
    """A good log says how much a fault may cost and still hide: as much as good machines of this kind differ."""
    log = written(tmp_path, text(factor))
    answer, page = json.loads(doctor(log, "--json").stdout), doctor(log)
    assert page.exit_code == 0
    for part in answer["parts"]:
        assert part["low"] <= part["ratio"] <= part["high"] <= answer["resolution"]
        assert part["ratio"] == pytest.approx(factor, rel=0.1)
    assert answer["verdict"] == "good" and answer["good"]
    hidden = f"{100 * (answer['resolution'] - 1):.1f} %"
    assert f"less than {hidden} may hide" in page.output


LAUNCHERS = {
    "mpirun": "[1,{rank}]<stdout>:{line}",
    "Open MPI 5": "[prterun-node0-17@1,{rank}]<stdout>: {line}",
    "srun": "{rank:>3}: {line}",
    "pdsh": "node0: {line}",
    "torchrun": "[default{rank}]:{line}",
    "Kubernetes": "[pod/nccl-launcher-x7k2p/main] {line}",
    "Kubernetes with times": "2026-05-01T12:00:{rank:02}.{number:06}Z {line}",
    "Compose": "worker-0  | {line}",
    "journald": "May 01 12:00:{rank:02} node0 run[7]: {line}",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_launcher_writes_before_each_line_changes_nothing(
    launcher: str, tmp_path: Path
) -> None:
    plain = text(2.0, debug="node0:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB")
    tagged = "".join(
        LAUNCHERS[launcher].format(rank=number % 8, number=number * 1009, line=line)
        for number, line in enumerate(plain.splitlines(keepends=True))
    )
    answers = []
    for folder, content in (("plain", plain), ("tagged", tagged)):
        (tmp_path / folder).mkdir()
        log = written(tmp_path / folder, content)
        answers.append(json.loads(doctor(log, "--json").stdout))
    assert answers[0] == answers[1]


def test_a_cause_that_is_named_first_is_shown_or_predicts_the_log(
    tmp_path: Path,
) -> None:
    """Where none does, the page says so before it lists the nearest."""
    log = written(tmp_path, text(6.0))
    causes = json.loads(doctor(log, "--json").stdout)["causes"]
    page = doctor(log).output
    unsupported = not (causes and causes[0][0]["supported"])
    assert unsupported == ("none predicts all of its times" in page or not causes)
