"""What `prestep list` does."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping
from types import ModuleType

import click

from prestep.sim import plugins
from prestep.sim.commands._shared import echo_json
from prestep.sim.tools.catalog import names, summaries

LEAST = 30  # columns of text beside a name, however narrow the terminal


def show(kind: str, long_: bool, json_: bool) -> None:
    """Names alone for a program that reads them; what each thing is for a person, or who asks for it."""
    if json_:
        echo_json(_gpus().matrix() if kind == "gpus" else summaries(kind))
        return
    person = sys.stdout.isatty()
    listed = names(kind)
    lines = _lines(kind) if long_ or person else {}
    width = max((len(name) for name in listed), default=0)
    for name in listed:
        line = f"{name:{width}}  {lines.get(name, '')}".rstrip()
        click.echo(_wrapped(line, width + 2) if person else line)


def show_kinds(kinds: Mapping[str, str], json_: bool) -> None:
    """What can be listed, with what it is."""
    if json_:
        echo_json(dict(kinds))
        return
    width = max(map(len, kinds))
    for kind, text in kinds.items():
        click.echo(_wrapped(f"{kind:{width}}  {text}", width + 2))


def _lines(kind: str) -> dict[str, str]:
    """A line about each name."""
    if kind == "gpus":
        gpus = _gpus()
        return {name: gpus.summary(name) for name in names(kind)}
    return summaries(kind)


def _gpus() -> ModuleType:
    """What is known of GPUs: tables that take most of a second to load, and that other kinds do not need."""
    return plugins.load("prestep.sim.tools", "support")


def _wrapped(line: str, indent: int) -> str:
    """A line as a terminal is wide; where it goes on, it is indented."""
    columns = max(shutil.get_terminal_size().columns, indent + LEAST)
    return textwrap.fill(
        line, columns, subsequent_indent=" " * indent, break_on_hyphens=False
    )
