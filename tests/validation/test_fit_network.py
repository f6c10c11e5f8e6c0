"""Facts of a network are found again from collectives that they made, and become a cluster file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.core.quantity import Quantity
from prestep.validation.fit import network
from prestep.validation.formats.collective_rows import Row

TRUE = {"net_share": 0.8, "net_pairs_share": 0.6, "net_ll": 2e-5, "net_message": 8e-6}


def measured(op: str, size: int, at: int) -> Row:
    fabric = load_cluster("alcf-sophia", 2)
    facts = dict(fabric.facts) | {
        key: Quantity(value, "guess", "") for key, value in TRUE.items()
    }
    same = fabric.with_facts(fabric.name, facts)
    row = Row(
        "test",
        op,
        16,
        size,
        1.0,
        1.0,
        at % 2 == 1,
        cluster="alcf-sophia",
        hosts=2,
        per_host=8,
    )
    plan = plan_collective(op, size, same.gpus, same, row.wanted)
    return replace(row, time=plan.duration(same.links.bandwidth))


def test_facts_are_found_again() -> None:
    """Share, steps and the proxy's time come back within 5 %, and rows that were held out are predicted."""
    sizes = [2**k for k in (3, 6, 9, 12, 25, 27, 29, 30)]
    rows = [
        measured(op, size, at)
        for op in ("all_reduce", "all_to_all")
        for at, size in enumerate(sizes)
    ]
    fixed = {
        key: load_cluster("alcf-sophia", 2).facts[key].value
        for key in ("net_ll128", "net_simple")
    }
    made = network.fit(rows, fixed)
    for key, value in TRUE.items():
        assert made.facts[key] == pytest.approx(value, rel=0.05), key
    assert (
        np.abs(made.errors["held out"][1]).max()
        < 0.05
        < np.abs(made.errors["held out"][0]).max()
    )


def test_rows_of_one_host_say_nothing() -> None:
    """Without a row of several hosts there is nothing to fit."""
    with pytest.raises(InputError, match="several hosts"):
        network.fit([replace(measured("all_reduce", 8, 0), hosts=1)])


def nccl_tests_log(folder: Path) -> Path:
    """All-reduces of 16 GPUs on two hosts, as nccl-tests prints them."""
    ranks = [
        f"#  Rank {k} Group 0 Pid {k} on host{k // 8} device {k % 8} [0x00] A100"
        for k in range(16)
    ]
    rows = []
    for size in (2**k for k in range(3, 30, 2)):
        micros = measured("all_reduce", size, 0).time * 1e6
        speeds = f"{size / micros / 1e3:.4f} {size / micros / 1e3 * 15 / 8:.4f} 0"
        rows.append(f"{size} {size // 4} float sum -1 {micros:.3f} {speeds}")
    path = folder / "all_reduce.log"
    path.write_text("\n".join([*HEAD, *ranks, COLUMNS, *rows]) + "\n")
    return path


HEAD = (
    "# nccl-tests version 2.17.0 nccl-headers=22809 nccl-library=22809",
    "# Collective test starting: all_reduce_perf",
)
COLUMNS = "# size count type redop root time algbw busbw #wrong"


def test_the_command_writes_a_cluster_file(tmp_path: Path) -> None:
    """`prestep calibrate --network` on a log writes a cluster file that works, and says how well it fits."""
    out = tmp_path / "mine.toml"
    words = ["calibrate", str(nccl_tests_log(tmp_path)), "--cluster", "alcf-sophia"]
    made = CliRunner().invoke(cli.main, [*words, "--network", "-o", str(out)])
    assert made.exit_code == 0, made.output
    assert "held out: mean |error|" in made.output
    fabric = load_cluster(str(out), 2)
    assert fabric.facts["net_share"].evidence == "fitted"
    assert fabric.facts["net_ll"].value == pytest.approx(TRUE["net_ll"], rel=0.1)
