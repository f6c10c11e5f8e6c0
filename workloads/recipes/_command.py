"""What `prestep import-recipe` does: the scenario of a recipe as a file, and what was assumed as comments above it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from prestep.sim import files
from prestep.sim.commands._shared import misused, talk
from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec import recipes
from prestep.sim.spec.load import scenario_of
from prestep.sim.spec.scenario_file import tables_of
from prestep.sim.studies.search.scenario_file import text_beside
from prestep.workloads.recipes._reading import Recipe

WIDTH = 120


def import_recipe(
    recipe: Path, overrides: tuple[str, ...], output: Path | None, force: bool
) -> None:
    if output is not None and output.exists() and not force:
        hint = "--force writes over it"
        raise misused("--output", str(output), "a file that does not exist", hint)
    tables = tables_of(recipe)
    opened = recipes.opened(tables, recipe, overrides)
    if opened.recipe is None:
        expected = "a trainer's recipe: this is a scenario already"
        raise InputError(Mistake(str(recipe), "", "a scenario", expected))
    scenario = scenario_of(tables, recipe, overrides)
    folder = (output or Path("scenario.toml")).absolute().parent
    comments = _comments(recipe, opened.recipe, opened.notes)
    text = "\n".join(comments) + "\n" + text_beside(scenario, folder)
    if output is None:
        click.echo(text, nl=False)
        return
    files.write_text(output, text)
    for note in opened.notes:
        talk(note)
    talk(f"wrote {output}; predict it with `prestep run {output}`")


def _comments(path: Path, recipe: Recipe, notes: tuple[str, ...]) -> Iterator[str]:
    """The recipe's name, what decided each key, and what was assumed."""
    yield from _wrapped(f"{path.name}, read as a recipe of {recipe.format}.")
    for setting in recipe.settings:
        if setting.said != "default":
            line = setting.where.removeprefix(recipe.where).strip(":")
            place = f", line {line}" if line.isdecimal() else ""
            yield from _wrapped(f"{setting.key}: {setting.said}{place}")
    for note in notes:
        yield from _wrapped(f"! {note}")


def _wrapped(text: str) -> list[str]:
    """A comment of as many lines as it takes; nothing in it can end the comment."""
    plain = " ".join(text.split())
    return textwrap.wrap(plain, WIDTH, initial_indent="# ", subsequent_indent="#   ")
