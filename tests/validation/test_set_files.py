"""Laws of a set's own files: set.toml, fitted.toml, tolerances.toml and limits.toml are read as strictly as scenarios."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab import CASES
from lab.report import collectives as collective_report
from lab.report import published as published_report
from lab.report.collectives import Limits
from lab.report.tolerances import TOLERANCES, Tolerances
from lab.sets import step_sets
from prestep import cli
from prestep.sim import schema
from prestep.sim.errors import InputError
from prestep.validation.sets import sets, sources
from tests.sample import together

LIMITS = sorted(CASES.glob("*/*.toml"))
FILES: list[tuple[Path, schema.Schema]] = [
    *((path, sources.SetFile()) for path in LIMITS if path.name == "set.toml"),
    *((path, step_sets.FITTED) for path in LIMITS if path.name == "fitted.toml"),
    *((path, TOLERANCES) for path in LIMITS if path.name == "tolerances.toml"),
    *(
        (path, collective_report.LIMITS)
        for path in sorted(CASES.glob("*collectives*/limits.toml"))
    ),
    (CASES / "published" / "limits.toml", published_report.LIMITS),
]


def keys_of(
    table: Any, above: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """Paths of all keys of a table, of the tables in it and of those in its lists."""
    pairs = table.items() if isinstance(table, Mapping) else enumerate(table)
    for key, value in pairs:
        if isinstance(key, str):
            yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from keys_of(value, (*above, key))


def misspelt(table: Any, path: tuple[str | int, ...]) -> Any:
    """The table with one letter more at the end of one key."""
    name, *rest = path
    if rest:
        changed = list(table) if isinstance(table, list) else dict(table)
        changed[name] = misspelt(table[name], tuple(rest))
        return changed
    return {f"{key}x" if key == name else key: value for key, value in table.items()}


@together(("path", "rules"), FILES)
def test_a_misspelt_key_is_a_mistake_with_its_place(
    path: Path, rules: schema.Schema
) -> None:
    """Every key of every bundled file, with a letter too many, is a mistake that names file and key."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert not [*rules.mistakes(str(path), "", table)]
    free = rules is collective_report.LIMITS  # its tables are patterns of slices
    for key in keys_of(table):
        # Keys are parts of files' names, links of a cluster, or words of a section.
        named = key[:-1] in (("clusters",), ("sections",)) or key[-2:-1] == ("set",)
        if not named and not (free and len(key) == 1):
            wrong = [*rules.mistakes(str(path), "", misspelt(table, key))]
            assert f"{key[-1]}x" in str(InputError(wrong))
            assert {mistake.where for mistake in wrong} == {str(path)}


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sets with h200's limits and no set of its own."""

    def folders() -> dict[str, Path]:
        return {path.parent.name: path.parent for path in tmp_path.glob("*/set.toml")}

    monkeypatch.setattr(sets, "folders", folders)
    return tmp_path


def written(cases: Path, name: str, text: str, file: str = "set.toml") -> None:
    (cases / name).mkdir(exist_ok=True)
    (cases / name / file).write_text(text, encoding="utf-8")


def validated(name: str) -> str:
    """What `prestep validate` answers to a mistake: exit code 2 and no traceback."""
    result = CliRunner().invoke(cli.main, ["validate", name])
    assert result.exit_code == 2 and "Traceback" not in result.output
    return result.stderr


def test_all_mistakes_of_a_set_are_reported_together(cases: Path) -> None:
    """Unknown keys, wrong types and what is missing, each with its place, from the command too."""
    written(cases, "mine", 'titel = "Mine"\nrows = "a.jsonl"\nbase = 3\n')
    answer = validated("mine")
    for key in ("titel", "title", "rows", "base"):
        assert f"mine/set.toml: {key}: found" in answer
    assert 'did you mean "title"?' in answer


def test_a_kind_that_there_is_not_is_a_mistake(cases: Path) -> None:
    """Close kinds are suggested."""
    written(cases, "mine", 'title = "Mine"\nkind = "colectives"\n')
    assert 'did you mean "collectives"?' in validated("mine")


def test_every_kind_of_set_has_a_module() -> None:
    """Of its name, with the function that judges it."""
    for kind in sources.kinds():
        assert callable(sources.module_of(kind).validate_set)


def test_two_packages_with_one_kind_are_a_mistake_that_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kind has one meaning: whose it is would depend on the order of installation."""
    monkeypatch.setattr(sources, "_kinds_of", lambda source: {"steps": sources.Kind})
    monkeypatch.setattr(sources, "sources", lambda: ("prestep.validation", "other"))
    with pytest.raises(InputError, match=r"other.*validation has a kind"):
        sources.kinds.__wrapped__()


def test_collectives_without_limits_are_a_mistake_that_says_what_to_do(
    cases: Path,
) -> None:
    """A set of collectives has no usual limits: its file, or that of another set, is named."""
    written(cases, "mine", 'title = "Mine"\nkind = "collectives"\nrows = ["a.jsonl"]\n')
    answer = validated("mine")
    assert "mine/set.toml: limits: found no limits.toml" in answer
    assert 'such as "collectives/limits.toml"' in answer


def test_tolerances_say_everything_and_nothing_else(tmp_path: Path) -> None:
    """A table left out, a misspelt figure and a text for a number are reported together."""
    path = tmp_path / "tolerances.toml"
    path.write_text(
        'noisy_spread = "0.2"\n[step]\nmape = 0.05\nfamily_mape = 0.06\nbais = 0.02\nworst = 0.15\n'
        "[memory]\nmape = 0.05\nworst = 0.12\n"
    )
    with pytest.raises(InputError) as caught:
        Tolerances.read(path)
    assert {mistake.key for mistake in caught.value.mistakes} == {
        "noisy_spread",
        "step.bais",
        "step.bias",
        "noisy",
    }


def test_limits_of_collectives_are_figures_by_slice(tmp_path: Path) -> None:
    """A figure that there is not, and a limit that is no table, are reported together."""
    path = tmp_path / "limits.toml"
    path.write_text('"Ring-*" = { maen = 0.1 }\n"Tree-*" = 0.1\n')
    with pytest.raises(InputError) as caught:
        Limits.read(path)
    assert {mistake.key for mistake in caught.value.mistakes} == {
        "Ring-*.maen",
        "Tree-*",
    }


def test_sources_of_constants_are_rows_and_files_that_are_there(cases: Path) -> None:
    """Rows and files that fitted.toml names and nobody has are reported together."""
    shutil.copytree(CASES / "h200", cases / "h200")
    assert step_sets.load_set("h200").fitted
    text = (cases / "h200" / "fitted.toml").read_text(encoding="utf-8")
    wrong = text.replace('"1b-single-b2"', '"1b-singel-b2"')
    wrong = wrong.replace('"kernels_1gpu.jsonl"', '"kernel_1gpu.jsonl"')
    written(cases, "h200", wrong, "fitted.toml")
    with pytest.raises(InputError) as caught:
        _ = step_sets.load_set("h200").fitted
    assert {mistake.key for mistake in caught.value.mistakes} == {"rows", "steps_of"}
    assert 'did you mean "kernels_1gpu.jsonl"?' in str(caught.value)
