"""`prestep doctor cluster`: several logs, traces and training logs judged together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.formats import doctor_threads
from prestep import cli
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor import evidence, faults, training
from prestep.validation.doctor.causes import CAUSES
from prestep.validation.doctor.diagnosis import Sign, diagnosed
from prestep.validation.doctor.sweep import Situation, series_of
from prestep.validation.formats.collective_rows import Row

HEAD = "# nThread 1 nGpus 1\n# Collective test starting: all_reduce_perf\n"
GPU = "#  Rank {rank:2} Group  0 Pid 7 on node{host} device {gpu:2} [0x1b] NVIDIA H100 80GB HBM3\n"
CLUSTER = "rail-h100"


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["doctor", "cluster", *map(str, arguments)])


def rows(hosts: int, sizes: tuple[int, ...]) -> list[Row]:
    several = hosts if hosts > 1 else None
    made = [Row("nccl-tests", "all_reduce", 8 * hosts, s, 1.0, 1.0) for s in sizes]
    return [replace(row, hosts=several, per_host=8) for row in made]


def log(folder: Path, hosts: int, changes: dict[str, str] | None = None) -> Path:
    """A log of nccl-tests with the times that are predicted on the cluster with some changes."""
    fabric = with_overrides(load_cluster(CLUSTER, max(hosts, 2)), changes or {})
    here = Situation(fabric, Nccl(), series_of(rows(hosts, (2**28, 2**30))))
    devices = "".join(
        GPU.format(rank=8 * host + gpu, host=host, gpu=gpu)
        for host in range(hosts)
        for gpu in range(8)
    )
    lines = "".join(
        f"{one.size:12} {one.size // 4:12} float sum -1 {one.expected.time * 1e6:.2f} 1 1 0\n"
        for one in here.sizes
    )
    path = folder / f"all_reduce_perf-{hosts}.log"
    path.write_text(HEAD + devices + lines)
    return path


def test_logs_of_several_host_counts_are_judged_together(tmp_path: Path) -> None:
    """One host is good, two have half of their NICs: the cause is what says both."""
    half = {"nic[1,3,5,7,9,11,13,15]": "off"}
    logs = log(tmp_path, 1), log(tmp_path, 2, half)
    page = tmp_path / "answer.html"
    answer = doctor(CLUSTER, *logs, "--json", "--report", page)
    table = json.loads(answer.stdout)
    assert answer.exit_code == 1 and not table["good"]
    one, two = table["sweeps"]
    assert (one["ranks"], two["ranks"]) == (8, 16)
    assert not any(size["slow"] for size in one["sizes"])
    assert all(size["slow"] for size in two["sizes"])
    named = [cause["cause"] for group in table["causes"] for cause in group]
    assert "nic-missing" in named[:2]
    text = page.read_text()
    assert "not good" in text and "http://" not in text and "half of its NICs" in text


def test_good_logs_are_good(tmp_path: Path) -> None:
    answer = doctor(CLUSTER, log(tmp_path, 1), log(tmp_path, 2))
    assert answer.exit_code == 0 and "\ngood: as fast" in answer.output


def test_what_is_no_evidence_is_told_at_once(tmp_path: Path) -> None:
    """Exit 2, and every file that is of no kind is named."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("hello\n")
    answer = doctor(CLUSTER, tmp_path / "a.txt", tmp_path / "b.txt")
    assert (
        answer.exit_code == 2 and "a.txt" in answer.output and "b.txt" in answer.output
    )
    speeds = tmp_path / "train.log"
    speeds.write_text("elapsed time per iteration (ms): 612.5\n")
    alone = doctor(CLUSTER, speeds)
    assert alone.exit_code == 2 and "what it ran" in alone.output


SPEEDS = {
    "elapsed time per iteration (ms): {}": (612.5, "milliseconds"),
    "step: 10  loss: 4.1  memory: 40GiB  tps: {:,}  mfu: 40%": (
        7123,
        "tokens of a GPU",
    ),
    "'train_runtime': 1.0, 'train_steps_per_second': {}": (0.25, "steps"),
    '{{"train_tokens_per_second": {}}}': (91234.5, "tokens"),
    "train_step_timing in s: {}": (3.25, "seconds"),
    "step time: {} ms": (410, "milliseconds"),
    "tokens/s: {:,}": (12_000, "tokens"),
}


@pytest.mark.parametrize("line", SPEEDS)
def test_the_speed_of_a_training_log_is_the_middle_of_its_steady_lines(
    line: str,
) -> None:
    """The first fifth, which warms up, is left out."""
    value, means = SPEEDS[line]
    factors = (5, 1.5, 1, 1, 1, 1.02, 0.98, 1, 1, 1)
    text = "\n".join(line.format(type(value)(value * factor)) for factor in factors)
    speed = training.read(text, "log")
    assert training.is_log(text) and speed.means == means
    assert speed.value == pytest.approx(value, rel=1e-3) and speed.lines == len(factors)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_training_log_is_held_against_its_scenario(
    factor: float, tmp_path: Path
) -> None:
    """Good as predicted; twice as long is not, and no cause is named that changes nothing."""
    scenario = Path("workloads/scenarios/llama1b-ddp4.toml")
    predicted = training.api.simulate(scenario).step_time
    speeds = tmp_path / "train.log"
    speeds.write_text(f"step time: {predicted * factor} s\n")
    answer = doctor("h200-host-4", speeds, scenario, "--json")
    table = json.loads(answer.stdout)
    assert table["good"] == (factor == 1.0) == (answer.exit_code == 0)
    (one,) = table["sweeps"][0]["sizes"]
    assert one["measured"] / one["expected"] == pytest.approx(factor, rel=1e-6)
    for group in table["causes"]:
        assert all(cause["explained"] > 0.2 for cause in group)


def test_a_trace_counts_by_the_shortest_time_of_each_collective() -> None:
    def meeting(duration: float, ranks: tuple[int, ...], op: str = "all_reduce") -> Any:
        return SimpleNamespace(op=op, size=2**20, ranks=ranks, duration=duration)

    pair, all_ = (0, 8), tuple(range(16))
    meetings = meeting(3.0, pair), meeting(2.0, pair), meeting(5.0, all_)
    other = meeting(1.0, pair, "send"), meeting(1.0, (0,))
    job: Any = SimpleNamespace(meetings=(*meetings, *other), world=16)
    recorded = tuple(evidence._met(job))
    found = evidence.Evidence(evidence.Run(()), recorded=recorded).with_rows(8).run
    assert (found.hosts, found.ranks) == (2, 16)
    assert [(r.ranks, r.hosts, r.per_host, r.time) for r in found.rows] == [
        (2, 2, 1, 2.0),
        (16, 2, 8, 5.0),
    ]


def test_a_known_fault_holds_in_its_versions_on_its_machines() -> None:
    """NVLSTree on B300 before 2.30.3, between three and more hosts; what it costs changes no other row."""
    (fault, *_) = faults.known_faults()
    fabric = SimpleNamespace(gpu_model="b300")
    for version, holds in (("2.29.7", True), ("2.30.2", True), ("2.30.3", False)):
        here: Any = SimpleNamespace(fabric=fabric, nccl=Nccl(version=version))
        assert fault.holds(here) == holds
    two, four = rows(2, (2**30,))[0], rows(4, (2**30,))[0]
    assert fault.factor(two, None) == 1.0 < fault.factor(four, None)  # type: ignore[arg-type]
    assert all(
        one.url.startswith("https://github.com/") for one in faults.known_faults()
    )


@pytest.mark.parametrize(
    ("line", "few"),
    [
        (
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            True,
        ),
        ("NCCL_IB_HCA set to mlx5_0,mlx5_1", True),
        ("NCCL_IB_HCA set to " + ",".join(f"mlx5_{n}:1" for n in range(8)), False),
        ("NCCL_IB_HCA set to mlx5", False),
        ("NCCL_IB_HCA set to ^mlx5_0", False),
    ],
)
def test_a_line_that_lists_too_few_nics_is_a_sign(line: str, few: bool) -> None:
    """Of a prefix, and of NICs that are left out, nothing follows."""
    fabric = load_cluster(CLUSTER, 2)
    here = Situation(fabric, Nccl(), series_of(rows(2, (2**28,))))
    shows = CAUSES["nic_missing"].shows
    assert shows is not None and shows(here, line) == few
    assert ("nic-missing" in diagnosed(here, [Sign("log:1", line)]).signs) == few


def test_threads_that_tune_nothing_are_told_by_their_names_alone() -> None:
    """Thirty threads, ten kept apart; each has a known cause, and rows or lines."""
    threads = doctor_threads.read(Path("lab/cases/doctor/threads.toml"))
    assert len(threads) == 30 and sum(one.apart for one in threads) == 10
    for one in threads:
        assert one.rows or one.lines, one.id
        assert {name.replace("-", "_") for name in one.causes} <= CAUSES.keys(), one.id
    tuned = [one.causes[0] for one in threads if not one.apart]
    counts = {name: tuned.count(name.replace("_", "-")) for name in CAUSES}
    assert counts == {name: cause.reports for name, cause in CAUSES.items()}
