"""What the commands share: exit codes, options that mean the same everywhere, and how errors end a command."""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import click

from prestep.sim import progress, renamed
from prestep.sim.errors import EXIT_INPUT, InputError, Mistake, PrestepError
from prestep.sim.extras import lazily, missing
from prestep.sim.spec import openers
from prestep.sim.strict import whole_number_meant
from prestep.sim.tools import process
from prestep.topologies.files.bundled import place_of

with lazily():
    from prestep.sim.analysis import cost, json_text
    from prestep.sim.tools import crash

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
POSITIVE = click.FloatRange(0, 1e9, min_open=True)
#: Of a step or a run: more say nothing new of their distribution.
MOST_REPLICAS = 10_000
STEP = 2  # columns by which the rest of a folded line is further in than its beginning
EXIT_OUTSIDE = 1
EXIT_PIPE = 128 + 13  # as of programs that SIGPIPE ends
EXIT_INTERRUPT = 128 + 2  # as of programs that SIGINT ends
#: Errors of a name that was typed, whatever is done with the file: too long, or links that lead to themselves.
NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
#: Errors of a machine or an account that has no more of something: open files, processes, memory.
TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
WORKER_KILLED = (
    "this machine: found a worker process that was killed, expected it to finish "
    "(most likely memory ran out: fewer --jobs need less)"
)
NO_MEMORY = "this machine: found no more memory, expected enough for what was asked (fewer --jobs need less)"

Command = Callable[..., Any]


def explained(command: Command) -> Command:
    """Errors that prestep can explain end the command with their text and exit code 2, without a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            with progress.shown(), renamed.told(talk):
                return command(*args, **kwargs)
        except PrestepError as error:
            click.echo(fitting(str(error), sys.stderr), err=True)
            sys.exit(error.code)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:  # `| head` has seen enough
            process.close_stdout()
            sys.exit(EXIT_PIPE)
        except Exception as error:
            reason = _outside_reason(error)
            if reason:
                click.echo(reason, err=True)
                sys.exit(EXIT_INPUT)
            if not crash.wanted():
                raise
            click.echo(crash.message(error), err=True)
            sys.exit(crash.EXIT_CRASH)

    return run


def _outside_reason(error: Exception) -> str:
    """What is wrong where prestep runs, for errors that come from there; "" for a mistake of prestep itself."""
    if isinstance(error, OSError):
        return _reason_of_system(error)
    if isinstance(error, ImportError):
        return str(missing(error) or "")
    if isinstance(error, MemoryError):
        return NO_MEMORY
    # A pool tells that a worker died, but not why. Its module is slow to import: where there was a pool, it is there.
    futures = sys.modules.get("concurrent.futures")
    if futures is not None and isinstance(error, futures.BrokenExecutor):
        return WORKER_KILLED
    return ""


def _reason_of_system(error: OSError) -> str:
    """What the operating system refused; "" where that may be prestep's doing."""
    reason = error.strerror or str(error)
    if process.cannot_be_written(error):
        process.close_stdout()
        return f"stdout: {reason}: nothing more can be written"
    if error.errno in NO_NAMES:
        expected = "a name that the file system can hold"
        return str(Mistake(str(error.filename)[:60], "", reason.lower(), expected))
    if error.errno in TOO_MANY:
        hint = "see `ulimit -a`, or ask for fewer --jobs"
        return str(Mistake("this machine", "", reason.lower(), "room for more", hint))
    return ""


def verbose(command: click.Command) -> click.Command:
    """The command with the option -v, its subcommands too."""
    text = "Say on stderr what is done and how long it takes."
    option = click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        callback=_verbose,
        help=text,
    )
    if all(param.name != "verbose" for param in command.params):
        command.params.append(option)
    for sub in command.commands.values() if isinstance(command, click.Group) else ():
        verbose(sub)
    return command


def _verbose(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        logging.basicConfig(
            level=logging.INFO,
            format="%(relativeCreated)6d ms  %(message)s",
            stream=sys.stderr,
        )
        logging.getLogger("prestep").setLevel(logging.INFO)


def changes(command: Command) -> Command:
    """The option --set, any number of times."""
    text = (
        "Change a key (training.micro_batch=4) or the cluster (nvlink.bandwidth=2x, gpu[3].clock=0.8x, nvswitch=off). "
        "May be repeated."
    )
    return click.option(
        "--set", "overrides", metavar="KEY=VALUE", multiple=True, help=text
    )(command)


def of_scenario(command: Command) -> Command:
    """Options for where a scenario runs, and those of openers (`sim/spec/openers.py`): changes made before --set."""
    declared = {key.replace(".", "_"): key for key in openers.options()}

    @functools.wraps(command)
    def changed(
        *arguments: Any,
        cluster: str | None,
        hosts: int | None,
        overrides: tuple[str, ...],
        **options: Any,
    ) -> Any:
        own = []
        for name, key in declared.items():
            value = options.pop(name)
            values = value if isinstance(value, tuple) else (value,)
            own += [f"{key}={'true' if one is True else one}" for one in values if one]
        own += [f"cluster.hosts={hosts}"] if hosts is not None else []
        own += [place_of(cluster)] if cluster is not None else []
        return command(*arguments, overrides=(*own, *overrides), **options)

    own_options = [
        click.option(
            f"--{key.partition('.')[2]}",
            key.replace(".", "_"),
            type=EXISTING if keywords.get("metavar") == "FILE" else None,
            **keywords,
        )
        for key, keywords in openers.options().items()
    ]
    text = (
        "Cluster, by name or file (.toml, .graphml, .json), in place of the scenario's."
    )
    cluster_option = click.option("--cluster", metavar="NAME|FILE", help=text)
    return together(cluster_option, scaled, *own_options)(changed)


def as_json(command: Command) -> Command:
    """The option --json."""
    return click.option(
        "--json", "json_", is_flag=True, help="JSON on stdout, in seconds and bytes."
    )(command)


class Count(click.IntRange):
    """A whole number from 1 on; what stands for one ("8k") is answered with what to write."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N"

    def _describe_range(self) -> str:
        return ""  # that counts begin with 1 needs no saying

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if number < 1:
            meant = whole_number_meant(value, (param.name or "") if param else "")
            expected = f"a whole number from 1 on{f' ({meant})' if meant else ''}"
            self.fail(f"found {str(value)!r}, expected {expected}", param, ctx)
        return number


def scaled(command: Command) -> Command:
    """The option --hosts."""
    text = "Hosts of the cluster, where its family scales; default: as its file says."
    return click.option("--hosts", type=Count(), help=text)(command)


def coloured() -> bool:
    """Whether stdout is a terminal whose reader has not asked for plain text (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def echo_json(value: object) -> None:
    click.echo(json_text.text_of(value))


def talk(text: str) -> None:
    progress.clear()
    click.echo(fitting(text, sys.stderr), err=True)


def misused(option: str, found: str, expected: str, hint: str = "") -> InputError:
    """The error of an option that does not go with the others."""
    return InputError.of("command line", option, found, expected, hint)


def check_new(output: Path, force: bool) -> None:
    """Raises InputError for an output that exists, unless --force is given."""
    if output.exists() and not force:
        hint = "--force writes over it"
        raise misused("--output", str(output), "a file that does not exist", hint)


def options(texts: Mapping[Any, str], **settings: Any) -> Callable[[Command], Command]:
    """Options that differ in names and help alone; `settings` are the arguments of click for each.

    A key is one name or a tuple of names.

    Examples
    --------
    >>> counts = {"--spares": "Spare hosts.", ("--hosts", "--nodes"): "Hosts."}
    >>> command = options(counts, type=int)(click.Command("run"))
    >>> sorted(parameter.name for parameter in command.params)
    ['hosts', 'spares']
    """

    def added(command: Command) -> Command:
        for names, text in reversed([*texts.items()]):
            declared = (names,) if isinstance(names, str) else names
            command = click.option(*declared, help=text, **settings)(command)
        return command

    return added


def together(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator; help lists them in this order."""
    return lambda command: functools.reduce(
        lambda decorated, add: add(decorated), reversed(decorators), command
    )


def file_option(
    *names: str, text: str, **settings: Any
) -> Callable[[Command], Command]:
    """The option of a file, which is read or written; `settings` are further ones of click."""
    file = click.Path(dir_okay=False, path_type=Path)
    return click.option(*names, type=file, help=text, **settings)


def new_file(usual: str) -> Callable[[Command], Command]:
    """The options --output, with a usual name, and --force."""
    return together(
        file_option(
            *("-o", "--output"),
            text="File to write.",
            default=Path(usual),
            show_default=True,
        ),
        click.option("--force", is_flag=True, help="Write over a file that exists."),
    )


def processes(text: str) -> Callable[[Command], Command]:
    """The option --jobs."""
    return click.option(
        "--jobs", default=2, show_default=True, type=click.IntRange(1), help=text
    )


def energy_prices(command: Command) -> Command:
    """`--price-per-kwh` and `--pue`."""
    return together(
        click.option(
            "--price-per-kwh",
            type=POSITIVE,
            metavar="PRICE",
            help="Of energy: GPUs, hosts and switches.",
        ),
        click.option(
            "--pue",
            type=click.FloatRange(1, 10),
            default=1.0,
            show_default=True,
            help="Energy of the data centre over that of its machines.",
        ),
    )(command)


def priced(command: Command) -> Command:
    """Prices of GPUs and energy, for what a step costs."""
    text = "Of a GPU for an hour: the cost of the step, and of a million tokens."
    option = click.option(
        "--price-per-gpu-hour", type=POSITIVE, metavar="PRICE", help=text
    )
    return option(energy_prices(command))


def prices_of(
    price_per_gpu_hour: float | None,
    price_per_kwh: float | None,
    pue: float,
    energy: bool = False,
    **_: Any,
) -> cost.Prices | None:
    """The prices of the command line; None where nothing of the kind was asked for."""
    prices = cost.Prices(price_per_gpu_hour, price_per_kwh, pue)
    return prices if energy or prices != cost.Prices() else None


def rank_by(command: Command) -> Command:
    """`--rank-by`."""
    return click.option(
        "--rank-by",
        type=click.Choice(["time", "energy", "cost"]),
        help="What the best has least of. Default: time; of a capture with prices cost.",
    )(command)


def show_page(text: str) -> None:
    """Print a page on stdout."""
    click.echo(fitting(text, sys.stdout))


def show_result(
    json_: bool, table: Callable[[], object], page: Callable[[], str]
) -> None:
    """Prints a result on stdout: with --json its table, else its page for people."""
    if json_:
        echo_json(table())
    else:
        show_page(page())


def fitting(text: str, stream: IO[str]) -> str:
    """A text for a stream: folded where that is a terminal."""
    if not stream.isatty():
        return text
    return folded(text, shutil.get_terminal_size().columns)


def folded(text: str, columns: int) -> str:
    """A text with no line longer than so many columns; what has no space to break at stays whole."""
    return "\n".join(
        part for line in text.split("\n") for part in _parts(line, columns)
    )


def _parts(line: str, columns: int) -> Iterator[str]:
    if len(line) <= columns or "\x1b" in line:  # who colours a line has fitted it
        yield line
    elif not line.strip("- ."):  # a rule
        yield line[:columns]
    else:
        start = " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(
            line,
            columns,
            subsequent_indent=start + " " * STEP,
            break_long_words=False,
            break_on_hyphens=False,
        )
