"""Write the scenario that a trainer's RECIPE is: its model, batch, layout and switches, on a cluster.

Megatron-LM's arguments, Megatron-Bridge, NeMo, NeMo Automodel, torchtitan, DeepSpeed, Hugging Face, Primus, MLPerf.
The recipe is read, never executed. A key that changes a step and is not simulated is an error, unless --lenient.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.errors import InputError
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim import files
    from prestep.sim.spec import load, openers
    from prestep.sim.studies.search import scenario_file as texts
    from prestep.workloads.recipes import _opener, _reading

GROUP = "Predict"
WIDTH = 120


@click.command(
    help=__doc__,
    epilog="Example: prestep import-recipe llama3_8b.toml --cluster dgx-h100 --hosts 64 -o job.toml",
)
@click.argument("recipe", type=click.Path(path_type=Path))
@shared.changes
@shared.file_option("-o", "--output", text="File to write; default: stdout.")
@click.option("--force", is_flag=True, help="Write over a file that exists.")
@shared.of_scenario
@shared.explained
def command(
    recipe: Path, overrides: tuple[str, ...], output: Path | None, force: bool
) -> None:
    if output is not None:
        shared.check_new(output, force)
    tables = openers.tables_of(recipe)
    opened = openers.completed(tables, recipe, overrides)
    if not isinstance(opened, _opener.Placed):
        expected = "a trainer's recipe: this is a scenario already"
        raise InputError.of(str(recipe), "", "a scenario", expected)
    scenario = load.scenario_of(tables, recipe, overrides)
    folder = (output or Path("scenario.toml")).absolute().parent
    comments = _comments(recipe, opened.recipe, opened.notes)
    text = "\n".join(comments) + "\n" + texts.text_beside(scenario, folder)
    if output is None:
        click.echo(text, nl=False)
        return
    files.write_text(output, text)
    for note in opened.notes:
        shared.talk(note)
    shared.talk(f"wrote {output}; predict it with `prestep run {output}`")


def _comments(
    path: Path, recipe: _reading.Recipe, notes: tuple[str, ...]
) -> Iterator[str]:
    """The recipe's name, what decided each key, and what was assumed."""
    yield from _wrapped(f"{path.name}, read as a recipe of {recipe.format}.")
    for setting in recipe.settings.values():
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
