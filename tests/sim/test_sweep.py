"""Sweeps: every run once, whatever happens between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.analysis import arrow
from prestep.sim.errors import InputError
from prestep.sim.studies import executors, sweep
from prestep.sim.studies.grid import grid_of, specs
from prestep.sim.tools import workers
from prestep.sim.tools.catalog import find_scenario

GRID = ["--grid", "training.micro_batch=64,128", "--grid", "nvlink.bandwidth=1x,0.1x"]


def swept(folder: Path, *more: str) -> pd.DataFrame:
    made = CliRunner().invoke(
        cli.main,
        ["sweep", "mlp-ddp4", *GRID, "-o", str(folder), "--executor", "threads", *more],
    )
    assert made.exit_code == 0, made.output
    return pd.read_parquet(folder / "results.parquet")


def test_a_sweep_has_a_row_for_every_combination(tmp_path: Path) -> None:
    """Steps are those that `run` predicts; the schema does not depend on the grid; a plot can be drawn."""
    frame = swept(tmp_path / "out")
    assert len(frame) == 4 and (frame["error"] == "").all()
    assert list(frame.columns) == [
        "set.training.micro_batch",
        "set.nvlink.bandwidth",
        *sweep.COLUMNS,
    ]
    row = frame[
        (frame["set.training.micro_batch"] == "64")
        & (frame["set.nvlink.bandwidth"] == "0.1x")
    ].iloc[0]
    options = [
        "--set",
        "training.micro_batch=64",
        "--set",
        "nvlink.bandwidth=0.1x",
        "--json",
    ]
    alone = json.loads(
        CliRunner().invoke(cli.main, ["run", "mlp-ddp4", *options]).stdout
    )
    assert row["step_time"] == pytest.approx(alone["step_time"])
    made = CliRunner().invoke(
        cli.main,
        ["plot", str(tmp_path / "out"), "--x", "training.micro_batch", "--y", "mfu"],
    )
    assert made.exit_code == 0 and (tmp_path / "out" / "mfu.svg").stat().st_size > 1000


def test_cost_per_token_needs_a_price(tmp_path: Path) -> None:
    """A GPU's hour over its tokens of an hour; without a price, and with one for nothing, it is said."""
    swept(tmp_path)
    plot = ["plot", str(tmp_path), "--x", "training.micro_batch", "--y"]
    made = CliRunner().invoke(cli.main, [*plot, "cost_per_token", "--price", "2.5"])
    assert (
        made.exit_code == 0
        and "cost of a million tokens" in (tmp_path / "cost_per_token.svg").read_text()
    )
    for more in (["cost_per_token"], ["mfu", "--price", "2.5"], ["cost"]):
        made = CliRunner().invoke(cli.main, [*plot, *more])
        assert (
            made.exit_code == 2
            and "--" in made.output
            and "Traceback" not in made.output
        )


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    """A second sweep touches no run; one that is missing is made again; a larger grid keeps the old ones."""
    first = swept(tmp_path)
    times = {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()
    }
    gone = next(iter(sorted(times)))
    (tmp_path / "runs" / gone).unlink()
    second = swept(tmp_path)
    after = {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()
    }
    assert {name for name in times if after[name] != times[name]} == {gone}
    pd.testing.assert_frame_equal(first, second)


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    """Killed with SIGKILL after the first run: what is there is whole, and the rest follows."""
    command = [
        sys.executable,
        "-m",
        "prestep",
        "sweep",
        "mlp-ddp4",
        *GRID,
        "-o",
        str(tmp_path),
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(
        command,
        cwd=Path(cli.__file__).parent,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 3000
    while (
        not list(tmp_path.glob("runs/*.json"))
        and time.monotonic() < deadline
        and process.poll() is None
    ):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.read_text() for path in tmp_path.glob("runs/*.json")}
    assert before and all(
        json.loads(text)["key"] == path.stem for path, text in before.items()
    )
    assert len(swept(tmp_path)) == 4
    assert all(path.read_text() == text for path, text in before.items())


def of_session(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, mine = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(mine) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_of_a_killed_sweep_end(tmp_path: Path) -> None:
    """The command alone is killed with SIGKILL: its workers notice, and another sweep may go on at once."""
    grid = [
        "--grid",
        "training.micro_batch=" + ",".join(str(8 * n) for n in range(1, 200)),
        "-o",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "prestep", "sweep", "mlp-ddp4", *grid]
    process = subprocess.Popen(
        command,
        cwd=Path(cli.__file__).parent,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 3000
    while (
        not list(tmp_path.glob("runs/*.json"))
        and time.monotonic() < deadline
        and process.poll() is None
    ):
        time.sleep(0.005)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 300
    while of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not of_session(process.pid)
    with sweep._alone(tmp_path):
        pass


def test_a_key_depends_on_all_that_the_run_depends_on(tmp_path: Path) -> None:
    """Not on the order of the grid; on the scenario's text, on files that it names, and on the changes."""
    path = tmp_path / "s.toml"
    path.write_text(
        find_scenario("mlp-ddp4").read_text(encoding="utf-8"), encoding="utf-8"
    )

    def keys(grid: dict[str, tuple[str, ...]]) -> set[str]:
        return {spec.key for spec in specs(path, grid)}

    one = keys({"a": ("1", "2"), "b": ("3",)})
    assert one == keys({"b": ("3",), "a": ("2", "1")}) and len(one) == 2
    path.write_text(
        path.read_text(encoding="utf-8") + "\n# another\n", encoding="utf-8"
    )
    assert not one & keys({"a": ("1", "2"), "b": ("3",)})


def test_a_key_depends_on_files_that_files_name(tmp_path: Path) -> None:
    """What a cluster file extends counts, and files that only the grid names."""
    scenario, mine, below = (
        tmp_path / "s.toml",
        tmp_path / "mine.toml",
        tmp_path / "below.toml",
    )
    scenario.write_text(
        '[cluster]\nfile = "mine.toml"\n[model]\nname = "llama3-1b-plain"\n',
        encoding="utf-8",
    )
    mine.write_text('extends = "below.toml"\n', encoding="utf-8")
    below.write_text('extends = "h200-host-4"\n', encoding="utf-8")
    grid = {"model.file": ("config.json",)}

    def key() -> str:
        return specs(scenario, grid)[0].key

    first = key()
    below.write_text('extends = "dgx-h200"\n', encoding="utf-8")
    second = key()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert len({first, second, key()}) == 3 and key() == key()


def test_a_wrong_value_is_a_row_with_its_mistake(tmp_path: Path) -> None:
    """The other runs are made all the same."""
    frame = swept(tmp_path, "--grid", "parallel.dp=4,x")
    refused = frame["error"].str.contains("parallel.dp")
    assert refused.sum() == 4 and (frame["error"] == "").sum() == 4


@pytest.mark.parametrize("text", ["training.micro_batch", "=1", "a=", "a=1,,2"])
def test_a_grid_that_says_nothing_is_refused(text: str) -> None:
    """With what was found."""
    with pytest.raises(InputError, match="--grid"):
        grid_of([text])


def test_commas_within_brackets_do_not_divide() -> None:
    """Lists can be values."""
    assert grid_of(["model.sizes=[1,2],[3,4]"]) == {"model.sizes": ("[1,2]", "[3,4]")}


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second is told so."""
    with (
        sweep._alone(tmp_path),
        pytest.raises(InputError, match="another sweep"),
        sweep._alone(tmp_path),
    ):
        pass


@pytest.mark.slow
def test_parts_of_a_sweep_make_one_table(tmp_path: Path) -> None:
    """Each part does its own runs, beside the others; the last one writes the table of all. Parts that are none are refused."""
    words = ["sweep", "mlp-ddp4", "--grid", "training.micro_batch=0,-1,-2"]
    words += ["-o", str(tmp_path), "--executor", "threads", "--shard"]
    for part, runs in (("1/2", 2), ("2/2", 3)):
        CliRunner().invoke(cli.main, [*words, part])
        assert len(list((tmp_path / "runs").iterdir())) == runs
        assert (tmp_path / "results.parquet").exists() == (runs == 3)
    for wrong in ("0/2", "3/2", "2", "a/b"):
        made = CliRunner().invoke(cli.main, [*words, wrong])
        assert made.exit_code == 2 and "2/8" in made.output


def test_dask_runs_the_same_sweep(tmp_path: Path) -> None:
    """On a local cluster of two workers, one of which is killed midway."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        file = tmp_path / "scheduler.json"
        file.write_text(json.dumps({"address": cluster.scheduler_address}))
        wanted = specs(
            find_scenario("mlp-ddp4"),
            {"training.micro_batch": ("8", "16", "32", "64", "128")},
        )
        worker, killed = next(iter(cluster.workers.values())), []

        def kill(done: int, of: int) -> None:
            if done == 1:
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

        made = sweep.sweep(
            wanted,
            tmp_path / "out",
            executors.executor_of(f"dask://{file}", 2),
            progress=kill,
        )
        assert (
            killed
            and (pd.read_parquet(made)["error"] == "").all()
            and len(pd.read_parquet(made)) == 5
        )


def test_processes_begin_with_what_they_need() -> None:
    """The server that they are forked from does linear algebra on one thread; this process keeps its environment."""
    before = dict(os.environ)
    with workers._one_thread():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert dict(os.environ) == before


def test_columns_keep_values_and_gaps() -> None:
    """Arrow arrays made by hand hold what pyarrow's own would; numbers that are not are not gaps."""
    for kind, values in (
        (pa.string(), ["a", None, "", "µs" * 5]),
        (pa.float64(), [1.5, None, float("inf"), -0.0]),
        (pa.int64(), [None, 2**40, -1]),
        (pa.bool_(), [True, None, False] * 9),
        (pa.float64(), []),
    ):
        made = arrow.column(values, kind)
        made.validate(full=True)
        assert made.to_pylist() == values
    assert str(arrow.column([float("nan")], pa.float64())[0].as_py()) == "nan"
