"""The list of slow tests: what it keeps, and that it names tests that there are."""

from __future__ import annotations

from pathlib import Path

from tests import timed

ROOT = Path(__file__).parents[1]


def test_a_run_replaces_what_it_timed_and_keeps_the_rest() -> None:
    """Tests that became quick leave the list, those that did not run stay, and no line names a file of one machine."""
    taken = {"b": 0.2, "c": 2.0, "d[/usr/bin/python3]": 3.0}
    assert timed.updated(frozenset({"a", "b"}), taken) == ["a", "c"]


def test_every_slow_test_is_one_that_there_is() -> None:
    """Files and functions: a line that rots would let its test into `make test` in silence."""
    texts: dict[str, str] = {}
    for name in (*timed.listed(timed.SLOW), *timed.listed(timed.NIGHT)):
        file, *_, function = name.partition("[")[0].split("::")
        text = texts.setdefault(file, (ROOT / file).read_text(encoding="utf-8"))
        assert f"def {function}(" in text, name


def test_the_list_is_sorted_and_has_every_test_once() -> None:
    """So that two branches change it in different places."""
    for path in (timed.SLOW, timed.NIGHT):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines == sorted(set(lines))


def test_each_test_has_cases_by_day() -> None:
    """The longest go to the night until the others take 4 s; one case alone stays, and what did not run keeps its line."""
    taken = {"a[1]": 19.0, "a[2]": 2.0, "a[3]": 1.0, "b[1]": 90.0, "b[2]": 91.0}
    assert timed.longest(frozenset({"a[3]", "c[1]"}), taken) == ["a[1]", "b[2]", "c[1]"]


def test_what_is_left_to_the_night_is_slow() -> None:
    """`make test` leaves it out as well."""
    assert timed.listed(timed.NIGHT) <= timed.listed(timed.SLOW)


def test_the_table_adds_up() -> None:
    """Quick and slow tests apart, by file, and the sum of all: by hand."""
    taken = {"a.py::x[1]": 0.25, "a.py::x[2]": 0.25, "a.py::y": 3.0, "b.py::z": 4.0}
    assert [line.split() for line in timed.table(taken).splitlines()] == [
        ["quick", "slow", "tests"],
        ["0.5", "7.0", "4", "all"],
        ["0.0", "4.0", "1", "b.py"],
        ["0.5", "3.0", "3", "a.py"],
    ]
