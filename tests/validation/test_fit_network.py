"""Facts of a network are found again from collectives that they made, and become a cluster file."""

from __future__ import annotations

import csv
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
from prestep.validation.formats import published_collectives, published_machines
from prestep.validation.formats.collective_rows import Row
from prestep.validation.sets.collectives import validate_set

TRUE = {"net_share": 0.8, "net_pairs_share": 0.6, "net_ll": 2e-5, "net_message": 8e-6}
NODES = "ALCF", "Sophia (ALCF), NVIDIA A100-SXM4-40GB, 8/node"


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


def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    blank = dict.fromkeys(published_collectives.COLUMNS, "")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, published_collectives.COLUMNS)
        writer.writeheader()
        for k in range(3, 30, 2):
            row = measured("all_reduce", 2**k, 0)
            said = {
                "id": f"r{k}",
                "source": NODES[0],
                "hardware": NODES[1],
                "nodes": "2",
                "gpus": "16",
            }
            said |= {
                "op": "all_reduce",
                "size_bytes": str(2**k),
                "time_us": str(row.time * 1e6),
            }
            writer.writerow(blank | said | {"settings": "NCCL 2.28.9"})
    return path


def test_the_command_writes_a_cluster_file(tmp_path: Path) -> None:
    """`prestep calibrate --network` on a CSV writes a cluster file that works, and says how well it fits."""
    out = tmp_path / "mine.toml"
    command = [
        "calibrate",
        str(table(tmp_path)),
        "--cluster",
        "alcf-sophia",
        "--network",
        "-o",
        str(out),
    ]
    made = CliRunner().invoke(cli.main, command)
    assert made.exit_code == 0, made.output
    assert "held out: mean |error|" in made.output
    fabric = load_cluster(str(out), 2)
    assert fabric.facts["net_share"].evidence == "fitted"
    assert fabric.facts["net_ll"].value == pytest.approx(TRUE["net_ll"], rel=0.1)


def test_only_rows_of_fitted_node_counts_are_fitted_to(tmp_path: Path) -> None:
    """A CSV gives the fit only the node counts that the table of machines gives to fits."""
    rows = published_collectives.to_fit(table(tmp_path), "alcf-sophia")
    assert {row.held_out for row in rows} == {True, False} and all(
        row.fitted for row in rows
    )
    with pytest.raises(InputError, match="no row to fit to"):
        published_collectives.to_fit(table(tmp_path), "dgx-h100")


def test_at_most_one_node_count_of_a_machine_is_fitted() -> None:
    """No machine gives more than one of its node counts to fits."""
    assert all(
        len(machine.fitted_nodes) <= 1 for machine in published_machines.machines()
    )


def test_every_cluster_of_the_table_exists() -> None:
    """Every machine has a cluster file that builds, or says why it has none."""
    for machine in published_machines.machines():
        assert machine.cluster or machine.reason
        if machine.cluster:
            assert load_cluster(machine.cluster, 2 if machine.one_host else None).gpus
        if machine.one_host:
            assert len(load_cluster(machine.one_host).hosts) == 1


def test_reference_figures() -> None:
    """The figures that are often quoted are predicted within the limits, with nothing fitted to them."""
    made = validate_set("reference-collectives")
    assert made.passed and not made.skips
    assert not made.select(fitted=True).n
