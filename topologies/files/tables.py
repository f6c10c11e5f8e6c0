"""The tables of cluster files: one laid over another, and the numbers in them with their sources."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from prestep.sim import files, plugins
from prestep.sim.errors import InputError, Mistake, did_you_mean, unknown
from prestep.sim.units import parse_bandwidth, parse_duration
from prestep.topologies.core import facts
from prestep.topologies.core.quantity import GRADES, LinkSpec, Quantity
from prestep.topologies.files.bundled import CLUSTERS, cluster_file, cluster_names

Table = dict[str, Any]
#: The links of such hosts, from the parameters that a file states.
Usual = Callable[[Table], Mapping[str, Any]]
HEADER = ("family", "extends", "several", "description", *facts.FILES)
_GRADED = {"value", "evidence", "source"}
_LINK = {
    "bandwidth": parse_bandwidth,
    "latency": parse_duration,
    "raw": parse_bandwidth,
    "upstream": parse_bandwidth,
}


def locate(name_or_file: str | Path) -> Path:
    """The file of a named cluster, or the path itself when it ends in .toml."""
    path = Path(name_or_file)
    if path.suffix == ".toml":
        return path
    if str(name_or_file) in cluster_names():
        return cluster_file(str(name_or_file))
    if path.suffix or len(path.parts) > 1:
        raise InputError.of(
            str(path),
            "",
            "no such file",
            "a cluster file (.toml) or a file of another tool",
        )
    raise InputError(
        unknown(
            "cluster",
            "name",
            str(name_or_file),
            cluster_names(),
            "a path to a .toml file, or one of",
            "prestep list clusters",
        )
    )


def load_family(where: str, table: Table) -> ModuleType:
    """The module that a file's `family` names: one with `Params` and `build`."""
    name = table.get("family")
    found = plugins.discover("prestep.topologies").get(str(name).replace("-", "_"))
    module = plugins.load("prestep.topologies", str(name)) if found else None
    if module is None or not hasattr(module, "Params"):
        families = sorted(plugins.providers("prestep.topologies", "build"))
        if name is None:
            raise InputError.of(
                where, "family", "nothing", f"one of {', '.join(families)}"
            )
        raise InputError(unknown(where, "family", str(name), families))
    return module


def where_of(path: Path) -> str:
    """How a mistake names a cluster file."""
    return f"clusters/{path.name}" if path.parent == CLUSTERS else str(path)


def merged(path: Path, above: tuple[Path, ...] = (), extended: bool = True) -> Table:
    """The file's keys laid over those of the file it extends; tables are merged key by key. Or its own alone."""
    try:
        table = files.toml(files.written_text(path))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        found = str(error) if path.exists() else "no such file"
        raise InputError.of(
            where_of(path), "", found, "a cluster file in TOML"
        ) from None
    for key in facts.FILES:
        if key in table:
            table[key] = _beside(path, key, table[key])
    if "extends" not in table or not extended:
        return table
    base = str(table.pop("extends"))
    parent = path.parent / base if base.endswith(".toml") else locate(base)
    if parent in (*above, path):
        raise InputError.of(
            where_of(path),
            "extends",
            f'"{base}"',
            "a file that does not extend this one",
        )
    below = merged(parent, (*above, path))
    return below | {
        key: _laid_over(below.get(key), value) for key, value in table.items()
    }


def _beside(path: Path, key: str, name: object) -> str:
    """The file of constants that a cluster file names, relative to it."""
    expected = (
        "a file that `prestep calibrate LOGS -o FILE` wrote, relative to this one"
    )
    if not isinstance(name, str) or not name:
        raise InputError.of(where_of(path), key, repr(name), expected)
    if not (path.parent / name).is_file():
        raise InputError.of(where_of(path), key, f'"{name}", no such file', expected)
    return str(path.parent / name)


def _laid_over(below: object, value: object) -> object:
    """A key's new value; a link keeps what it had and the file does not say.

    But the way towards the CPU belongs to the bandwidth that it was stated beside: PCIe 6 is not PCIe 5 that way.
    """
    if not isinstance(below, dict) or not isinstance(value, dict) or "value" in value:
        return value
    stale = {"upstream"} if "bandwidth" in value else set()
    return {key: old for key, old in below.items() if key not in stale} | value


def _completed(parts: Mapping[str, Quantity], usual: LinkSpec) -> LinkSpec:
    """The usual link with the parts that a file states; a stated bandwidth holds both ways."""
    if "bandwidth" not in parts:
        return dataclasses.replace(usual, **parts)
    spec = dataclasses.replace(dataclasses.replace(usual, upstream=None), **parts)
    if "raw" in parts or usual.raw is None:
        return spec
    payload = max(spec.bandwidth.value, (spec.upstream or spec.bandwidth).value)
    # Each generation of a link is twice as fast on the wire as the one before: a payload says which one it is.
    steps = math.ceil(math.log2(payload / usual.raw.value))
    if steps == 0:
        return spec
    why = f"the slowest generation that carries the payload; {usual.raw.source}"
    raw = Quantity(usual.raw.value * 2.0**steps, "guess", why)
    return dataclasses.replace(spec, raw=raw)


_NAMED = "a cluster is called as its file is; description is a line about it"


class Reader:
    """Turns a table into a family's parameters, keeping every mistake and every source."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.mistakes: list[Mistake] = []
        self.facts: dict[str, Quantity] = {}

    def wrong(self, key: str, found: object, expected: str, hint: str = "") -> None:
        self.mistakes.append(Mistake(self.where, key, str(found), expected, hint))

    def params(
        self, table: Table, hints: Mapping[str, Any], usual: Usual = lambda values: {}
    ) -> Table:
        """The family's parameters that a table states; numbers that are no parameters are kept in `facts`.

        `usual` gives the links of such hosts, from the other parameters: what a table leaves out of a link is theirs.
        """
        values: Table = {}
        ordered = sorted(table, key=lambda key: hints.get(key) is LinkSpec)
        for key, entry in ((key, table[key]) for key in ordered):
            if key in HEADER:
                continue
            if key in facts.KINDS:
                self.quantity(key, entry, facts.KINDS[key].parse)
            elif key not in hints:
                self.wrong(
                    key,
                    "an unknown key",
                    f"one of {', '.join([*HEADER, *hints])}",
                    _NAMED if key == "name" else did_you_mean(key, hints),
                )
            elif hints[key] is LinkSpec:
                values[key] = self.link(key, entry, usual(values).get(key))
            elif hints[key] is str:
                values[key] = self.text(key, entry)
            else:
                values[key] = self.count(
                    key, entry, tuple if typing.get_origin(hints[key]) is tuple else int
                )
        return values

    def text(self, key: str, entry: object) -> str:
        if not isinstance(entry, str) or not entry:
            self.wrong(key, repr(entry), "a text")
        return str(entry)

    def graded(self, key: str, entry: object) -> Table | None:
        """The entry as { value, evidence, source }, a bare value as a guess; None, and a mistake, for other tables."""
        if not isinstance(entry, dict):
            source = f"yours: {self.where} gives no source"
            return {"value": entry, "evidence": "guess", "source": source}
        if set(entry) != _GRADED:
            extra = sorted(set(entry) - _GRADED)
            found = ", ".join(sorted(entry)) or "nothing"
            hint = did_you_mean(extra[0], _GRADED) if extra else ""
            expected = "a value, or { value = ..., evidence = ..., source = ... }"
            self.wrong(key, found, expected, hint)
            return None
        if entry["evidence"] not in GRADES:
            hint = did_you_mean(str(entry["evidence"]), GRADES)
            self.wrong(
                f"{key}.evidence",
                f'"{entry["evidence"]}"',
                f"one of {', '.join(GRADES)}",
                hint,
            )
        if not isinstance(entry["source"], str) or not entry["source"].strip():
            self.wrong(
                f"{key}.source", repr(entry["source"]), "where the number comes from"
            )
        return entry

    def count(self, key: str, entry: object, shape: type) -> Any:
        graded = self.graded(key, entry)
        if graded is None:
            return None
        value = graded["value"]
        numbers = value if shape is tuple and isinstance(value, list) else [value]
        right = isinstance(value, list) == (shape is tuple)
        if not right or any(
            not isinstance(number, int) or isinstance(number, bool)
            for number in numbers
        ):
            self.wrong(
                key,
                repr(value),
                "a list of whole numbers" if shape is tuple else "a whole number",
            )
            return None
        self.facts[key] = Quantity(
            float(sum(numbers)), graded["evidence"], graded["source"]
        )
        return tuple(numbers) if shape is tuple else value

    def link(
        self, key: str, entry: object, usual: LinkSpec | None = None
    ) -> LinkSpec | None:
        """A link, whose parts that are not stated are those of the usual one."""
        if not isinstance(entry, dict):
            self.wrong(key, repr(entry), f"a table with {', '.join(_LINK)}")
            return None
        for name in sorted(set(entry) - set(_LINK)):
            self.wrong(
                f"{key}.{name}",
                "an unknown key",
                f"one of {', '.join(_LINK)}",
                did_you_mean(name, _LINK),
            )
        for name in ("bandwidth", "latency"):
            if name not in entry and usual is None:
                self.wrong(f"{key}.{name}", "nothing", "a value with its unit")
        parts = {
            name: self.quantity(f"{key}.{name}", entry[name], parse)
            for name, parse in _LINK.items()
            if name in entry
        }
        if None in parts.values():
            return None
        if usual is not None:
            return _completed(typing.cast(dict[str, Quantity], parts), usual)
        if "bandwidth" not in parts or "latency" not in parts:
            return None
        return LinkSpec(**parts)  # type: ignore[arg-type]

    def quantity(
        self, key: str, entry: object, parse: Callable[[object, str, str], float]
    ) -> Quantity | None:
        graded = self.graded(key, entry)
        if graded is None:
            return None
        try:
            value = parse(graded["value"], self.where, key)
        except InputError as error:
            self.mistakes.extend(error.mistakes)
            return None
        self.facts[key] = Quantity(
            value, str(graded["evidence"]), str(graded["source"])
        )
        return self.facts[key]
