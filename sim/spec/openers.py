"""Openers: files that are no scenario and become one, such as recorded programs and recipes of trainers.

An opener is a module under the entry point group `prestep.openers` with `ENDINGS`, the ends of names of its files, and
`opens(path)`, the tables of a scenario, or None for a file that is not of its kind. It may also have

* `completed(tables, path, overrides)`: the tables with what the command line decides, such as the cluster; with
  `OPTIONS = True` its overrides are also those that begin with `recipe.`, which no scenario has;
* `unchanged(tables, overrides)`: overrides that are no change but part of the file's own run, as `whatif` has them;
* `settled(scenario)`: the scenario of a model of its kind, once it was read and before it is checked;
* `NEEDS_CLUSTER = True`: the file is no scenario before a cluster is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from prestep.sim import plugins
from prestep.sim.errors import InputError, Mistake

if TYPE_CHECKING:
    from prestep.sim.spec.sections import Scenario

GROUP = "prestep.openers"
#: Overrides for an opener: one more file of the job, a function of it, and to go on without what is not simulated.
OPTION, LENIENT = "recipe.", "recipe.lenient"


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
    if not getattr(opener, "OPTIONS", False):
        keys = {item: item.partition("=")[0].strip() for item in overrides}
        options = [item for item in overrides if keys[item].startswith(OPTION)]
        if wrong := [item for item in options if keys[item] != LENIENT]:
            value = wrong[0].partition("=")[2].strip().strip("\"'")
            expected = "a recipe: this is a scenario"
            raise InputError(Mistake(str(path), keys[wrong[0]], value, expected))
        rest = tuple(item for item in overrides if item not in options)
    if opener is None or not hasattr(opener, "completed"):
        return Completed(tables, rest)
    made: Completed = opener.completed(tables, path, rest)
    return made


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
