"""What all tests share: settings of hypothesis, and reports of whole sets, which take minutes and are made once."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.spec.sections import Measured, Scenario
from prestep.sim.tools.process import collect_rarely
from prestep.topologies.files import library
from tests import timed

if TYPE_CHECKING:
    from tests.browser import Page

# As the command line does.
collect_rarely()
# A command asks for a few clusters, the tests for all of them, in any order.
library.SHARED.most = 100
# How long an example takes depends on the machine, not on the program: time is measured by benchmarks.
settings.register_profile("prestep", deadline=None, max_examples=30)
# What CI refuses, everybody can repeat; `make hunt` looks for new examples, and for more of them, each night.
settings.register_profile(
    "prestep-ci", settings.get_profile("prestep"), derandomize=True
)
settings.register_profile("prestep-hunt", deadline=None, max_examples=100)
settings.load_profile(
    os.environ.get(
        "PRESTEP_EXAMPLES", "prestep-ci" if "CI" in os.environ else "prestep"
    )
)

#: The tests of what is no part of the product.
LAB = Path(__file__).parent / "lab"
#: Name of a set -> the report of its kind.
ReportOf = Callable[[str], Any]
#: Scenario -> its prediction, without what only pictures show.
Step = Callable[[Scenario], Prediction]
#: Name, and what makes it -> what it made.
MadeOnce = Callable[[str, Callable[[], Any]], Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of tests/lab are the laboratory's, those of the list slow. The longest begin first; the order of others stays."""
    slow, night = timed.listed(timed.SLOW), timed.listed(timed.NIGHT)
    for item in items:
        if item.path.is_relative_to(LAB):
            item.add_marker("lab")
        if item.nodeid in slow:
            item.add_marker("slow")
        if item.nodeid in night and not item.get_closest_marker("daily"):
            item.add_marker("night")
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


def pytest_collection_finish() -> None:
    """What was collected lives until the end: searches for garbage, a sixth of the time, need not walk it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of this test run, for all of its processes."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def made_once(run_folder: Path) -> MadeOnce:
    """What a function returns: called by the first process that asks for the name, once in a run."""
    read: dict[str, Any] = {}

    def made(name: str, make: Callable[[], Any]) -> Any:
        if name not in read:
            kept = run_folder / f"{name}.made"
            with (run_folder / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not kept.exists():
                    kept.write_bytes(pickle.dumps(make()))
            read[name] = pickle.loads(kept.read_bytes())
        return read[name]

    return made


@pytest.fixture(scope="session")
def step_once(made_once: MadeOnce) -> Step:
    """The step of a row's scenario: sets have rows in common, and pages predict rows that are in sets.

    Tests that compare two ways to a prediction have none of it.
    """
    from prestep.sim.predict import predict

    def small(scenario: Scenario) -> Prediction:
        step = replace(predict(scenario), timeline=None, details=None)
        return replace(step, critical_path=None, link_loads=())

    def step(scenario: Scenario) -> Prediction:
        if (
            scenario.cluster.file or scenario.model.file
        ):  # which may be another tomorrow
            return predict(scenario)
        asked = repr(replace(scenario, where="", name="", measured=Measured()))
        name = hashlib.sha256(asked.encode()).hexdigest()
        one: Prediction = made_once(f"step {name}", lambda: small(scenario))
        return one

    return step


@pytest.fixture(scope="session")
def report_of(made_once: MadeOnce, step_once: Step) -> ReportOf:
    """The report of a bundled set, as `prestep validate` makes it; `PRESTEP_KEEP_REPORTS` names a folder that has them after
    the run, so that `.ci/run` compares them with a base and predicts nothing twice (lab/report/kept.py)."""
    from lab.report import kept
    from lab.sets import steps
    from prestep.validation.sets import sets

    folder = os.environ.get("PRESTEP_KEEP_REPORTS")

    def make(name: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "predicted", step_once)
            report = sets.validate(name)
        if folder:
            kept.keep(Path(folder), report)
        return report

    return lambda name: made_once(f"report {name}", lambda: make(name))


@pytest.fixture(scope="session")
def browser_page() -> Iterator[Page]:
    """A page of a browser that all tests of a process share; each opens what it looks at."""
    from tests.browser import CHROMIUM, browser

    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with browser() as page:
        yield page


@pytest.fixture
def known_reports(
    report_of: ReportOf, step_once: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prestep validate SET` takes the report of a bundled set from `report_of`; other rows it predicts, each once."""
    from lab.sets import steps
    from prestep.validation.sets import sets

    def validate(name: str, rows: Path | None = None, jobs: int = 1) -> Any:
        bundled = rows is None and name in sets.set_names()
        return report_of(name) if bundled else sets.validate(name, rows, jobs)

    monkeypatch.setattr("prestep.validation.command.validate", validate)
    monkeypatch.setattr(steps, "predicted", step_once)
