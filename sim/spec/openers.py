"""Openers: files that are no scenario and become one, such as recorded programs and recipes of trainers.

An opener is a module under the entry point group `prestep.openers` with `ENDINGS`, the ends of names of its files, and
`opens(path)`, the tables of a scenario, or None for a file that is not of its kind. It may also have

* `completed(tables, path, overrides)`: the tables with what the command line decides, such as the cluster; with
  `OPTIONS` its overrides are also those that the options become;
* `unchanged(tables, overrides)`: overrides that are no change but part of the file's own run, as `whatif` has them;
* `settled(scenario)`: the scenario of a model of its kind, once it was read and before it is checked;
* `FILES`: what its files are called where another one was found, such as "a recipe";
* `OPTIONS`: options of all commands that take a scenario, as `click.option` has them, by the key of the override that
  each becomes: `{"recipe.with": {...}}` makes `--with FILE` the override `recipe.with=FILE`;
* `NEEDS_CLUSTER = True`: the file is no scenario before a cluster is named;
* `PROGRAMS = True`: the file is a program, whose layout and batch nobody can change.

What is not a function is a literal, which is read without importing the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from prestep.sim import files, plugins
from prestep.sim.errors import InputError, did_you_mean
from prestep.sim.tools import catalog

if TYPE_CHECKING:
    from prestep.sim.spec.sections import Scenario

GROUP = "prestep.openers"


#: Tables that scenarios have and files of other tools do not.
SCENARIO = ("cluster", "parallel", "jobs")


class Tables(dict[str, Any]):
    """Tables that an opener made of a file, which it knows how to complete."""

    def __init__(self, tables: Mapping[str, Any], opener: ModuleType) -> None:
        super().__init__(tables)
        self.opener = opener


@dataclass(frozen=True)
class Completed:
    """Tables of a scenario, what is still to be changed in them, and what was decided for the reader."""

    tables: Mapping[str, Any]
    overrides: tuple[str, ...]
    notes: tuple[str, ...] = ()


def options() -> dict[str, dict[str, Any]]:
    """Returns the options of all openers by the keys of their overrides."""
    tables = (literals.get("OPTIONS", {}) for literals in _literals())
    return {key: keywords for table in tables for key, keywords in table.items()}


def file_kinds() -> list[str]:
    """Returns what the files of openers are called."""
    return [literals["FILES"] for literals in _literals() if "FILES" in literals]


def _literals() -> Iterator[Mapping[str, Any]]:
    for plugin in plugins.plugins_in(GROUP).values():
        yield plugins.outline_of(plugin).constants


def opened(path: Path) -> Tables | None:
    """Returns the tables of a file by the first opener that knows it, other distributions' first; None without one.

    Raises
    ------
    InputError
        If an opener knows the file and cannot read it, or cannot be used.
    """
    openers = plugins.plugins_in(GROUP).values()
    for plugin in sorted(
        openers, key=lambda one: not (one.entry and one.entry.foreign)
    ):
        endings = plugins.outline_of(plugin).constants.get("ENDINGS", ())
        if plugin.mistakes or path.suffix.lower() in endings:
            tables = plugins.function_of(plugin, "opens")(path)
            if tables is not None:
                return Tables(tables, plugins.imported_plugin(plugin))
    return None


def opener_of(tables: Mapping[str, Any]) -> ModuleType | None:
    """Who opened the file of these tables; None of a scenario."""
    return tables.opener if isinstance(tables, Tables) else None


def completed(
    tables: Mapping[str, Any], path: Path, overrides: Sequence[str]
) -> Completed:
    """The tables of a file as its opener completes them; those of a scenario as they are.

    Raises
    ------
    InputError
        With every mistake that the opener finds, and for its options where it has none.
    """
    opener, rest = opener_of(tables), tuple(overrides)
    if not hasattr(opener, "OPTIONS"):
        rest = tuple(_without_options(overrides, path))
    if opener is None or not hasattr(opener, "completed"):
        return Completed(tables, rest)
    made: Completed = opener.completed(tables, path, rest)
    return made


def _without_options(overrides: Sequence[str], path: Path) -> Iterator[str]:
    """Overrides without options of openers, which the file has no use for; flags are for all files at once."""
    declared = options()
    rooms = {key.partition(".")[0] for key in declared}
    for item in overrides:
        key = item.partition("=")[0].strip()
        if key.partition(".")[0] not in rooms:
            yield item
        elif not declared.get(key, {}).get("is_flag"):
            value = item.partition("=")[2].strip().strip("\"'")
            expected = f"a {key.partition('.')[0]}: this is a scenario"
            raise InputError.of(str(path), key, value, expected)


def unchanged(tables: Mapping[str, Any], overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides without which the file is no scenario, or runs elsewhere."""
    opener = opener_of(tables)
    if opener is None or not hasattr(opener, "unchanged"):
        return ()
    return tuple(opener.unchanged(tables, overrides))


def settled(scenario: Scenario) -> Scenario:
    """The scenario as the opener of its model's file settles it."""
    ending = Path(scenario.model.file or "").suffix.lower()
    for plugin in plugins.plugins_in(GROUP).values() if ending else ():
        outline = plugins.outline_of(plugin)
        if "settled" in outline.functions and ending in outline.constants["ENDINGS"]:
            scenario = plugins.function_of(plugin, "settled")(scenario)
    return scenario


def _other_kind(name: str) -> str:
    """What to do with a name that is no scenario's: `init` writes one for a model, or on a cluster."""
    for kind, option in (("models", "--model"), ("clusters", "--cluster")):
        if name in catalog.names(kind):
            return f"one of `prestep list {kind}`: `prestep init {option} {name}` writes a scenario"
    return ""


def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a scenario's file.

    Raises
    ------
    InputError
        If there is no such file, or it is no TOML.
    """
    if path.suffix.lower() != ".toml" and (made := opened(path)):
        return made
    *most, last = ("a scenario file (TOML)", *file_kinds())
    expected = " or ".join(filter(None, (", ".join(most), last)))
    try:
        tables = files.toml(files.written_text(path))
        return tables if tables.keys() & SCENARIO else opened(path) or tables
    except FileNotFoundError:
        hint = _other_kind(path.name)
        if not hint:
            close = did_you_mean(path.name, catalog.names("scenarios"))
            hint = f"{close} `prestep list scenarios`".lstrip()
        raise InputError.of(str(path), "", "no such file", expected, hint) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.of(str(path), "", reason, expected) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise InputError.of(str(path), "", str(error), expected) from None
