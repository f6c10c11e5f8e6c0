"""What the harness ran becomes the scenario that says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import CASES
from prestep.sim.errors import InputError
from prestep.sim.spec.lookup import allotted, placements
from prestep.sim.spec.rules.layout import check_layout
from prestep.topologies import load_cluster
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.workloads.models.model import load_model
from tests.sample import together

ROWS = [
    row
    for path in sorted(CASES.glob("h200/*.jsonl"))
    if "collectives" not in path.name
    for row in read_rows(path)
]


def row(
    world: int = 4,
    label: str = "default",
    env: dict[str, str] | None = None,
    **case: Any,
) -> Row:
    return Row(
        "a",
        "rows:1",
        {"id": "a", "model": "llama1b", "mode": "ddp", "mbs": 2} | case,
        world,
        label,
        env or {},
    )


@together("measured", ROWS)
def test_every_bundled_row_is_a_valid_scenario(measured: Row) -> None:
    """Every bundled row fits its cluster and its model."""
    scenario = scenario_of(measured)
    fabric = load_cluster(str(scenario.cluster.name))
    assert placements(scenario, fabric)
    for job in scenario.jobs or (scenario,):
        assert (
            check_layout(job, allotted(job, fabric), load_model(job.model, job.where))
            == []
        )


@together(
    ("case", "degrees", "data_parallel"),
    [
        ({"mode": "single"}, (1, 1, 1), "none"),
        ({"mode": "ddp"}, (4, 1, 1), "ddp"),
        ({"mode": "ddp_nooverlap"}, (4, 1, 1), "ddp-no-overlap"),
        ({"mode": "fsdp"}, (4, 1, 1), "fsdp"),
        ({"mode": "fsdptp"}, (2, 2, 1), "fsdp"),
        ({"mode": "tp"}, (1, 4, 1), "none"),
        ({"mode": "tp", "tp": 2}, (2, 2, 1), "fsdp"),
        ({"mode": "pp", "schedule": "1f1b", "microbatches": 8}, (1, 1, 4), "none"),
        (
            {"mode": "ppdp", "pp": 2, "schedule": "1f1b", "microbatches": 8},
            (2, 1, 2),
            "ddp-no-overlap",
        ),
    ],
)
def test_modes(
    case: dict[str, Any], degrees: tuple[int, int, int], data_parallel: str
) -> None:
    """Each mode of the harness has its layout."""
    parallel = scenario_of(row(**case)).parallel
    assert (parallel.dp, parallel.tp, parallel.pp) == degrees
    assert parallel.data_parallel == data_parallel


def test_bucket_cap_is_always_said() -> None:
    """The harness passes 25 MiB itself, so that DDP's first bucket has the same cap."""
    assert scenario_of(row()).parallel.bucket_caps == (25 * 2**20, 25 * 2**20)
    assert scenario_of(row(bucket_mb=1)).parallel.bucket_caps == (2**20, 2**20)


@pytest.mark.parametrize("size", [1, 17, 4096])
def test_any_size_of_the_small_network(size: int) -> None:
    """seedmlp_N is written inline, so that every N has a scenario."""
    assert scenario_of(row(model=f"seedmlp_{size}")).model.sizes == (
        size,
        size,
        size,
        1,
    )


def test_slow_rank_in_seconds() -> None:
    """Cycles of the spin become time at the SM clock."""
    faults = scenario_of(row(slow={"rank": 3, "cycles": 1_980_000})).faults
    assert (faults.slow_rank, faults.slow_per_layer) == (3, pytest.approx(1e-3))


def test_channels() -> None:
    """Fewer channels are NCCL's setting, by variable."""
    assert scenario_of(row(env={"NCCL_MAX_NCHANNELS": "4"})).nccl.max_channels == 4


@pytest.mark.parametrize(
    ("world", "name", "gpus"),
    [
        (2, "h200-host-2", None),
        (3, "h200-host-4", 3),
        (4, "h200-host-4", None),
        (8, "dgx-h200", None),
    ],
)
def test_clusters(world: int, name: str, gpus: int | None) -> None:
    """As many GPUs as the row had; the smallest host that has them."""
    cluster = scenario_of(row(world)).cluster
    assert (cluster.name, cluster.gpus) == (name, gpus)


@together(
    ("given", "key"),
    [
        ({"mode": "dpp"}, "case.mode"),
        ({"model": "llama70b"}, "case.model"),
        ({"mbs": "two"}, "case.mbs"),
        ({"ckpt": {"kind": "dcp"}}, "case.ckpt"),
        ({"sp": True}, "case.sp"),
        ({"mode": "pp", "schedule": "dfs", "microbatches": 4}, "case.schedule"),
        ({"mode": "pp", "schedule": "1f1b"}, "case.microbatches"),
        ({"env": {"NCCL_BUFFSIZE": "1"}}, "env.NCCL_BUFFSIZE"),
        ({"world": 64}, "world"),
    ],
)
def test_what_cannot_be_said_is_refused(given: dict[str, Any], key: str) -> None:
    """A row that a scenario cannot express is an error that names the key, never predicted as something else."""
    with pytest.raises(InputError) as error:
        scenario_of(row(**given))
    assert [mistake.key for mistake in error.value.mistakes] == [key]


def test_harness_and_bundled_files_agree() -> None:
    """The folder says where its rows come from."""
    assert Path(CASES / "h200" / "SOURCE.md").is_file()
