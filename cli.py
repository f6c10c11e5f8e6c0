"""The command line. Each command is a file of `sim/commands`, found by its name; add a command by adding a file there.

stdout is data, stderr is talk. Exit codes: 0 good, 1 outside tolerance, 2 wrong input, 3 a mistake of prestep itself,
141 who read stdout went away.
"""

from __future__ import annotations

import click

from sim import __version__, plugins
from sim.commands._completion import completed
from sim.commands._shared import verbose
from sim.errors import InputError

COMMANDS = "sim.commands"


class Commands(click.Group):
    """The commands by the names of their files; a command is imported when it is asked for."""

    def list_commands(self, _: click.Context | None = None) -> list[str]:
        return [name.replace("_", "-") for name in plugins.discover(COMMANDS)]

    def get_command(self, _: click.Context | None, name: str) -> click.Command | None:
        try:
            module = plugins.load(COMMANDS, name)
        except InputError:
            return None  # click says so, and names what is close
        found: click.Command = module.command
        found.name = name
        return completed(verbose(found))


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: prestep run llama1b-ddp4 --set training.micro_batch=2. COMMAND -v says what it does meanwhile.",
)
@click.version_option(__version__, prog_name="prestep")
def main() -> None:
    """Predict how long a training step takes on a GPU cluster, and say why."""


if __name__ == "__main__":
    main()
