"""What a cluster is besides nodes and links, as attributes of a graph: changed GPUs, facts, files of measured times."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.sim.units import parse_bandwidth, parse_power, parse_rate
from prestep.topologies.core.facts import FILES, KINDS, SHARE, SWITCH
from prestep.topologies.core.quantity import GRADES, Quantity, number_of, shown
from prestep.topologies.fabric.fabric import Fabric, GpuChange

#: Attributes of a GPU that is not as its model, and what reads their texts; the clock is a factor alone.
GPU_ATTRIBUTES: Mapping[str, Callable[[object, str, str], float] | None] = {
    "flops": parse_rate,
    "hbm_bandwidth": parse_bandwidth,
    "clock": None,
    "power_limit": parse_power,
}
_FACTOR = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*x\s*")


def attributes_of(fabric: Fabric) -> dict[str, Any]:
    """What a cluster is besides its nodes and links, as JSON can hold it; files by their whole paths."""
    facts = {
        key: [known.value, known.evidence, known.source]
        for key, known in fabric.facts.items()
    }
    files = {key: getattr(fabric, field) for key, field in FILES.items()}
    paths = {key: str(Path(name).resolve()) for key, name in files.items() if name}
    return {
        "gpu_model": fabric.gpu_model,
        "family": fabric.family,
        "facts": facts,
    } | paths


def with_attributes(
    fabric: Fabric, given: Mapping[str, Any], where: str, folder: Path
) -> Fabric:
    """The cluster with the facts and the files that a graph's attributes give it; see `fields_of`.

    Raises
    ------
    InputError
        With everything that is wrong with them.
    """
    mistakes: list[Mistake] = []
    fields = fields_of(given, where, folder, mistakes)
    InputError.check(mistakes)
    return fabric.with_columns(**fields)


def fields_of(
    given: Mapping[str, Any], where: str, folder: Path, mistakes: list[Mistake]
) -> dict[str, Any]:
    """Fields of a cluster that a graph's attributes state: its facts, and its files, which are relative to `folder`.

    A fact may also be an attribute of its own name: ``host_memory="2 TB"``.
    """
    facts = _facts(given.get("facts") or {}, where, mistakes)
    for key in [key for key in KINDS if key in given]:
        with InputError.collected(mistakes):
            facts[key] = _fact(key, given[key], where)
    paths = {
        field: _file(key, given[key], where, folder, mistakes)
        for key, field in FILES.items()
        if given.get(key)
    }
    return {"facts": facts, **paths}


def _fact(key: str, value: object, where: str) -> Quantity:
    """A fact that is stated by an attribute of its own: a number in SI units, or a text with its unit."""
    kind, element = KINDS[key], f"graph.{key}"
    number = float(value) if isinstance(value, bool) else number_of(value)
    if math.isnan(number):
        number = kind.parse(value, where, element)
    if kind is SWITCH:
        good, expected = number in (0, 1), "0 (no) or 1 (yes)"
    elif kind is SHARE:
        good, expected = 0 < number <= 1, "a share above 0, at most 1"
    else:
        good = math.isfinite(number) and number > 0
        expected = f"a number above 0 in SI units, or a text such as {kind.written}"
    if not good:
        raise InputError.of(where, element, shown(value), expected)
    return Quantity(number, "guess", f"the graph's attribute {key}")


def _facts(given: object, where: str, mistakes: list[Mistake]) -> dict[str, Quantity]:
    """Facts as `attributes_of` writes them, {key: [value, evidence, source]}, or that as JSON."""
    try:
        table: Any = json.loads(given) if isinstance(given, str) else given
        facts = {
            str(key): Quantity(float(value), str(grade), str(why))
            for key, (value, grade, why) in table.items()
        }
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        expected = "{key: [value, evidence, source]}"
        mistakes.append(Mistake(where, "graph.facts", shown(given), expected))
        return {}
    for key, known in facts.items():
        element = f"graph.facts.{key}"
        if not math.isfinite(known.value):
            found = f"{known.value}"
            mistakes.append(Mistake(where, element, found, "a finite number"))
        if known.evidence not in GRADES:
            expected = f"one of {', '.join(GRADES)}"
            mistakes.append(Mistake(where, element, shown(known.evidence), expected))
    return facts


def _file(
    key: str, given: object, where: str, folder: Path, mistakes: list[Mistake]
) -> str:
    """The file of measured times that a graph names."""
    path = folder / str(given)
    if not isinstance(given, str) or "\0" in given or not path.is_file():
        expected = "the file that the exported cluster stands on"
        hint = f"copy it here, or leave {key} out for the GPU's own times"
        found = f"{shown(given)}, no such file"
        mistakes.append(Mistake(where, f"graph.{key}", found, expected, hint))
    return str(path)


def gpu_attributes(fabric: Fabric) -> dict[str, dict[str, float | str]]:
    """What every changed GPU differs by from its model: a number (SI), or a factor such as "0.9x"."""
    changed: dict[str, dict[str, float | str]] = {}
    for change in fabric.gpu_changes:
        for gpu in change.gpus:
            attributes = changed.setdefault(gpu, {})
            before = attributes.get(change.attribute, "1.0x")
            if change.factor is None:
                attributes[change.attribute] = float(change.value or 0.0)
            elif isinstance(before, str):
                factor = float(before.removesuffix("x")) * change.factor
                attributes[change.attribute] = f"{factor!r}x"
            else:
                attributes[change.attribute] = before * change.factor
    return changed


def gpu_changes(
    gpus: Iterable[tuple[str, Mapping[str, Any]]], where: str, mistakes: list[Mistake]
) -> tuple[GpuChange, ...]:
    """The changes that the attributes of GPUs say, those that are alike together."""
    alike: dict[tuple[str, float | None, float | None], list[str]] = {}
    for name, data in gpus:
        for attribute in [key for key in GPU_ATTRIBUTES if key in data]:
            element = f'node "{name}".{attribute}'
            try:
                change = _change(attribute, data[attribute], where, element)
            except InputError as error:
                mistakes += error.mistakes
            else:
                alike.setdefault((attribute, *change), []).append(name)
    return tuple(_in_order(alike))


def _in_order(
    alike: Mapping[tuple[str, float | None, float | None], list[str]],
) -> Iterator[GpuChange]:
    for attribute in GPU_ATTRIBUTES:
        for (name, factor, value), gpus in alike.items():
            if name == attribute:
                yield GpuChange(tuple(gpus), attribute, factor, value)


def _change(
    attribute: str, given: object, where: str, element: str
) -> tuple[float | None, float | None]:
    """(factor, None) of a text such as "0.9x", or (None, quantity)."""
    match = _FACTOR.fullmatch(given) if isinstance(given, str) else None
    if match is not None and float(match[1]) > 0:
        return float(match[1]), None
    parse, number = GPU_ATTRIBUTES[attribute], number_of(given)
    if parse is not None and math.isnan(number) and isinstance(given, str):
        number = parse(given, where, element)
    if parse is None or not (math.isfinite(number) and number >= 1):
        quantity = "" if parse is None else ", or a number in SI units"
        expected = f'a factor above 0 such as "0.9x"{quantity}'
        raise InputError.of(where, element, shown(given), expected)
    return None, number
