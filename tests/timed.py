"""A plug-in of pytest that writes down which tests take more than 0.3 s of a processor: `make test` leaves them out.

`make timed` runs all tests with it. Tests that did not run keep their lines in slow.txt; children's time counts. Of a test
whose cases together take more than 4 s, the longest are left to the night (night.txt, `make night`): CI runs the others.
What each file takes is written to seconds.txt: where to look when the suite has become slow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Ids of tests, a line each, sorted.
SLOW = Path(__file__).with_name("slow.txt")
#: Ids of those that run at night.
NIGHT = Path(__file__).with_name("night.txt")
#: Seconds of a processor by file, the longest first.
SECONDS = Path(__file__).with_name("seconds.txt")
#: Seconds of a processor.
MOST = 0.3
#: The same, for all cases of one test.
MOST_OF_ONE = 4.0
PROPERTY = "seconds of a processor"
_BEGUN = pytest.StashKey[float]()
_TAKEN: dict[str, float] = {}


def listed(path: Path) -> frozenset[str]:
    """Ids of the tests that took long when they were last timed."""
    return frozenset(path.read_text(encoding="utf-8").splitlines())


def updated(before: frozenset[str], taken: dict[str, float]) -> list[str]:
    """The list after a run, in which tests took so many seconds.

    Ids that name a file of one machine are left out: such tests are marked by hand.

    Examples
    --------
    >>> updated(frozenset({"a", "b"}), {"b": 0.2, "c": 2.0, "d[/usr/bin/python3]": 3.0})
    ['a', 'c']
    """
    long = {name for name, seconds in taken.items() if seconds > MOST}
    return sorted(name for name in (before - taken.keys()) | long if "[/" not in name)


def longest(before: frozenset[str], taken: dict[str, float]) -> list[str]:
    """The list of the night after a run: of each test the longest cases, such that the others take 4 s; never all of them.

    Examples
    --------
    >>> longest(frozenset({"c[1]"}), {"a[1]": 19.0, "a[2]": 2.0, "a[3]": 1.0, "b": 90.0})
    ['a[1]', 'c[1]']
    """
    cases: dict[str, list[str]] = {}
    for name in sorted(taken, key=taken.__getitem__):
        cases.setdefault(name.partition("[")[0], []).append(name)
    night = {name for name in before if name.partition("[")[0] not in cases}
    for names in cases.values():
        total = 0.0
        for name in names:
            total += taken[name]
            if total > MOST_OF_ONE and name != names[0] and "[/" not in name:
                night.add(name)
    return sorted(night)


def table(taken: dict[str, float]) -> str:
    """Seconds of quick and of slow tests by file, the longest first, under their sums.

    Examples
    --------
    >>> print(table({"a.py::x": 0.25, "a.py::y": 3.0, "b.py::z": 4.0}), end="")
       quick     slow  tests
         0.2      7.0      3  all
         0.0      4.0      1  b.py
         0.2      3.0      2  a.py
    """
    rows: dict[str, tuple[float, float, int]] = {}
    for name, seconds in taken.items():
        quick, slow = (seconds, 0.0) if seconds <= MOST else (0.0, seconds)
        for key in ("all", name.partition("::")[0]):
            before = rows.get(key, (0.0, 0.0, 0))
            rows[key] = before[0] + quick, before[1] + slow, before[2] + 1
    lines = sorted(rows.items(), key=lambda row: -sum(row[1][:2]))
    text = (f"{q:8.1f} {s:8.1f} {n:6}  {key}\n" for key, (q, s, n) in lines)
    return "".join([f"{'quick':>8} {'slow':>8} {'tests':>6}\n", *text])


def _processor() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Notes when the test began, fixtures included."""
    item.stash[_BEGUN] = _processor()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Adds what it took to its report, which also travels from a worker to the controller.

    Before fixtures end: what a module's processes took for all its tests is not the last one's.
    """
    taken = _processor() - item.stash[_BEGUN]
    item.user_properties.append((PROPERTY, taken))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Reads it from the report, in the process that has all of them."""
    if report.when == "teardown":
        _TAKEN[report.nodeid] = float(dict(report.user_properties)[PROPERTY])  # type: ignore[arg-type]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the list and the table, once."""
    if not hasattr(session.config, "workerinput"):
        night = longest(listed(NIGHT), _TAKEN)
        for path, names in ((SLOW, updated(listed(SLOW), _TAKEN)), (NIGHT, night)):
            path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        SECONDS.write_text(table(_TAKEN), encoding="utf-8")
