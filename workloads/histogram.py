"""Recorded routing: how many tokens each expert got, from a CSV or JSON file.

CSV: columns ``expert`` and ``tokens``, and ``layer`` where layers differ; experts and layers in ascending order of
their numbers, and rows of one expert (several steps, several ranks) are added up. JSON: a list of counts, a list of
such lists (a layer each), or an object of them by the layer's number. NumPy's `.npy`: a map of a router, by numbers of
the experts that each token chose, (tokens, choices) or (tokens, layers, choices) as Megatron's router replay stacks
them, or by truth, (tokens, experts) or (layers, tokens, experts) as Megatron's routing maps.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake

SUFFIXES = (".csv", ".json", MAP := ".npy")
COLUMNS = 'columns "expert" and "tokens", and "layer" where layers differ'
MAPS = "experts by token: whole numbers (tokens, layers, choices), or truths (layers, tokens, experts)"
LISTS = "a list of counts, a list of such lists, or an object of them by layer"
Counts = tuple[float, ...]


def is_file(said: str) -> bool:
    """Whether a routing is the name of a file."""
    return Path(said).suffix.lower() in SUFFIXES


def read(path: str, experts: int = 0) -> tuple[Counts, ...]:
    """Tokens by expert of every recorded layer, in the order of the layers' numbers.

    ``experts``: how many there are, where a map names only those that were chosen.

    Raises
    ------
    InputError
        If the file cannot be read, or a layer's counts are not finite, below 0, or 0 together.
    """
    if Path(path).suffix.lower() == MAP:
        return _from_map(path, experts)
    text = files.read_text(path, "recorded tokens by expert (CSV or JSON)")
    csv_file = Path(path).suffix.lower() == ".csv"
    try:
        layers = tuple(_from_csv(path, text) if csv_file else _from_json(path, text))
    except csv.Error as error:
        raise InputError.of(path, "", str(error), COLUMNS) from None
    InputError.check(list(_mistakes(path, layers)))
    return layers


def _from_map(path: str, experts: int) -> tuple[Counts, ...]:
    """Of each layer of a router's map, how often each expert was chosen."""
    try:
        chosen = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError.of(path, "", str(error)[:80], MAPS) from None
    found = f"{chosen.dtype} {chosen.shape}"
    if chosen.ndim not in (2, 3) or not chosen.size or chosen.dtype.kind not in "biu":
        raise InputError.of(path, "", found, MAPS)
    if chosen.dtype.kind == "b":
        layers = np.atleast_3d(chosen.T).T.sum(axis=1)
        return tuple(tuple(map(float, layer)) for layer in layers)
    if chosen.min() < 0 or chosen.max() >= 1 << 20:
        found = f"expert {chosen.min()} to {chosen.max()}"
        raise InputError.of(path, "", found, "from 0 on")
    most = max(experts, int(chosen.max()) + 1)
    by_layer = chosen.reshape(len(chosen), -1, chosen.shape[-1]).swapaxes(0, 1)
    counted = (np.bincount(layer.ravel(), minlength=most) for layer in by_layer)
    return tuple(tuple(map(float, layer)) for layer in counted)


def _from_csv(path: str, text: str) -> Iterator[Counts]:
    """The layers of a table of rows."""
    rows = csv.DictReader(io.StringIO(text, newline=None))
    names = set(rows.fieldnames or ())
    if not {"expert", "tokens"} <= names:
        found = ", ".join(rows.fieldnames or ()) or "no header"
        raise InputError.of(path, "header", found, COLUMNS)
    tokens: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        line = f"line {rows.line_num}"
        try:
            layer, expert = int(row.get("layer") or 0), int(row["expert"])
            tokens[layer][expert] += float(row["tokens"])
        except (TypeError, ValueError):
            found = ",".join(str(value) for value in row.values())[:60]
            raise InputError.of(path, line, found, "numbers") from None
    for _, counted in sorted(tokens.items()):
        # An expert that no row has got no token.
        yield tuple(counted.get(e, 0.0) for e in _numbered(path, counted))


def _numbered(path: str, counted: Iterable[int]) -> range:
    """Experts from 0 to the last one of a layer."""
    last, first = max(counted), min(counted)
    if first < 0 or last >= 1 << 20:
        raise InputError.of(
            path, "expert", str(first if first < 0 else last), "from 0 on"
        )
    return range(last + 1)


def _from_json(path: str, text: str) -> Iterator[Counts]:
    """The layers of a JSON value."""
    try:
        value = files.json_of(text)
        yield from (_counts(layer) for layer in _layers(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError.of(path, "", str(error)[:80], LISTS) from None


def _layers(value: Any) -> list[Any]:
    """Values of layers, ascending."""
    if isinstance(value, dict):
        return [layer for _, layer in sorted((int(k), v) for k, v in value.items())]
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__}")
    return value if value and isinstance(value[0], list) else [value]


def _counts(layer: Any) -> Counts:
    if not isinstance(layer, list) or any(isinstance(n, (bool, str)) for n in layer):
        raise TypeError(f"{str(layer)[:40]}, where counts were expected")
    return tuple(float(count) for count in layer)


def _mistakes(path: str, layers: tuple[Counts, ...]) -> Iterator[Mistake]:
    """What no router does."""
    if not layers:
        yield Mistake(path, "", "no layer", LISTS)
    for number, layer in enumerate(layers):
        sound = all(math.isfinite(count) and count >= 0 for count in layer)
        if not sound or not sum(layer) > 0:
            found = str(list(layer))[:60]
            yield Mistake(
                path, f"layer {number}", found, "no count below 0, and some above"
            )
    if len({len(layer) for layer in layers}) > 1:
        found = ", ".join(str(len(layer)) for layer in layers)[:60]
        yield Mistake(path, "experts", found, "as many in every layer")
