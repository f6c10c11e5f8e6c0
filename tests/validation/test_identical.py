"""The same question has the same answer to the last bit, whatever else there is or runs beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench import mutations
from prestep import cli

HOME = Path(cli.__file__).parent
ROWS = HOME / "lab/cases/h200/straggler_4gpu.jsonl"
ASK = """
import json
from prestep.sim import api
from prestep.topologies import load_cluster
from prestep.sim.collectives.planner import plan_collective
told = {}
for name, changes in (("mlp-ddp4", {}), ("moe-ep4", {}), ("llama1b-ddp4", {"training.framework": "megatron"})):
    result = api.simulate(name, changes)
    told[name] = [result.step_time, result.breakdown, result.uncertainty.to_dict()]
for cluster in ("dgx-h100", "h200-leafspine-2x2"):
    fabric = load_cluster(cluster)
    plan = plan_collective("all_reduce", 2.0**26, fabric.gpus, fabric, None)
    told[cluster] = [plan.duration(fabric.links.bandwidth), plan.links.tolist(), plan.usage.tolist()]
print(json.dumps(told))
"""


def asked(package: Path, folder: Path, **env: str) -> str:
    """The answers of a package, to a process of its own that stands in a folder."""
    words = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=folder,
        env=words,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return asked(HOME, tmp_path_factory.mktemp("here"), PYTHONHASHSEED="0")


def test_neither_hashes_nor_the_working_folder_move_a_prediction(
    answers: str, tmp_path: Path
) -> None:
    """Another seed of hashes, another folder, another language: the same bytes."""
    (tmp_path / "sim.toml").write_text("x = 1\n")
    assert asked(HOME, tmp_path, PYTHONHASHSEED="4242", LC_ALL="C") == answers


def test_a_changed_file_elsewhere_does_not_move_a_prediction(
    answers: str, tmp_path: Path
) -> None:
    """More clusters, GPUs and scenarios, files in another order and of another date: the same bytes."""
    package = tmp_path / "package"
    package.mkdir()
    mutations.copied(package)
    for one, other in (
        ("topologies/clusters/h200-host-2.toml", "aaa.toml"),
        ("sim/costs/hardware/v100.toml", "aaa.toml"),
        ("workloads/scenarios/mlp-ddp4.toml", "zzz.toml"),
        ("sim/costs/storage/nvme.toml", "aaa.toml"),
        ("topologies/dragonfly.py", "aaa.py"),
        ("sim/exporters/parquet.py", "zzz.py"),
    ):
        path = package / one
        (path.parent / other).write_text(
            path.read_text(encoding="utf-8"), encoding="utf-8"
        )
        os.utime(path, (1, 1))
    changed = package / "topologies/clusters/aws-p5.toml"  # nobody asks about it
    changed.write_text(
        changed.read_text(encoding="utf-8").replace("GB/s", "MB/s"), encoding="utf-8"
    )
    assert asked(package, tmp_path, PYTHONHASHSEED="0") == answers


def test_neither_neighbours_nor_jobs_nor_order_move_a_row(tmp_path: Path) -> None:
    """Rows from behind, alone and by two processes are predicted as they are among the others."""
    lines = ROWS.read_text(encoding="utf-8").splitlines(keepends=True)
    backwards, single = tmp_path / "backwards.jsonl", tmp_path / "single.jsonl"
    backwards.write_text("".join(reversed(lines)), encoding="utf-8")
    single.write_text(lines[1], encoding="utf-8")

    def predicted(jobs: str, *more: str) -> dict[str, float]:
        words = ["validate", "h200-straggler", "--json", "--jobs", jobs, *more]
        return {
            case["id"]: case["predicted"]
            for case in json.loads(CliRunner().invoke(cli.main, words).stdout)["cases"]
        }

    known = predicted("1")
    assert predicted("2") == known
    assert predicted("1", "--rows", str(backwards)) == known
    alone = predicted("1", "--rows", str(single))
    assert alone == {name: known[name] for name in alone}
    assert len(alone) == 1
