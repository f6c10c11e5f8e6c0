"""The one mutator: what a good file becomes, by its letters, by what it means, with parts of another file, and as bytes.

Each change is a function of a value and a source of chance, which hypothesis gives (`st.randoms`), so that a file that
breaks a command is reduced to few changes.
"""

from __future__ import annotations

import bz2
import contextlib
import copy
import gzip
import lzma
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from tests.fuzz import trees
from tests.fuzz.seeds import Seed
from tests.fuzz.values import LOOKALIKES, NASTY, NUMBERS, STRANGE, VALUES, WORDS

Chance = random.Random
TOKEN = re.compile(r"[A-Za-z_]+|\d+(?:\.\d+)?|[^\sA-Za-z_\d]")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
#: What is opened thousands of times, and what closes it.
BRACKETS = (
    *(("[", "]"), ("{", "}"), ('{"a":', "}"), ("(", ")"), ("- ", ""), ("<a>", "</a>")),
)
SCALE = (0, -1, 0.5, 2, 3, 1e3, 1e6, 1e9, 1e15, 1e-9)


def damaged(seed: Seed, seeds: Mapping[str, Seed], chance: Chance) -> bytes:
    """The bytes of a good file after a few changes; seeds are the files that it may get parts of."""
    way = chance.choice(WAYS)
    for _ in range(chance.choice((1, 1, 2, 3))):
        text = way(seed, seeds, chance)
        seed = Seed(seed.name, seed.suffix, text, (), seed.members, seed.binary)
    data = seed.data
    return chance.choice(BYTES)(data, chance) if chance.random() < 0.25 else data


# Letters: of any text.


def _instead(
    text: str, chance: Chance, new: str, pattern: re.Pattern[str] = TOKEN
) -> str:
    """The text with `new` in the place of something."""
    places = [match.span() for match in pattern.finditer(text)]
    if not places:
        return text
    start, end = chance.choice(places)
    return text[:start] + new + text[end:]


def _word(text: str, chance: Chance) -> str:
    return _instead(text, chance, chance.choice((*NASTY, *LOOKALIKES)))


def _number(text: str, chance: Chance) -> str:
    return _instead(text, chance, chance.choice(NUMBERS), NUMBER)


def _swapped(text: str, chance: Chance) -> str:
    tokens = TOKEN.findall(text) or [""]
    return _instead(text, chance, chance.choice(tokens))


def _lines(text: str, chance: Chance) -> str:
    """A line lost, twice, or elsewhere."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(3)
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    else:
        lines[a], lines[b] = lines[b], lines[a]
    return "".join(lines)


def _cut(text: str, chance: Chance) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _character(text: str, chance: Chance) -> str:
    if not text:
        return text
    at = chance.randrange(len(text))
    code = chance.choice((0, 9, 10, 34, 39, 60, 91, 123, 125, 255, 8232, 65533))
    return text[:at] + chr(code) + text[at + 1 :]


def _nested(text: str, chance: Chance) -> str:
    """Brackets within brackets in the place of a word."""
    opened, closed = chance.choice(BRACKETS)
    depth = chance.choice((50, 300, 1500, 20_000))
    inside = chance.choice(("1", '"a"', ""))
    return _instead(text, chance, opened * depth + inside + closed * depth)


def _repeated(text: str, chance: Chance) -> str:
    """A line, or a part from one line to another, again and again."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    first = chance.randrange(len(lines))
    part = "".join(lines[first : first + chance.choice((1, 1, 3, 10))])
    at = chance.choice((first, len(lines)))
    return "".join([*lines[:at], part * chance.choice((1, 2, 100, 3000)), *lines[at:]])


LETTERS = (
    *(_word, _word, _number, _number, _swapped, _lines, _lines),
    *(_cut, _character, _nested, _repeated),
)


def by_letters(seed: Seed, _: Mapping[str, Seed], chance: Chance) -> str:
    """The text with other words, numbers, characters or lines."""
    return chance.choice(LETTERS)(seed.text, chance)


# Meaning: of a file that is a tree or a table.


def by_meaning(seed: Seed, seeds: Mapping[str, Seed], chance: Chance) -> str:
    """A value of another type or size, a key elsewhere: the tree is changed and written again."""
    known = trees.read(seed)
    if known is None:
        return by_letters(seed, seeds, chance)
    kind, tree = known
    # Some trees cannot be said in their format; the text stays.
    with contextlib.suppress(ValueError, TypeError, RecursionError, yaml.YAMLError):
        return trees.written(kind, changed(tree, chance), chance)
    return seed.text


def changed(tree: Any, chance: Chance) -> Any:
    """A tree with one change."""
    places = trees.places(tree)
    if not places or chance.random() < 0.01:
        return chance.choice(STRANGE)
    node, key = chance.choice(places)
    chance.choice(CHANGES)(node, key, places, chance)
    return tree


def _strange(node: Any, key: Any, _: Any, chance: Chance) -> None:
    node[key] = chance.choice(STRANGE if chance.random() < 0.8 else VALUES)


def _choice(node: Any, key: Any, _: Any, chance: Chance) -> None:
    node[key] = chance.choice(WORDS)


def _scaled(node: Any, key: Any, _: Any, chance: Chance) -> None:
    old = node[key]
    if isinstance(old, bool):
        node[key] = not old
    elif isinstance(old, int | float):
        new = old * chance.choice(SCALE) + chance.choice((0, 0, 1, -1))
        node[key] = int(new) if isinstance(old, int) and chance.random() < 0.8 else new
    elif isinstance(old, str):
        try:
            node[key] = f"{float(old) * chance.choice(SCALE):g}"
        except ValueError:
            node[key] = chance.choice(LETTERS)(old, chance)
    else:
        node[key] = chance.choice(STRANGE)


def _gone(node: Any, key: Any, *_: Any) -> None:
    del node[key]


def _other(node: Any, key: Any, places: Any, chance: Chance) -> None:
    """The value of another place."""
    other, at = chance.choice(places)
    if not isinstance(other[at], dict | list):  # no circle
        node[key] = other[at]


def _moved(node: Any, key: Any, places: Any, chance: Chance) -> None:
    """A key in another table."""
    value = node[key]
    tables = [other for other, _ in places if isinstance(other, dict)]
    if tables and not isinstance(value, dict | list):
        del node[key]
        chance.choice(tables)[str(key)] = value


def _renamed(node: Any, key: Any, _: Any, chance: Chance) -> None:
    if isinstance(node, dict):
        name = str(key)
        names = (name.upper(), name[:-1], f"{name} ", f"{name}.x", "", "é")
        node[chance.choice(names)] = node.pop(key)


def _many(node: Any, key: Any, _: Any, chance: Chance) -> None:
    """A list of it, or a list that is much longer."""
    old, times = node[key], chance.choice((2, 2, 10, 1000))
    node[key] = old * times if isinstance(old, list) else [old] * times


def _deep(node: Any, key: Any, _: Any, chance: Chance) -> None:
    value = node[key]
    for _ in range(chance.choice((1, 2, 100))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    node[key] = value


def _text(node: Any, key: Any, _: Any, chance: Chance) -> None:
    """The same as a text, or a text as what it says."""
    old = node[key]
    if isinstance(old, str):
        node[key] = trees.value(old)
    elif not isinstance(old, dict | list):
        node[key] = str(old)


Change = Callable[[Any, Any, Any, Chance], None]
CHANGES: tuple[Change, ...] = (
    *(_strange, _strange, _strange, _choice, _scaled, _scaled, _scaled, _gone),
    *(_other, _other, _moved, _renamed, _many, _deep, _text),
)

# Another file: good files that do not belong together.


def by_another(seed: Seed, seeds: Mapping[str, Seed], chance: Chance) -> str:
    """The other file itself, its end behind this one's beginning, or a part of it in this one's place."""
    texts = [one for one in seeds.values() if not one.members and not one.binary]
    if seed.members or seed.binary or chance.random() < 0.3:
        return chance.choice(texts).text
    if chance.random() < 0.5:
        return _planted(seed, chance.choice(texts), chance)
    other = chance.choice([one for one in texts if one.suffix == seed.suffix])
    one, two = (each.text.splitlines(keepends=True) for each in (seed, other))
    head = one[: chance.randrange(len(one) + 1)]
    return "".join([*head, *two[chance.randrange(len(two) + 1) :]])


def _planted(seed: Seed, other: Seed, chance: Chance) -> str:
    """A value of one file in the place of a value of another."""
    one, two = trees.read(seed), trees.read(other)
    places, parts = (trees.places(known[1]) if known else [] for known in (one, two))
    if one is None or not places or not parts:
        return other.text
    node, key = chance.choice(places)
    part, name = chance.choice(parts)
    node[key] = copy.deepcopy(part[name])
    if isinstance(node, dict) and chance.random() < 0.5:
        node[name if isinstance(name, str) else "x"] = copy.deepcopy(part[name])
    try:
        return trees.written(one[0], one[1], chance)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        return seed.text  # the format has no text for the value


Way = Callable[[Seed, Mapping[str, Seed], Chance], str]
WAYS: tuple[Way, ...] = (by_letters, by_letters, by_meaning, by_meaning, by_another)

# Bytes: the same text in another encoding, spoilt, or packed.


def flipped(data: bytes, chance: Chance) -> bytes:
    """`data` with a few bytes changed, put in or cut out."""
    raw = bytearray(data)
    for _ in range(chance.randrange(1, 9) if data else 0):
        at = chance.randrange(len(raw))
        kind = chance.randrange(4)
        if kind == 0:
            raw[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            raw[at] = chance.choice((0, 0x7F, 0x80, 0xC3, 0xFF))
        elif kind == 2:
            raw[at:at] = chance.choice((b"\xff", b"\xc3\x28", b"\xff" * 9 + b"\x01"))
        elif len(raw) > 1:
            del raw[at]
    return bytes(raw)


def _in_16_bits(data: bytes, _: Chance) -> bytes:
    return data.decode("utf-8", "replace").encode("utf-16")


#: A file that is packed twice, cut short, of several parts, with something behind, or not what it says.
PACKED: tuple[Callable[[bytes, Chance], bytes], ...] = (
    lambda data, _: gzip.compress(data),
    lambda data, _: gzip.compress(data) + b"behind it",
    lambda data, _: gzip.compress(data) + gzip.compress(b"{}"),
    lambda data, _: gzip.compress(data) + b"\0" * 100,
    lambda data, chance: gzip.compress(data)[: chance.randrange(40)],
    lambda data, chance: gzip.compress(data)[: -chance.randrange(1, 12)],
    lambda data, _: gzip.compress(data)[:-8] + b"\1" * 8,
    lambda data, _: bz2.compress(data),
    lambda data, _: lzma.compress(data),
    lambda data, _: b"PAR1" + data + b"PAR1",
    lambda data, _: b"PK\3\4" + data,
    lambda data, _: b"SQLite format 3\0" + data,
    lambda data, _: b"\x28\xb5\x2f\xfd" + data,
    lambda data, _: b"",
)
BYTES: tuple[Callable[[bytes, Chance], bytes], ...] = (
    *(flipped, flipped, flipped, _in_16_bits),
    lambda data, _: b"\xef\xbb\xbf" + data,
    lambda data, _: data.replace(b"\n", b"\r\n"),
    lambda data, _: data.replace(b"\n", b"\r"),
    lambda data, _: data * 3,
    lambda data, _: data + b"\0" * 1000,
    lambda data, chance: chance.choice(PACKED)(data, chance),
)
