"""The command line. Each command is a file of `sim/commands` or `validation/commands`, found by its name.

Add a command by adding a file there: `command` is what click calls, and the docstring is its help.
The docstring's first line stands in `prestep --help`.

stdout is data, stderr is talk. Exit codes: 0 good, 1 outside tolerance, 2 wrong input, 3 a mistake of prestep itself,
141 who read stdout went away.
"""

from __future__ import annotations

import gc

import click

from sim import __version__, plugins
from sim.commands._completion import completed
from sim.commands._shared import verbose

PACKAGES = ("sim.commands", "validation.commands")
# Objects made between two searches for cycles of garbage: Python's 700 cost a sixth of a prediction, which has few.
BETWEEN_COLLECTIONS = 100_000


class Commands(click.Group):
    """The commands by the names of their files; a command is imported when it is asked for."""

    def list_commands(self, _: click.Context | None = None) -> list[str]:
        return sorted(name.replace("_", "-") for name in _packages())

    def get_command(self, _: click.Context | None, name: str) -> click.Command | None:
        package = _packages().get(name.replace("-", "_"))
        if package is None:
            return None  # click says so, and names what is close
        command: click.Command = plugins.load(package, name).command
        command.name = name
        return completed(verbose(command))

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """The table of commands in `--help`, from their files' first lines: nothing is imported for it."""
        summaries = {
            name.replace("_", "-"): summary
            for package in PACKAGES
            for name, summary in plugins.summaries(package).items()
        }
        width = formatter.width - 6 - max(map(len, summaries))
        rows = [
            (name, click.Command(name, help=summary).get_short_help_str(width))
            for name, summary in sorted(summaries.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _packages() -> dict[str, str]:
    """The package of every command's file."""
    return {name: package for package in PACKAGES for name in plugins.discover(package)}


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: prestep run llama1b-ddp4 --set training.micro_batch=2. COMMAND -v says what it does meanwhile.",
)
@click.version_option(__version__, prog_name="prestep")
def main() -> None:
    """Predict how long a training step takes on a GPU cluster, and say why."""
    gc.set_threshold(BETWEEN_COLLECTIONS)


if __name__ == "__main__":
    main()
