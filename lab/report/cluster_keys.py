"""The tables of a cluster file's keys in docs/cluster-files.md, from the families' own `Params`.

    python -m lab.report.cluster_keys docs/cluster-files.md

writes them between the page's markers; without a page they are printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import itertools
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import PrestepError
from prestep.sim.units import format_bandwidth, format_duration
from prestep.topologies.core.facts import KINDS, MEANINGS
from prestep.topologies.core.quantity import LinkSpec

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
HEAD = "key | value | meaning\n---|---|---"


def families() -> dict[str, ModuleType]:
    """The modules that build clusters, by name."""
    found = {
        name: plugins.load("prestep.topologies", name)
        for name in sorted(plugins.providers("prestep.topologies", "build"))
    }
    return {name: module for name, module in found.items() if hasattr(module, "Params")}


def tables() -> str:
    """Facts of every family, then the keys of each, `host` first: most others have its keys too."""
    known = families()
    order = ["host", *(name for name in known if name != "host")]
    facts = [
        f"`{key}` | {_cell(kind.written)} | {_cell(MEANINGS[key])}"
        for key, kind in KINDS.items()
    ]
    parts = ["\n".join(["### Facts of every family", "", HEAD, *facts])]
    return "\n\n".join(
        [*parts, *(_family(name, known[name], known["host"]) for name in order)]
    )


def written(page: str) -> str:
    """`page` with the tables between its markers.

    Raises
    ------
    PrestepError
        If the markers are not there, once each and in order.
    """
    if (
        page.count(BEGIN) != 1
        or page.count(END) != 1
        or page.index(BEGIN) > page.index(END)
    ):
        raise PrestepError(f"expected one {BEGIN} and after it one {END}")
    return (
        f"{page.partition(BEGIN)[0]}{BEGIN}\n{tables()}\n{END}{page.partition(END)[2]}"
    )


def _family(name: str, module: ModuleType, host: ModuleType) -> str:
    """One family: what it is, and its keys; of one that has a host's keys, those that it adds or changes."""
    extends = module is not host and issubclass(module.Params, host.Params)
    about = (inspect.getdoc(module) or "").splitlines()[0]
    also = "\n\nThe keys of `host`, and:" if extends else ""
    rows = _rows(module.Params, host.Params if extends else None)
    return "\n".join([f'### family = "{name}"', "", f"{about}{also}", "", HEAD, *rows])


def _rows(params: type, base: type | None) -> list[str]:
    """A row for each key, or for those that `params` adds to `base` or changes; neighbours that are alike share it."""
    meanings, hosts = _meanings(params), dict[str, str]()
    entries = dataclasses.fields(params)
    if base is not None:
        hosts = _meanings(base)
        meanings = hosts | meanings
        defaults = {entry.name: entry.default for entry in dataclasses.fields(base)}
        entries = tuple(
            entry for entry in entries if defaults.get(entry.name, ...) != entry.default
        )
    hints = typing.get_type_hints(params)
    rows, before = [], None
    for (meaning, default), group in itertools.groupby(
        entries, lambda one: (meanings[one.name], one.default)
    ):
        alike = list(group)
        text = "the same" if meaning == before else _cell(meaning)
        if meaning == hosts.get(alike[0].name):
            text = "as in `host`"
        before = meaning
        cells = (
            ", ".join(f"`{entry.name}`" for entry in alike),
            _value(hints[alike[0].name], default),
            text,
        )
        rows.append(" | ".join(cells))
    return rows


def _meanings(params: type) -> dict[str, str]:
    """What the section Attributes of a docstring says, by name."""
    text = (inspect.getdoc(params) or "").partition("Attributes\n----------\n")[2]
    found: dict[str, str] = {}
    for names, said in re.findall(
        r"^(\w[\w, ]*)\n((?:    .*\n?)+)", text, re.MULTILINE
    ):
        found |= dict.fromkeys(names.split(", "), " ".join(said.split()))
    return found


def _value(hint: Any, default: object) -> str:
    """Type and default; a link's bandwidth and latency say themselves what they are."""
    if isinstance(default, LinkSpec):
        bandwidth, latency = default.bandwidth.value, default.latency.value
        return f"{format_bandwidth(bandwidth)}, {format_duration(latency)}"
    names = {int: "int", str: "text", float: "number", tuple[int, ...]: "list of int"}
    if not isinstance(default, tuple):
        return f"{names[hint]}: `{default!r}`".replace("'", '"')
    alike = len(default) > 4 and len(set(default)) == 1
    shown = f"{default[0]}, ..." if alike else ", ".join(map(str, default))
    return f"{names[hint]}: [{shown}]"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the page, or prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", type=Path)
    page = parser.parse_args(arguments).page
    if page is None:
        print(tables())
    else:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
