"""Published measurements of other machines are read strictly, and skipped for a reason."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from lab import CASES
from lab.fit import published_collectives as fits
from lab.formats import published_collectives, published_machines
from lab.report.collectives import Limits
from lab.sets.published_collectives import validate_set
from prestep.sim.collectives.constants import load
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.validation.sets.predict_collective import LAUNCH, predict_row
from tests.conftest import ReportOf
from tests.validation.test_fit_network import TRUE, measured


def published(tmp_path: Path, *records: dict[str, str]) -> Path:
    path = tmp_path / "rows.csv"
    blank = dict.fromkeys(published_collectives.COLUMNS, "")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, published_collectives.COLUMNS)
        writer.writeheader()
        writer.writerows(blank | record for record in records)
    return path


H100 = {
    "id": "a",
    "hardware": "DGX H100, single node",
    "nodes": "1",
    "gpus": "8",
    "op": "all_reduce",
    "size_bytes": "1073741824",
    "time_us": "4000",
    "settings": "NCCL 2.27.5; NCCL_NVLS_ENABLE=0",
}


def test_published_rows(tmp_path: Path) -> None:
    """A CSV row runs on the cluster of its machine, with the version and variables its settings say."""
    made = validate_set(
        "published-collectives",
        published(
            tmp_path, H100, H100 | {"id": "b", "time_us": "", "busbw_GBs": "370"}
        ),
    )
    assert [one.slice for one in made.cases] == ["dgx-h100, 1 MiB and more"] * 2
    assert made.cases[0].measured == pytest.approx(4e-3)
    assert made.cases[1].measured == pytest.approx(2**30 * 1.75 / 370e9)
    assert made.cases[0].prediction.algo == "ring"
    rows = published_collectives.read_csv(published(tmp_path, H100))
    assert rows[0].wanted == Nccl(version="2.27.5", nvls=False)


def test_how_rows_were_timed(tmp_path: Path) -> None:
    """One process launches GPU after GPU; a call through PyTorch that was timed alone has the host's way in it."""
    small = H100 | {"size_bytes": "1024", "settings": "NCCL 2.27.5"}
    one = small | {"settings": "NCCL 2.27.5; all_reduce_perf -g 8"}
    lone = small | {"hardware": "AWS p6-b200"}
    path = published(tmp_path, small, one, lone)
    usual, launched, alone = published_collectives.read_csv(path)
    assert predict_row(usual).time < predict_row(launched).time == 8 * LAUNCH
    host = load("b200").tables["host"]["all_reduce"]
    before = predict_row(replace(alone, alone=False)).time
    assert predict_row(alone).time == pytest.approx(before + host)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hardware": "MI300X 8-GPU node"}, "no cluster file"),
        ({"hardware": "a heap of toasters"}, "no machine"),
        ({"nodes": "2", "gpus": "16"}, "host"),
        ({"op": "moe_dispatch_low_latency"}, "not an operation"),
        ({"gpus": "3-16"}, "not single numbers"),
        ({"time_us": "", "busbw_GBs": "0.04"}, "rounding"),
        ({"gpus": "16"}, "at most"),
    ],
)
def test_published_rows_that_are_skipped(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    """Rows that cannot be compared are counted with the reason."""
    made = validate_set(
        "published-collectives", published(tmp_path, H100, H100 | change)
    )
    assert len(made.cases) == 1
    assert [reason in skip.reason for skip in made.skips] == [True]
    assert sum(made.to_json()["skipped_by_reason"].values()) == 1


def test_a_wrong_table_is_named(tmp_path: Path) -> None:
    """Missing columns and cells that are no numbers are mistakes with line and column."""
    path = tmp_path / "rows.csv"
    path.write_text("id,op\na,all_reduce\n")
    with pytest.raises(InputError) as error:
        published_collectives.read_csv(path)
    assert ("rows.csv:1", "size_bytes") in {
        (mistake.where, mistake.key) for mistake in error.value.mistakes
    }
    with pytest.raises(InputError) as error:
        published_collectives.read_csv(
            published(
                tmp_path, H100, H100 | {"time_us": "fast"}, H100 | {"size_bytes": "-1"}
            )
        )
    assert [(m.where, m.key) for m in error.value.mistakes] == [
        ("rows.csv:3", "time_us"),
        ("rows.csv:4", "size_bytes"),
    ]


def test_reference_figures_are_predicted(report_of: ReportOf) -> None:
    """Every figure that is often quoted is compared with, and none was fitted to."""
    made = report_of("published-collectives")
    assert len(made.cases) >= 20 and not made.skips and not made.unpredicted
    assert not any(one.fitted for one in made.cases)


def test_every_machine_is_well_described() -> None:
    """A machine has a cluster or a reason why not, and no two have the same name."""
    machines = published_machines.machines()
    assert all(machine.cluster or machine.reason for machine in machines)
    assert len({machine.name for machine in machines}) == len(machines)


@pytest.mark.parametrize(("variant", "version"), [("1", "2.18"), ("2", "2.21")])
def test_a_machine_may_have_a_version_whatever_its_rows_say(
    tmp_path: Path, variant: str, version: str
) -> None:
    """Sirius's second variant runs as the release whose times it has, and its rows are no judges of that."""
    settings = f"environment variant {variant}; NCCL 2.18; float"
    sirius = {"hardware": "Sirius (ALCF)", "settings": settings, "nodes": "2"}
    row = published_collectives.read_csv(published(tmp_path, H100 | sirius))[0]
    assert row.wanted.version == version
    machine = published_machines.machine_of(H100 | sirius | {"source": ""})
    assert machine is not None and bool(machine.fitted_nodes) == (variant == "2")


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
                "source": "ALCF",
                "hardware": "Sophia (ALCF), NVIDIA A100-SXM4-40GB, 8/node",
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


def test_fits_write_files_that_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts of the network make a cluster file, constants a file of a GPU; both say how well they fit."""
    out, nccl = tmp_path / "mine.toml", tmp_path / "nccl.toml"
    words = [str(table(tmp_path)), "--cluster", "alcf-sophia"]
    fits.main([*words, "--network", "-o", str(out)])
    assert "held out: mean |error|" in capsys.readouterr().out
    fabric = load_cluster(str(out), 2)
    assert fabric.facts["net_share"].evidence == "fitted"
    assert fabric.facts["net_ll"].value == pytest.approx(TRUE["net_ll"], rel=0.1)
    fits.main([*words, "-o", str(nccl)])
    assert "held out" in capsys.readouterr().out and nccl.exists()


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


def test_limits_are_those_agreed() -> None:
    """A median of 10 % and nine in ten within 25 %, at 1 MiB and more."""
    limits = Limits.read(CASES / "published-collectives" / "limits.toml")
    assert limits.of("aws-p5, 1 MiB and more") == {"median": 0.10, "p90": 0.25}
    assert not limits.of("aws-p5, below 1 MiB")
