"""Files as trees: TOML, JSON, YAML and CSV are read, and written again after a change."""

from __future__ import annotations

import csv
import io
import json
import random
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from tests.fuzz.seeds import Seed


def read(seed: Seed) -> tuple[str, Any] | None:
    """The format of a seed's text and what it says, a tree of its own; None where it is of none of these."""
    text, suffix = seed.text, seed.suffix
    if seed.binary or seed.members:
        return None
    try:
        if suffix.endswith(".toml"):
            return "toml", tomllib.loads(text)
        if suffix.endswith((".yaml", ".yml")):
            return "yaml", yaml.safe_load(text)
        if suffix.endswith(".jsonl"):
            return "jsonl", [json.loads(line) for line in text.splitlines() if line]
        if suffix.endswith(".json"):
            return "json", json.loads(text)
        if suffix.endswith(".csv"):
            return "csv", list(csv.reader(io.StringIO(text)))
    except (ValueError, RecursionError, yaml.YAMLError, csv.Error):
        return None
    return None


def value(text: str) -> Any:
    """What a text says in JSON; a list of it where it says nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return [text]


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every list and map of a tree with each of its keys."""
    listed, left = list[tuple[Any, Any]](), [tree]
    while left:
        node = left.pop()
        if not isinstance(node, dict | list):
            continue
        for key in node if isinstance(node, dict) else range(len(node)):
            listed.append((node, key))
            left.append(node[key])
    return listed


def written(kind: str, tree: Any, chance: random.Random) -> str:
    """A tree in its format."""
    if kind == "toml":
        whole = isinstance(tree, dict)
        return "".join(_toml(tree)) if whole else f"x = {_inline(tree)}"
    if kind == "yaml":
        return str(yaml.safe_dump(tree, allow_unicode=chance.random() < 0.5))
    if kind == "jsonl" and isinstance(tree, list):
        return "".join(json.dumps(row) + "\n" for row in tree)
    if kind == "csv" and isinstance(tree, list):
        lines = io.StringIO()
        writer = csv.writer(lines)
        writer.writerows(row if isinstance(row, list) else [row] for row in tree)
        return lines.getvalue()
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5)


def _toml(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Keys, then tables, then lists of tables."""
    flat = {k: v for k, v in tree.items() if not _is_table(v)}
    if path and (flat or not tree):
        yield f"[{'.'.join(map(_name, path))}]\n"
    yield from (f"{_name(key)} = {_inline(value)}\n" for key, value in flat.items())
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _toml(value, (*path, str(key)))
        elif _is_table(value):
            for entry in value:
                yield f"[[{'.'.join(map(_name, (*path, str(key))))}]]\n"
                yield from (f"{_name(k)} = {_inline(v)}\n" for k, v in entry.items())


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(entry, dict) for entry in value)
    return isinstance(value, dict)


def _name(key: Any) -> str:
    return json.dumps(str(key))


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{_name(k)} = {_inline(v)}' for k, v in value.items())}}}"
        )
    return json.dumps("" if value is None else value)
