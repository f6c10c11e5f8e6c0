"""Plug-ins of other distributions: found as installers leave them, used on every path, and named where they are wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prestep.sim import data_files, entry_points, plugins
from prestep.sim.errors import InputError
from tests import in_turn
from tests.distribution import ROOT, install, install_example

DAY = 86_400


def prestep(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with a folder of distributions on the path."""
    path = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-m", "prestep", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[in_turn.Commands]:
    """The commands of a prestep beside which the example is installed."""
    folder = install_example(tmp_path_factory.mktemp("acme"))
    path = os.pathsep.join((str(folder), str(ROOT)))
    env = {**os.environ, "PYTHONPATH": path}
    with in_turn.commands(sys.executable, folder / "printed", ROOT, env) as commands:
        yield commands


def distribution(folder: Path, name: str, group: str, plugin: str, value: str) -> Path:
    """A distribution with one entry point, in a folder of its own; whether its module is there is another matter."""
    place = folder / name
    place.mkdir()
    line = f'[project]\nname = "{name}"\nversion = "2.1"\n'
    points = f'[project.entry-points."{group}"]\n{plugin} = "{value}"\n'
    empty = folder / f"{name}-sources"
    empty.mkdir()
    return install(line + points, empty, place)


def test_entry_points_are_those_of_importlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of metadata without `importlib.metadata` is what that finds, for every group of the example."""
    monkeypatch.syspath_prepend(str(install_example(tmp_path)))
    groups = importlib.metadata.entry_points().groups
    own = sorted(group for group in groups if group.startswith("prestep."))
    assert len(own) >= 10
    for group in own:
        expected = {
            (entry.name, entry.value)
            for entry in importlib.metadata.entry_points(group=group)
        }
        listed = entry_points.entry_points(group)
        assert {(e.name, e.value) for e in listed if e.foreign} == expected


def test_an_installed_command_is_listed_and_runs(acme: in_turn.Commands) -> None:
    """`days` is in `--help`, and agrees with the step of `run`: tokens over tokens a day."""
    assert "days" in acme.run("--help")
    assert "--tokens" in acme.run("days", "--help")
    step = json.loads(acme.run("run", "llama1b-ddp4", "--json"))
    rate = step["tokens_per_second_per_gpu"] * step["scenario"]["gpus"]
    made = acme.run("days", "llama1b-ddp4", "--tokens", "1e12")
    assert float(made) == pytest.approx(1e12 / rate / DAY, rel=1e-3)


def test_an_installed_cluster_and_gpu_are_used_by_every_command(
    acme: in_turn.Commands, tmp_path: Path
) -> None:
    """A cluster of installed GPUs: listed, shown, run, changed, swept; its memory is that of its datasheet."""
    assert "acme-hall" in acme.run("list", "clusters").split()
    assert "acme-gpu" in acme.run("list", "gpus").split()
    job = '[cluster]\nname = "acme-hall"\nhosts = 1\n[model]\nname = "llama3.2-1b"\nlayers = 2\n[parallel]\ndp = 8\n'
    scenario = tmp_path / "job.toml"
    scenario.write_text(job, encoding="utf-8")
    step = json.loads(acme.run("run", str(scenario), "--json"))
    assert step["scenario"]["gpu"] == "acme-gpu"
    acme.run("whatif", str(scenario), "--set=nvlink.bandwidth=2x")
    grid = ("--grid", "model.layers=1,2", "-o", str(tmp_path / "swept"))
    acme.run("sweep", str(scenario), *grid, "--executor", "threads")
    acme.run("topology", "show", "acme-hall")


def test_an_opened_file_is_a_scenario_on_every_path(
    acme: in_turn.Commands, tmp_path: Path
) -> None:
    """A plan runs as the scenario that says the same does; changes, what-ifs and sweeps take it, a wrong one is told."""
    plan, scenario = tmp_path / "job.plan", tmp_path / "job.toml"
    plan.write_text("llama3.2-1b on 8 of dgx-h100\n", encoding="utf-8")
    scenario.write_text(
        '[cluster]\nname = "dgx-h100"\ngpus = 8\n[model]\nname = "llama3.2-1b"\n[parallel]\ndp = 8\n',
        encoding="utf-8",
    )
    steps = [
        json.loads(acme.run("run", str(path), "--json", *change))
        for path in (plan, scenario)
        for change in ((), ("--set=training.micro_batch=2",))
    ]
    times = [step["step_time"] for step in steps]
    assert times[:2] == times[2:] and times[0] != times[1]
    acme.run("whatif", str(plan), "--set=nvlink.bandwidth=2x")
    acme.run("sweep", str(plan), "--grid", "model.layers=1,2", "-o", f"{plan}.swept")
    plan.write_text("as many as you like", encoding="utf-8")
    code, _, err = acme.end("run", str(plan))
    assert code == 2 and "MODEL on GPUS of CLUSTER" in err


def test_an_installed_section_is_read_on_every_path(
    acme: in_turn.Commands, tmp_path: Path
) -> None:
    """`[evaluation]` makes every step longer by its part, in a file, by --set, in what-ifs and sweeps; the schema has it."""
    stated = "--set=evaluation.time=10 s"
    plain = json.loads(acme.run("run", "mlp-ddp4", "--json"))
    step = json.loads(acme.run("run", "mlp-ddp4", "--json", stated))
    assert step["step_time"] == pytest.approx(plain["step_time"] + 0.1)
    assert step["evaluation"]["waits"] == pytest.approx(0.1)
    assert "evaluation" not in plain and step["breakdown"]["io"] == pytest.approx(0.1)
    scenario = tmp_path / "job.toml"
    text = (ROOT / "workloads" / "scenarios" / "mlp-ddp4.toml").read_text("utf-8")
    scenario.write_text(f'{text}\n[evaluation]\ntime = "20 s"\nevery = 200\n', "utf-8")
    page = acme.run("run", str(scenario))
    assert "Evaluation" in page and "a step waits" in page
    compared = acme.run("whatif", "mlp-ddp4", stated, "--json")
    assert json.loads(compared)["difference"] == pytest.approx(0.1)
    grid = ("--grid", "evaluation.every=10,100", "-o", str(tmp_path / "swept"))
    swept = acme.run("sweep", str(scenario), *grid, "--executor", "threads")
    assert "evaluation.every" in swept
    schema = json.loads(acme.run("schema"))
    assert set(schema["properties"]["evaluation"]["properties"]) == {"every", "time"}
    code, _, err = acme.end("run", "mlp-ddp4", "--set=evaluation.every=5")
    assert code == 2 and "evaluation.time" in err


def test_an_installed_run_is_predicted_and_described(tmp_path: Path) -> None:
    """`[booking]` is answered instead of a step, with its page; `prestep schema run` has it beside the others."""
    folder, scenario = install_example(tmp_path), tmp_path / "job.toml"
    text = (ROOT / "workloads" / "scenarios" / "mlp-ddp4.toml").read_text("utf-8")
    scenario.write_text(f"{text}\n[booking]\ndays = 2\n", "utf-8")
    booked = json.loads(prestep(folder, "run", str(scenario), "--json").stdout)
    assert booked == {"gpu_hours": 4 * 48, "price": 4 * 48 * 2.0}
    assert "192 GPU hours cost 384.00." in prestep(folder, "run", str(scenario)).stdout
    for words in (("--strict",), ("--set=booking.days=0",)):
        wrong = prestep(folder, "run", str(scenario), *words)
        assert wrong.returncode == 2 and "booking" in wrong.stderr
    schema = json.loads(prestep(folder, "schema", "run").stdout)
    shapes = [set(shape["properties"]) for shape in schema["anyOf"]]
    assert set(booked) in shapes and "evaluation" in shapes[0]


def test_a_section_of_nobody_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """Without the distribution its section is unknown, as a misspelt one is; a class of another kind names who brings it."""
    scenario = tmp_path / "job.toml"
    text = (ROOT / "workloads" / "scenarios" / "mlp-ddp4.toml").read_text("utf-8")
    for name, hint in (("evaluation", "no installed extension"), ("dataloda", "data")):
        scenario.write_text(f"{text}\n[{name}]\nevery = 2\n", "utf-8")
        asked = prestep(tmp_path, "run", str(scenario))
        assert (
            asked.returncode == 2 and f"{name}: found unknown section" in asked.stderr
        )
        assert hint in asked.stderr
    folder = distribution(
        tmp_path, "toy", "prestep.sections", "nccl", "json:JSONDecoder"
    )
    scenario.write_text(f"{text}\n[nccl]\nnvls = false\n", "utf-8")
    asked = prestep(folder, "run", str(scenario))
    assert asked.returncode == 2 and "toy 2.1" in asked.stderr
    assert "a subclass of Nccl" in asked.stderr


def test_extensions_are_listed_with_what_they_add(tmp_path: Path) -> None:
    """Every distribution once, with its groups and names; a module that is missing is said in one sentence."""
    install_example(tmp_path)
    broken = distribution(tmp_path, "toy-broken", "prestep.commands", "lost", "toy.no")
    path = Path(f"{tmp_path}{os.pathsep}{broken}")
    lines = prestep(path, "list", "extensions", "--long").stdout.splitlines()
    [acme] = [line for line in lines if line.startswith("prestep-acme ")]
    assert "commands: days" in acme and "gpus: acme" in acme
    [toy] = [line for line in lines if line.startswith("toy-broken ")]
    assert "toy.no, not there" in toy


def test_a_command_that_is_missing_leaves_the_others_alone(tmp_path: Path) -> None:
    """`--help` lists it with what is wrong, other commands run, and to ask for it is an error that names who brings it."""
    folder = distribution(tmp_path, "toy-broken", "prestep.commands", "lost", "toy.no")
    text = prestep(folder, "--help")
    assert text.returncode == 0 and "cannot be used: toy-broken 2.1" in text.stdout
    assert prestep(folder, "list", "models").returncode == 0
    asked = prestep(folder, "lost")
    assert asked.returncode == 2 and "Traceback" not in asked.stderr
    assert asked.stderr.startswith("toy-broken 2.1: prestep.commands: lost: found")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_the_kind\n", "ModuleNotFoundError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("def broken(:\n", "SyntaxError"),
        ("command = 3\n", "a click.Command"),
    ],
)
def test_a_command_that_fails_to_be_imported_names_its_distribution(
    tmp_path: Path, text: str, told: str
) -> None:
    """Whatever is wrong with its module: exit code 2, one sentence, no traceback."""
    folder = distribution(tmp_path, "toy", "prestep.commands", "odd", "toy_odd")
    (folder / "toy_odd.py").write_text(text, encoding="utf-8")
    asked = prestep(folder, "odd")
    assert asked.returncode == 2 and "Traceback" not in asked.stderr
    assert "toy 2.1" in asked.stderr and told in asked.stderr
    assert prestep(folder, "--help").returncode == 0


def test_a_failure_of_a_plug_in_is_not_called_prestep_s(tmp_path: Path) -> None:
    """A command that raises while it runs: the crash names the distribution, so that its authors are told."""
    folder = distribution(tmp_path, "toy", "prestep.commands", "odd", "toy_odd")
    code = (
        "import click\nfrom prestep.sim.commands._shared import explained\n"
        "@click.command()\n@explained\ndef command():\n    raise KeyError('x')\n"
    )
    (folder / "toy_odd.py").write_text(code, encoding="utf-8")
    asked = prestep(folder, "odd")
    assert asked.returncode == 3
    assert asked.stderr.startswith("toy 2.1, a plug-in, has a mistake of its own")


@pytest.mark.parametrize(
    ("group", "name", "words"),
    [
        ("prestep.commands", "run", ("run",)),
        (
            "prestep.frameworks",
            "megatron",
            ("run", "llama1b-ddp4", "--set=training.framework=megatron"),
        ),
        (
            "prestep.schedules",
            "gpipe",
            ("run", "llama8b-pp4-1f1b", "--set=parallel.schedule=gpipe"),
        ),
    ],
)
def test_two_plug_ins_of_one_name_are_refused_with_both(
    tmp_path: Path, group: str, name: str, words: tuple[str, ...]
) -> None:
    """Neither is chosen in silence; what does not use that name goes on."""
    folder = distribution(tmp_path, "toy", group, name, "toy_same")
    (folder / "toy_same.py").write_text('"""The same."""\n', encoding="utf-8")
    asked = prestep(folder, *words)
    assert asked.returncode == 2, asked.stdout
    assert "toy 2.1" in asked.stderr and "prestep's" in asked.stderr
    assert prestep(folder, "list", "models").returncode == 0


def test_two_clusters_of_one_name_are_refused_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data files, too: the name is listed once, and to use it is an error that names both."""
    folder = distribution(tmp_path, "toy", "prestep.clusters", "toy", "toy_clusters")
    (folder / "toy_clusters").mkdir()
    (folder / "toy_clusters" / "dgx-h100.toml").write_text('extends = "dgx-a100"\n')
    monkeypatch.syspath_prepend(str(folder))
    own = ROOT / "topologies" / "clusters"
    assert "dgx-h100" in data_files.files(own, "clusters")
    with pytest.raises(InputError, match=r"those of prestep and toy 2[.]1"):
        data_files.file(own, "clusters", "dgx-h100")


def test_nothing_of_a_distribution_is_imported_to_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and first lines come from files: neither the module nor the packages around it run."""
    folder = distribution(tmp_path, "toy", "prestep.readers", "toy", "toy_pack.in.deep")
    (folder / "toy_pack" / "in").mkdir(parents=True)
    (folder / "toy_pack" / "__init__.py").write_text("raise SystemExit\n")
    (folder / "toy_pack" / "in" / "deep.py").write_text('"""A toy."""\n')
    monkeypatch.syspath_prepend(str(folder))
    summaries = plugins.summaries("prestep.workloads.traces.readers")
    assert summaries["toy"] == "A toy." and "toy_pack" not in sys.modules
