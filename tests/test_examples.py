"""What examples/ and docs/extending.md show works, and links between pages lead somewhere."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.collectives.assemble import call_of
from prestep.sim.exporters import write
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies import shared_cluster
from prestep.topologies import load_cluster
from prestep.workloads import schedules
from tests import pages
from tests.contracts import test_every_schedule as contract
from tests.contracts import test_every_topology as topology
from tests.distribution import install_example
from tests.sample import together
from tests.sim.synthetic import EXPECTED, US, result

EXAMPLES = Path(cli.__file__).parent / "examples"
EXTENDING = EXAMPLES.parent / "docs" / "extending.md"
SCENARIOS = sorted(EXAMPLES.glob("*.toml"))
PLUGINS = sorted(EXAMPLES.glob("plugins/prestep_acme/[!_]*.py"))
ROOT = EXAMPLES.parent
PAGES = pages.PAGES
LINK = re.compile(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)")
STEPS = """step,1,first,0,100,-1
launch,1,launch,0,4,1
kernel,7,gemm,8,50,1
step,1,second,100,100,-1
launch,1,launch,100,4,2
kernel,7,gemm,108,50,2
strange,7,gemm,108,50,2"""


@pytest.fixture
def plugged_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The example's distribution, installed for one test."""
    folder = install_example(tmp_path_factory.mktemp("acme"))
    monkeypatch.syspath_prepend(str(folder))
    schedules._files.cache_clear()  # a new process would look again
    yield
    schedules._files.cache_clear()
    for name in [name for name in sys.modules if name.startswith("prestep_acme")]:
        del sys.modules[name]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_an_example_predicts(path: Path) -> None:
    """It starts with a comment, makes a step that fits in memory, and the list of examples has it."""
    scenario = load_scenario(path)
    steps = (
        list(shared_cluster.predict(scenario).results.values())
        if scenario.jobs
        else [predict(scenario)]
    )
    assert path.read_text(encoding="utf-8").startswith("# ")
    for step in steps:
        assert (
            math.isfinite(step.step_time)
            and step.out_of_memory is not None
            and step.out_of_memory.fits
        )
    assert f"]({path.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@together("path", SCENARIOS)
def test_what_an_example_suggests_runs(path: Path) -> None:
    """Every `--set` of its comment can be tried, those that stand together at once."""
    comment = (
        path.read_text(encoding="utf-8")
        .partition("\n[")[0]
        .replace("\n# ", " ")
        .replace('"100 MiB"', "100_MiB")
    )
    words = [*comment.split(), ""]
    told = [
        (at, words[at + 1])
        for at, word in enumerate(words)
        if word.strip("`") == "--set"
    ]
    changes: list[str] = []
    for at, value in told:
        changes.append(value.rstrip(",`.;)").replace("_MiB", " MiB"))
        if value[-1] in ",`.;)" or words[at + 2] != "--set":
            load_scenario(path, changes)
            changes = []


def test_the_example_schedule_keeps_the_contract(plugged_in: None) -> None:
    """A module is a schedule: listed, legal at every size, pure, and a scenario can ask for it."""
    assert "gpipe-lifo" in schedules.names()
    contract.test_a_schedule_runs_several_sizes("gpipe-lifo")
    contract.test_each_forward_and_backward_once_in_a_legal_order("gpipe-lifo")
    contract.test_a_schedule_is_a_pure_function("gpipe-lifo")
    path = EXAMPLES / "pipeline-zero-bubble.toml"
    small = [
        "parallel.schedule=gpipe-lifo",
        "model.layers=4",
        "training.microbatches=4",
    ]
    run = CliRunner().invoke(
        cli.main, ["run", str(path), *(f"--set={change}" for change in small)]
    )
    assert run.exit_code == 0 and "pipeline bubble" in run.output


def test_the_example_exporter_writes(plugged_in: None, tmp_path: Path) -> None:
    """A module is an exporter: it answers to its ending and writes what the result says."""
    lines = (
        write(result(), tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    )
    assert lines[0] == "share,seconds" and len(lines) == 1 + len(EXPECTED)
    assert float(lines[1].split(",")[1]) == pytest.approx(EXPECTED["compute"] * US)


def test_the_example_topology_is_a_family(plugged_in: None, tmp_path: Path) -> None:
    """It keeps the contract of families, and a cluster file and a prediction can use it."""
    topology.test_a_family_builds_a_checked_fabric_from_its_parameters("ring_of_hosts")
    (tmp_path / "ring.toml").write_text(
        'family = "ring_of_hosts"\nhosts = { value = 3, evidence = "guess", source = "here" }\n'
    )
    job = '[cluster]\nfile = "ring.toml"\n[model]\nname = "llama3-1b-plain"\n[parallel]\ndp = 24\n'
    (tmp_path / "job.toml").write_text(job)
    made = CliRunner().invoke(cli.main, ["run", str(tmp_path / "job.toml"), "--json"])
    assert made.exit_code == 0, made.output
    assert any("cable" in link["kind"] for link in json.loads(made.stdout)["links"])


def test_the_example_trace_format_is_replayed(plugged_in: None, tmp_path: Path) -> None:
    """The steps take what the file says, kernels count as computing, and what is not understood is told."""
    head = importlib.import_module("prestep_acme.csv_log").HEAD
    rows = [head, *STEPS.split("\n")]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "log.csv").rename(tmp_path / "run" / "rank0.log0")
    made = CliRunner().invoke(cli.main, ["replay", str(tmp_path / "run"), "--json"])
    assert made.exit_code == 0, made.output
    told = json.loads(made.stdout)
    assert told["simulated_step_time"]["0"] == pytest.approx(
        {"first": 100e-6, "second": 100e-6}
    )
    (tmp_path / "wrong.log0").write_text(f"{head}\nkernel,7,gemm,soon,50,1\n")
    made = CliRunner().invoke(cli.main, ["replay", str(tmp_path / "wrong.log0")])
    assert made.exit_code == 2 and "line 2" in made.stderr


def test_the_example_algorithm_delivers(plugged_in: None) -> None:
    """No link carries less than the parts that cross it, and it takes longer than its start."""
    one_shot = importlib.import_module("prestep_acme.one_shot")
    fabric = load_cluster("h200-host-4")
    plan = one_shot.plan(call_of("all_gather", 2.0**24, fabric.gpus, fabric))
    leaves = [
        usage
        for at, usage in zip(plan.links, plan.usage, strict=True)
        if fabric.links.src[at] == "gpu0"
    ]
    assert (
        sum(leaves) == pytest.approx(3 / 4)
        and plan.duration(fabric.links.bandwidth) > plan.latency
    )


def test_without_the_files_there_are_no_such_plugins() -> None:
    """Nothing of the two tests above stays behind."""
    assert "gpipe-lifo" not in schedules.names()


@together("path", PLUGINS)
def test_extending_names_the_plugin(path: Path) -> None:
    """The page leads to every file; of those that it shows it has the whole, word for word."""
    page = " ".join(EXTENDING.read_text(encoding="utf-8").split())
    name = f"`examples/plugins/prestep_acme/{path.name}`"
    assert name in page
    if f"all of {name}" in page.replace("All", "all"):
        assert " ".join(path.read_text(encoding="utf-8").split()) in page


@together("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and a heading for every anchor."""
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }
