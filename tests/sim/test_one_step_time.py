"""Every command has one step time for one scenario, and the interval beside it contains it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim import api
from prestep.sim.explorer.answers import Explorer
from prestep.sim.studies.grid import specs
from prestep.sim.studies.swept_run import run_one

SCENARIO = """
[cluster]
name = "h200-host-4"
[model]
name = "llama3.2-1b"
layers = 2
[training]
seq_len = 512
micro_batch = 1
global_batch = 4
[parallel]
dp = 4
data_parallel = "ddp"
"""
READING = '[dataload]\nbatch_time = "{}"\nworkers = {}\ncopy = "{}"\n'
SECTIONS = {
    "plain": "",
    "input-bound": READING.format("300 ms", 1, "pinned"),
    "hardly input-bound": READING.format("30 ms", 1, "pageable"),
    "without workers": READING.format("5 ms", 0, "pinned"),
    "enough workers": READING.format("5 ms", 8, "beside"),
    "saves": '[checkpoint]\nmode = "async"\nstorage = "weka"\nevery = 10000\n',
    "noise": "[faults]\njitter = 2\n",
}
SECTIONS["all"] = SECTIONS["input-bound"] + SECTIONS["saves"] + SECTIONS["noise"]


@pytest.fixture(params=SECTIONS)
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO + SECTIONS[request.param])
    return path


def asked(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def by_whatif(path: Path, folder: Path) -> float:
    return float(
        asked("whatif", str(path), "--set", "nvlink.bandwidth=2x")["base"]["step_time"]
    )


def by_tornado(path: Path, folder: Path) -> float:
    return float(asked("whatif", str(path), "--each", "link-kind")["step_time"])


def by_sweep(path: Path, folder: Path) -> float:
    grid = ["--grid", "nccl.version=2.28.9", "-o", str(folder), "--executor", "threads"]
    result = CliRunner().invoke(main, ["sweep", str(path), *grid])
    assert result.exit_code == 0, result.output
    return float(
        pq.ParquetFile(folder / "results.parquet").read().to_pylist()[0]["step_time"]
    )


def by_search(path: Path, folder: Path) -> float:
    layout = (
        "parallel.dp=4",
        "parallel.data_parallel=ddp",
        "training.micro_batch=1",
        "training.recompute=none",
    )
    found = asked(
        "search",
        str(path),
        "--jobs",
        "1",
        *(part for key in layout for part in ("--over", key)),
    )
    return float(found["ranked"][0]["step_time"])


def by_explorer(path: Path, folder: Path) -> float:
    return float(Explorer(path).answer({})["step_time"])


def by_api(path: Path, folder: Path) -> float:
    return float(api.compare(path).loc["base", "step_time"])


def by_free_replicas(path: Path, folder: Path) -> float:
    """The mean of replicas without noise."""
    return float(
        asked("run", str(path), "--replicas", "2", "--set", "faults.jitter=0")[
            "replicas"
        ]["mean"]
    )


COMMANDS: list[Callable[[Path, Path], float]] = [
    by_whatif,
    by_tornado,
    by_sweep,
    by_search,
    by_explorer,
    by_api,
    by_free_replicas,
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda f: f.__name__)
def test_a_scenario_has_one_step_time(
    scenario: Path, tmp_path: Path, command: Callable[[Path, Path], float]
) -> None:
    """Whoever predicts a scenario says what `prestep run` says."""
    assert (
        command(scenario, tmp_path / "out") == asked("run", str(scenario))["step_time"]
    )


def test_its_interval_contains_it(scenario: Path) -> None:
    """The step lies in its interval, which is as long as a path that explains all of it."""
    told = asked("run", str(scenario))
    step = told["step_time"]
    assert told["uncertainty"]["low"] < step < told["uncertainty"]["high"]
    assert sum(told["breakdown"].values()) == pytest.approx(step)
    assert told["critical_path"]["length"] == pytest.approx(step, rel=1e-9)
    assert sum(
        part["seconds"] for part in told["critical_path"]["parts"]
    ) == pytest.approx(told["critical_path"]["length"])


def test_a_price_is_what_the_bandwidth_saves(scenario: Path) -> None:
    """1 % more bandwidth of a kind saves a hundredth of its shadow price, as `run` with that much more says."""
    plain = asked("run", str(scenario))
    for kind in plain["link_kinds"]:
        more = asked("run", str(scenario), "--set", f"{kind['kind']}.bandwidth=1.01x")[
            "step_time"
        ]
        assert plain["step_time"] - more == pytest.approx(
            kind["shadow_price"] / 100, abs=1e-12
        )


@pytest.mark.parametrize("name", ["gpu.flops", "gpu.hbm_bandwidth", "nvlink.bandwidth"])
def test_a_faster_machine_does_not_help_a_step_that_waits_for_its_data(
    tmp_path: Path, name: str
) -> None:
    """Of an input-bound step no element of the cluster is worth anything, and its difference is surely nothing."""
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO + SECTIONS["input-bound"])
    told = asked("whatif", str(path), "--set", f"{name}=2x")
    assert (
        told["difference"]
        == told["difference_interval"]["low"]
        == told["difference_interval"]["high"]
        == 0
    )
    assert asked("whatif", str(path), "--each", "all")["elements"][0]["effect"] == 0


def test_a_hardly_input_bound_step_may_be_slower_by_its_gpu(tmp_path: Path) -> None:
    """Where GPU and readers take nearly as long, the interval has what the GPU may take in it."""
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    plain = asked("run", str(path))
    path.write_text(
        SCENARIO + READING.format(f"{1.001 * plain['step_time']} s", 1, "beside")
    )
    bound = asked("run", str(path))
    assert bound["dataload"]["input_bound"]
    assert bound["uncertainty"]["high"] >= plain["uncertainty"]["high"]
    assert bound["uncertainty"]["low"] > plain["uncertainty"]["low"]


def test_saves_are_beside_steps_with_their_data(tmp_path: Path) -> None:
    """A save every so many steps is spread over steps that wait for their data too."""
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO + SECTIONS["all"])
    told = asked("run", str(path))
    assert (
        told["checkpoint"]["step_time_with"]
        > told["step_time"]
        <= told["checkpoint"]["step_time_beside"]
    )
    assert told["checkpoint"]["interval"] >= 10000 * told["step_time"]


def test_a_mistake_in_the_data_is_one_everywhere(tmp_path: Path) -> None:
    """Who cannot read is refused by every command with the same key."""
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO + "[dataload]\nworkers = 2\n")
    for arguments in (["run", str(path)], ["whatif", str(path), "--each", "gpu"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2 and "dataload.batch_time" in result.output
    assert (
        "dataload.batch_time"
        in run_one(specs(path, {"nccl.version": ["2.28.9"]})[0])["error"]
    )
