"""What the shell offers after <TAB>: bundled names beside files, keys of a scenario after --set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

import click
from click.shell_completion import CompletionItem

from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.spec import sections
    from prestep.sim.tools import catalog

#: Which names a parameter takes, by what it is called.
KINDS = {
    "scenario": "scenarios",
    "cluster": "clusters",
    "sets": "sets",
    "system": "storage",
}


class Named(click.types.StringParamType):
    """A text for which there are names to offer; where none fits, files."""

    def __init__(
        self, offered: Callable[[], Iterable[str]], files: bool = True
    ) -> None:
        self.offered, self.files = offered, files

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so; files beside them, or where there is a path already."""
        items = [
            CompletionItem(name)
            for name in self.offered()
            if name.startswith(incomplete)
        ]
        if items or not self.files:
            return items
        return [CompletionItem(incomplete, type="file")]


def completed(command: click.Command) -> click.Command:
    """The command with something to offer for scenarios, clusters, sets and --set, its subcommands too."""
    for param in command.params:
        if not isinstance(param.type, click.types.StringParamType) or isinstance(
            param.type, Named
        ):
            continue
        name = param.name or ""
        if name in KINDS:
            param.type = Named(lambda kind=KINDS[name]: catalog.names(kind))  # type: ignore[misc]
        elif name == "overrides":
            param.type = Named(_keys, files=False)
    for sub in command.commands.values() if isinstance(command, click.Group) else ():
        completed(sub)
    return command


def _keys() -> Iterator[str]:
    """`section.key=` of every key, and the attributes that what-ifs change."""
    yield from (
        f"{section}.{entry.name}="
        for section, cls in sections.SECTIONS.items()
        for entry in fields(cls)
    )
    yield from (
        f"{kind}.{value}="
        for kind in ("nvlink", "nic", "spine", "pcie")
        for value in ("bandwidth", "latency")
    )
    gpu = ("flops", "hbm_bandwidth", "clock", "power_limit")
    yield from (f"gpu.{value}=" for value in gpu)
