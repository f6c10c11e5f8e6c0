"""The command line. Each command is a file of `sim/commands`, or a module that an entry point names.

Add a command by adding a file there, or with a line under `[prestep.commands]`: `command` is what click calls, and the
docstring is its help. Its first line stands in `prestep --help`, under the heading that `GROUP` names.

stdout is data, stderr is talk. Exit codes: 0 good, 1 outside tolerance, 2 wrong input, 3 a mistake of prestep itself,
130 stopped by Ctrl-C, 141 the reader of stdout closed the pipe.
"""

from __future__ import annotations

import re
from typing import Any

import click

from prestep.sim import __version__, plugins
from prestep.sim.commands._completion import completed
from prestep.sim.commands._shared import EXIT_INTERRUPT, verbose
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.threads import sum_alone
from prestep.sim.tools import process
from prestep.sim.tools.process import collect_rarely, keep_the_exit_code

PACKAGE = "prestep.sim.commands"
#: Headings of `--help`, in this order; a command says in `GROUP` which it belongs under.
GROUPS = (
    "Predict",
    "Your programs, traces and machines",
    "Understand a result",
    "Trust",
)
OTHER = "More"
_EXAMPLE = re.compile(r"prestep .*?(?=\. |$)", re.MULTILINE)


class Commands(click.Group):
    """The commands by the names of their files; a command is imported when it is asked for."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        process.prepare()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.MissingParameter as error:
            raise _with_example(error) from None
        except (KeyboardInterrupt, click.Abort):
            click.echo("stopped", err=True)
            keep_the_exit_code()
            ctx.exit(EXIT_INTERRUPT)

    def list_commands(self, _: click.Context | None = None) -> list[str]:
        return sorted(name.replace("_", "-") for name in plugins.discover(PACKAGE))

    def get_command(self, _: click.Context | None, name: str) -> click.Command | None:
        plugin = plugins.plugins_of(PACKAGE).get(name.replace("-", "_"))
        if plugin is None:
            return None
        command = _command(plugin)
        command.name = name
        return completed(verbose(command))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, word) is None:
            hint = did_you_mean(word, self.list_commands())
            ctx.fail(f"{word}: found no such command ({hint or 'all: prestep --help'})")
        return super().resolve_command(ctx, args)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """The commands in `--help`, by their files' `GROUP` and first line: nothing is imported for it."""
        outlines = _outlines()
        groups = dict.fromkeys((*GROUPS, *(group for group, _, _ in outlines)))
        for group in groups:
            rows = [(name, text) for of, name, text in sorted(outlines) if of == group]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


def _with_example(error: click.MissingParameter) -> click.UsageError:
    """What is missing, and the first example of the command's help."""
    epilog = (error.ctx and error.ctx.command.epilog) or ""
    example = _EXAMPLE.search(epilog)
    more = f" For example: {example[0]}" if example else ""
    return click.UsageError(f"{error.format_message()}{more}", ctx=error.ctx)


def _outlines() -> list[tuple[str, str, str]]:
    """(Group, name, first line) of every command, as its file says."""
    return [
        (outline.constants.get("GROUP", OTHER), name.replace("_", "-"), outline.summary)
        for name, outline in plugins.outlines(PACKAGE).items()
    ]


def _command(plugin: plugins.Plugin) -> click.Command:
    """What a command's module has for click; a plug-in that cannot be used ends the program with what is wrong."""
    try:
        module = plugins.imported_plugin(plugin)
        command = getattr(module, "command", None)
        if isinstance(command, click.Command):
            return command
        expected = "`command`, a click.Command"
        raise InputError(
            Mistake(plugin.source, f"{plugin.module}.command", repr(command), expected)
        )
    except InputError as error:
        click.echo(str(error), err=True)
        raise SystemExit(error.code) from None


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: prestep run llama1b-ddp4 --set training.micro_batch=2. COMMAND -v says what it does meanwhile.",
)
@click.version_option(__version__, prog_name="prestep")
def main() -> None:
    """Predict how long a training step takes on a GPU cluster, and say why."""
    sum_alone()
    collect_rarely()


if __name__ == "__main__":
    main()
