"""Files damaged by what they mean, not by their letters: the second fuzzer of files.

    python -m tests.fuzz.structured 10000 [--first 0] [--only trace]

A TOML, JSON, YAML, XML or CSV is read, changed as a tree or a table (another type, a key of another section, a list
of a thousand, a number a billion times as large), and written again; then, now and then, its bytes are written
otherwise than they should be: with a mark of order, in 16 bits, with other line ends, packed, cut off.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.fuzz.mutants import VALUES, mutated
from tests.fuzz.seeds import Seed

#: Values that have the place of another, of every type that a file can say.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, -0.0, 1, 2, 3, 7, 2**31, 2**63, 10**18, 10**30),
    *(1e-300, 1e-12, 1e12, 1e24, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "nan", "inf", "-1", "0", "1e999", "0x10", "1_000", "½", "٣", "²", "①"),
    *("0 s", "-1 s", "1e30 s", "inf s", "nan GB/s", "0 B", "-5 GiB", "1e400 GB", "1 s/s"),
    *("0x", "-2x", "infx", "nanx", "1e-300x", "1e300x", "2x2x", "x", "off", "on", "none"),
    *("a" * 100_000, "\u202eabc", "\ud83d", "é", "\x00", "\n", "a\r\nb", "$\\frac{1}{0}"),
    *("../../etc/passwd", "/dev/zero", "/", ".", "~", "FILE", "file:///etc/passwd"),
    *("host[0-99999999]", "host[0-3", "[0-9][0-9][0-9][0-9][0-9][0-9]", "0-99999999999"),
    *([], {}, [[]], [{}], {"": ""}, [None], [1] * 10_000, ["a"] * 1000, {"a": {"b": []}}),
)  # fmt: skip
#: Words that keys of prestep's files have: choices of one key in the place of another's.
WORDS = (
    *("bf16", "fp8", "nvfp4", "fp32", "tf32", "fp16", "megatron", "pytorch-eager"),
    *("pytorch-compiled", "cuda-graph", "deepspeed", "automodel", "captured", "fsdp"),
    *("ddp", "zero1", "zero2", "zero3", "full", "selective", "products", "muon", "lion"),
    *("adafactor", "adamw8bit", "adamw4bit", "sgd", "zbv", "dualpipe", "v-half"),
    *("interleaved", "gpipe", "zero-bubble", "lora", "a2a", "p2p", "flex", "hybridep"),
    *("deepep", "allgather", "ring", "tree", "LL", "Simple", "rail-h100", "mi300x"),
    *("gb200-nvl72", "h200-host-4", "resnet50", "llama3-8b", "mlp", "transformer"),
    *("grpo", "dapo", "lognormal", "zipf", "consecutive", "static", "ecmp", "rail"),
)  # fmt: skip
Tree = Any
SCALE = (0, -1, 0.5, 2, 3, 1e3, 1e6, 1e9, 1e15, 1e-9)


def tree_of(seed: Seed) -> tuple[str, Tree] | None:
    """The format of a seed's text and what it says; None where it is of none of these."""
    text, suffix = seed.text, seed.suffix
    if seed.binary or seed.packed:
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
    except (ValueError, yaml.YAMLError):
        return None
    return None


def text_of(kind: str, tree: Tree, chance: random.Random) -> str:
    """A tree in its format."""
    if kind == "toml":
        return (
            "".join(_toml(tree)) if isinstance(tree, dict) else f"x = {_inline(tree)}"
        )
    if kind == "yaml":
        return str(yaml.safe_dump(tree, allow_unicode=chance.random() < 0.5))
    if kind == "jsonl" and isinstance(tree, list):
        return "".join(json.dumps(row) + "\n" for row in tree)
    if kind == "csv" and isinstance(tree, list):
        made = io.StringIO()
        writer = csv.writer(made)
        writer.writerows(row if isinstance(row, list) else [row] for row in tree)
        return made.getvalue()
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5)


def _toml(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Keys, then tables, then lists of tables."""
    flat = {k: v for k, v in tree.items() if not _is_table(v)}
    if path and (flat or not tree):
        yield f"[{'.'.join(map(_name, path))}]\n"
    for key, value in flat.items():
        yield f"{_name(key)} = {_inline(value)}\n"
    for key, value in tree.items():
        if isinstance(value, dict) and _is_table(value):
            yield from _toml(value, (*path, str(key)))
        elif _is_table(value):
            for entry in value:
                yield f"[[{'.'.join(map(_name, (*path, str(key))))}]]\n"
                yield from (f"{_name(k)} = {_inline(v)}\n" for k, v in entry.items())


def _is_table(value: Any) -> bool:
    if isinstance(value, dict):
        return True
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, dict) for v in value)
    )


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
            "{"
            + ", ".join(f"{_name(k)} = {_inline(v)}" for k, v in value.items())
            + "}"
        )
    return json.dumps("" if value is None else value)


def places(tree: Tree) -> list[tuple[Any, Any]]:
    """Every list and map of a tree with each of its keys."""
    found, left = [], [tree]
    while left:
        node = left.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                left.append(node[key])
    return found


def changed(tree: Tree, chance: random.Random) -> Tree:
    """A tree with one change."""
    known = places(tree) if isinstance(tree, dict | list) else []
    if not known or chance.random() < 0.01:
        return chance.choice(STRANGE)
    node, key = chance.choice(known)
    chance.choice(CHANGES)(node, key, known, chance)
    return tree


def _strange(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    node[key] = chance.choice(STRANGE if chance.random() < 0.8 else VALUES)


def _word(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    node[key] = chance.choice(WORDS)


def _scaled(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    old = node[key]
    if isinstance(old, bool):
        node[key] = not old
    elif isinstance(old, int | float):
        new = old * chance.choice(SCALE) + chance.choice((0, 0, 1, -1))
        node[key] = int(new) if isinstance(old, int) and chance.random() < 0.8 else new
    elif isinstance(old, str):
        node[key] = _scaled_text(old, chance)
    else:
        node[key] = chance.choice(STRANGE)


def _scaled_text(old: str, chance: random.Random) -> str:
    try:
        return f"{float(old) * chance.choice(SCALE):g}"
    except ValueError:
        return mutated(old, chance.randrange(2**32), 1)


def _gone(node: Any, key: Any, *_: Any) -> None:
    del node[key]


def _other(node: Any, key: Any, known: Any, chance: random.Random) -> None:
    """The value of another place."""
    other, at = chance.choice(known)
    value = other[at]
    if not isinstance(value, dict | list):  # no circle
        node[key] = value


def _moved(node: Any, key: Any, known: Any, chance: random.Random) -> None:
    """A key in another table."""
    value = node[key]
    if isinstance(value, dict | list):
        return
    tables = [found for found, _ in known if isinstance(found, dict)]
    if tables:
        del node[key]
        chance.choice(tables)[str(key)] = value


def _renamed(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    if isinstance(node, dict):
        name = str(key)
        node[
            chance.choice((name.upper(), name[:-1], f"{name} ", f"{name}.x", "", "é"))
        ] = node.pop(key)


def _many(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    """A list of it, or a list that is much longer."""
    old, times = node[key], chance.choice((2, 2, 10, 1000))
    node[key] = old * times if isinstance(old, list) else [old] * times


def _deep(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    value = node[key]
    for _ in range(chance.choice((1, 2, 100))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    node[key] = value


def _text(node: Any, key: Any, _: Any, chance: random.Random) -> None:
    """The same as a text, or a text as what it says."""
    old = node[key]
    if isinstance(old, str):
        try:
            node[key] = json.loads(old)
        except ValueError:
            node[key] = [old]
    elif not isinstance(old, dict | list):
        node[key] = json.dumps(old)


Change = Callable[[Any, Any, Any, random.Random], None]
CHANGES: tuple[Change, ...] = (
    *(_strange, _strange, _strange, _word, _scaled, _scaled, _scaled, _gone),
    *(_other, _other, _moved, _renamed, _many, _deep, _text),
)


def rewritten(data: bytes, chance: random.Random) -> bytes:
    """The same text as other bytes; most often as it is."""
    kind = chance.randrange(40)
    text = data.decode("utf-8", "replace")
    if kind == 0:
        return b"\xef\xbb\xbf" + data
    if kind == 1:
        return text.encode("utf-16")
    if kind == 2:
        return text.replace("\n", "\r\n").encode()
    if kind == 3:
        return text.replace("\n", "\r").encode()
    if kind == 4:
        return gzip.compress(data)
    if kind == 5:
        return gzip.compress(data)[: -chance.randrange(1, 12)]
    if kind == 6:
        return data * 3
    if kind == 7:
        return data + b"\0" * 1000
    return data


def damaged(seed: Seed, number: int, path: Path) -> None:
    """Writes a seed's file with the damage of a number."""
    chance = random.Random(number)
    found = tree_of(seed)
    text = seed.text
    if found is None:
        text = mutated(text, number, 1 + number % 3)
    else:
        kind, tree = found
        for _ in range(chance.choice((1, 1, 2, 3))):
            if isinstance(tree, dict | list):
                tree = changed(tree, chance)
        # else the tree is one that this format cannot say
        with contextlib.suppress(ValueError, TypeError, yaml.YAMLError):
            text = text_of(kind, tree, chance)
    seed.write(text, path)
    path.write_bytes(rewritten(path.read_bytes(), chance))


if __name__ == "__main__":
    import sys

    from tests.fuzz.__main__ import main

    sys.exit(main(damaged))
