"""The table of a scenario's keys in docs/scenarios.md, from the same fields that read the file.

    python -m lab.report.scenario_keys docs/scenarios.md

writes it between the page's markers; without a page it is printed.
"""

from __future__ import annotations

import argparse
import inspect
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal

from prestep.sim import units
from prestep.sim.errors import PrestepError
from prestep.sim.spec.sections import SECTIONS
from prestep.sim.strict import has_keys, type_hints
from prestep.sim.tools import catalog

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
HEAD = "key | value | meaning\n---|---|---"
_UNITS = {
    "bytes": '"25 MiB"',
    "bandwidth": '"100 GB/s"',
    "duration": '"1 ms"',
}
_FORMATS = {
    "bytes": units.format_bytes,
    "bandwidth": units.format_bandwidth,
    "duration": units.format_duration,
}
_TYPES = {str: "text", int: "int", float: "number", bool: "bool"}


def tables() -> str:
    """A Markdown table for every section, in the order of the sections."""
    return "\n\n".join(_section(name, cls) for name, cls in SECTIONS.items())


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


def _section(name: str, cls: type) -> str:
    return "\n".join([f"### [{name}]\n\n{inspect.getdoc(cls)}\n", HEAD, *_rows(cls)])


def _rows(cls: type) -> Iterator[str]:
    hints = type_hints(cls)
    for entry in fields(cls):
        cells = (
            f"`{entry.name}`",
            _cell(_value(entry, hints[entry.name]), _default(entry)),
            entry.metadata["doc"],
        )
        yield " | ".join(cell.replace("|", r"\|") for cell in cells)


def _cell(value: str, default: str) -> str:
    """What may be written, with the default in bold; of a switch the default alone."""
    if not default:
        return value
    bold = f"**{default}**"
    if value == "bool":
        return bold
    words = value.split(", ")
    if default in words:
        return ", ".join(bold if word == default else word for word in words)
    return f"{value}: {bold}"


def _value(entry: Field[Any], hint: Any) -> str:
    """What may be written, with its least; the schema has what is beyond any machine."""
    if entry.metadata["names"]:
        return ", ".join(catalog.names(entry.metadata["names"]))
    unit = entry.metadata["unit"]
    told = _UNITS[unit] if unit else _type(hint)
    low, above = entry.metadata["low"], entry.metadata["above"]
    if low is not None:
        return f"{told}\N{NO-BREAK SPACE}≥\N{NO-BREAK SPACE}{low:g}"
    if above is not None and not unit:
        return f"{told}\N{NO-BREAK SPACE}>\N{NO-BREAK SPACE}{above:g}"
    return told


def _type(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return ", ".join(typing.get_args(hint))
    if origin is typing.Union:
        return " or ".join(map(_type, typing.get_args(hint)))
    if origin is tuple:
        return f"list of {_type(typing.get_args(hint)[0])}"
    if has_keys(hint):
        return f"table of {', '.join(entry.name for entry in fields(hint))}"
    return "table of text" if origin is dict else _TYPES[hint]


def _default(entry: Field[Any]) -> str:
    default = entry.default
    if default is None or default is MISSING or default == ():
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return (
        _FORMATS[entry.metadata["unit"]](default)
        if entry.metadata["unit"]
        else str(default)
    )


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
