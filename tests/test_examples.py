"""What examples/ and docs/extending.md show works, and links between pages lead somewhere."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from sim import together
from sim.exporters import write
from sim.predict import predict
from sim.spec import load_scenario
from tests.contracts import test_every_schedule as contract
from tests.sim.synthetic import EXPECTED, US, result
from workloads import schedules

EXAMPLES = Path(cli.__file__).parent / "examples"
EXTENDING = EXAMPLES.parent / "docs" / "extending.md"
SCENARIOS = sorted(EXAMPLES.glob("*.toml"))
PLUGINS = sorted(EXAMPLES.glob("plugins/*/*.py"))
ROOT = EXAMPLES.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/*.md"))]
LINK = re.compile(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)")
PACKAGES = {"schedules": "workloads.schedules", "exporters": "sim.exporters"}


@pytest.fixture
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example plug-ins, as if they had been copied into their packages."""
    for folder, package in PACKAGES.items():
        found = importlib.import_module(package).__path__
        monkeypatch.setattr(importlib.import_module(package).__spec__, "submodule_search_locations", found)
        found.append(str(EXAMPLES / "plugins" / folder))
    schedules._files.cache_clear()  # a new process would look again
    yield
    schedules._files.cache_clear()
    for folder, package in PACKAGES.items():
        importlib.import_module(package).__path__.remove(str(EXAMPLES / "plugins" / folder))
        for plugin in (EXAMPLES / "plugins" / folder).glob("*.py"):
            sys.modules.pop(f"{package}.{plugin.stem}", None)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_an_example_predicts(path: Path) -> None:
    """It starts with a comment, makes a step that fits in memory, and the list of examples has it."""
    scenario = load_scenario(path)
    steps = list(together.predict(scenario).results.values()) if scenario.jobs else [predict(scenario)]
    assert path.read_text(encoding="utf-8").startswith("# ")
    for step in steps:
        assert math.isfinite(step.step_time) and step.out_of_memory is not None and step.out_of_memory.fits
    assert f"]({path.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_an_example_suggests_runs(path: Path) -> None:
    """Every `--set` of its comment can be tried."""
    comment = path.read_text(encoding="utf-8").partition("\n[")[0]
    for override in re.findall(r"--set ([\w.]+=\S+?)[,` ]", comment.replace('"100 MiB"', "100_MiB") + " "):
        load_scenario(path, [override.replace("_MiB", " MiB"), *(["parallel.schedule=zbv"] * ("vpp" in override))])


def test_the_example_schedule_keeps_the_contract(plugged_in: None) -> None:
    """A file is a schedule: listed, legal at every size, pure, and a scenario can ask for it."""
    assert "gpipe-lifo" in schedules.names()
    contract.test_a_schedule_runs_several_sizes("gpipe-lifo")
    contract.test_each_forward_and_backward_once_in_a_legal_order("gpipe-lifo")
    contract.test_a_schedule_is_a_pure_function("gpipe-lifo")
    path = EXAMPLES / "pipeline-zero-bubble.toml"
    small = ["parallel.schedule=gpipe-lifo", "model.layers=4", "training.microbatches=4"]
    run = CliRunner().invoke(cli.main, ["run", str(path), *(f"--set={change}" for change in small)])
    assert run.exit_code == 0 and "pipeline bubble" in run.output


def test_the_example_exporter_writes(plugged_in: None, tmp_path: Path) -> None:
    """A file is an exporter: it answers to its ending and writes what the result says."""
    lines = write(result(), tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "share,seconds" and len(lines) == 1 + len(EXPECTED)
    assert float(lines[1].split(",")[1]) == pytest.approx(EXPECTED["compute"] * US)


def test_without_the_files_there_are_no_such_plugins() -> None:
    """Nothing of the two tests above stays behind."""
    assert "gpipe-lifo" not in schedules.names()


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
def test_extending_shows_the_plugin_as_it_is(path: Path) -> None:
    """The page has the whole file, word for word."""
    assert path.read_text(encoding="utf-8").strip() in EXTENDING.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and a heading for every anchor."""
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
