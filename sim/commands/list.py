"""List the names that scenarios and commands take; without WHAT, what can be listed."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

import click

from prestep.sim.commands._shared import echo_json, explained
from prestep.sim.extras import lazily
from prestep.sim.tools import catalog

with lazily():
    from prestep.sim.tools import support

GROUP = "Understand a result"
LEAST = 30  # columns of text beside a name, however narrow the terminal
#: What can be listed, and what it is.
KINDS = {
    "clusters": "machines: hosts, GPUs and network ([cluster] name)",
    "models": "models with their sizes ([model] name)",
    "scenarios": "bundled jobs that `prestep run` takes by name",
    "frameworks": "who runs the step ([training] framework)",
    "schedules": "pipeline schedules ([parallel] schedule)",
    "precisions": "number formats ([training] precision)",
    "optimizers": "optimizers ([training] optimizer)",
    "gpus": "GPUs, and what the times of their kernels rest on",
    "collectives": "how GPUs exchange data, NCCL's algorithms and others",
    "algorithms": "algorithms that NCCL can be forced to",
    "topologies": "families of clusters, for cluster files",
    "routings": "how a network chooses among ways",
    "storage": "storage systems, for checkpoints and data",
    "sets": "measurements that `prestep validate` compares with",
    "exporters": "formats of a result",
    "extensions": "what adds commands, sections, readers, ... to prestep",
} | catalog.kinds_of_extensions()


@click.command(help=__doc__, epilog="Example: prestep list clusters --long")
@click.argument(
    "kind", type=click.Choice(tuple(KINDS)), required=False, metavar="[WHAT]"
)
@click.option(
    "-l",
    "--long",
    "long_",
    is_flag=True,
    help="Say what each thing is, as on a terminal.",
)
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="What each thing is, by name; of GPUs what each family of kernels rests on.",
)
@explained
def command(kind: str | None, long_: bool, json_: bool) -> None:
    on_terminal = sys.stdout.isatty()
    if json_:
        echo_json(KINDS if kind is None else _table(kind))
    elif kind is None:
        _print(KINDS, KINDS, folded=True)
    else:
        lines = _lines(kind) if long_ or on_terminal else {}
        _print(catalog.names(kind), lines, folded=on_terminal)


def _table(kind: str) -> Mapping[str, Any]:
    """What `--json` says of each name."""
    return support.matrix() if kind == "gpus" else catalog.summaries(kind)


def _lines(kind: str) -> Mapping[str, str]:
    """A line about each name."""
    if kind == "gpus":
        return {name: support.summary(name) for name in catalog.names(kind)}
    return catalog.summaries(kind)


def _print(names: Collection[str], lines: Mapping[str, str], folded: bool) -> None:
    """Prints a name a line and what is said of it; a line that is too long for the terminal goes on indented."""
    width = max(map(len, names), default=0)
    columns = max(shutil.get_terminal_size().columns, width + 2 + LEAST)
    indent = " " * (width + 2)
    for name in names:
        line = f"{name:{width}}  {lines.get(name, '')}".rstrip()
        if folded:
            line = textwrap.fill(
                line, columns, subsequent_indent=indent, break_on_hyphens=False
            )
        click.echo(line)
