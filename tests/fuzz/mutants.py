"""Damaged and hostile versions of good files: what a hypothesis draw of numbers turns a text into."""

from __future__ import annotations

import json
import random
import re
from typing import Any

NASTY = (
    "",
    "-1",
    "0",
    "nan",
    "NaN",
    "inf",
    "-Infinity",
    "1e308",
    "1e999",
    "1e-320",
    "99999999999999999999",
    "2147483648",
    "0x10",
    "true",
    "null",
    "[]",
    "{}",
    '""',
    "'",
    '"',
    "\x00",
    "\u202e",
    "é",
    "../../../etc/passwd",
    "/dev/zero",
    "~",
    "%s%n",
    "{0}",
    "${HOME}",
    "n[1-99999999]",
    "[" * 3000,
    "&a;",
    "<!DOCTYPE a>",
    "1.5",
    "-0.0",
    "1 GB/s",
    "4 GiB",
)
TOKEN = re.compile(r"[A-Za-z_]+|\d+(?:\.\d+)?|[^\sA-Za-z_\d]")


def mutated(text: str, seed: int, times: int) -> str:
    """`text` with as many changes as said: tokens replaced or swapped, lines lost, doubled or moved, an end cut off."""
    chance = random.Random(seed)
    whole = text.startswith(("{", "[")) and chance.randrange(4) > 0
    for _ in range(times):
        text = (_value if whole else chance.choice(CHANGES))(text, chance)
    return text


def flips(seed: int) -> int:
    """Seed of the bytes to damage in an input: of every fourth."""
    return seed if seed % 4 == 3 else 0


def flipped(data: bytes, seed: int) -> bytes:
    """`data` with a few bytes changed, put in or cut out where a seed says; as it is for 0."""
    if not seed or not data:
        return data
    chance, raw = random.Random(seed), bytearray(data)
    for _ in range(chance.randrange(1, 9)):
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


def _tokens(text: str, chance: random.Random, new: str | None) -> str:
    found = list(TOKEN.finditer(text))
    if not found:
        return text
    one = chance.choice(found)
    other = chance.choice(found).group() if new is None else new
    return text[: one.start()] + other + text[one.end() :]


def _replaced(text: str, chance: random.Random) -> str:
    return _tokens(text, chance, chance.choice(NASTY))


def _swapped(text: str, chance: random.Random) -> str:
    return _tokens(text, chance, None)


def _number(text: str, chance: random.Random) -> str:
    found = list(re.finditer(r"\d+(?:\.\d+)?", text))
    if not found:
        return text
    one = chance.choice(found)
    return text[: one.start()] + chance.choice(NASTY[:13]) + text[one.end() :]


def _lines(text: str, chance: random.Random) -> str:
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


def _cut(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _character(text: str, chance: random.Random) -> str:
    if not text:
        return text
    at = chance.randrange(len(text))
    return (
        text[:at]
        + chr(chance.choice((0, 9, 10, 34, 39, 60, 91, 123, 125, 255, 8232, 65533)))
        + text[at + 1 :]
    )


# What takes the place of a value of JSON.
VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    [[1]],
    "",
    "x",
    "nan",
    "1e400",
    -1,
    0,
    1.5,
    1e308,
    -1e308,
    1e999,
    float("nan"),
    2**31,
    2**63,
    2**64,
    10**400,
    [None],
    {"a": 1},
)


def _value(text: str, chance: random.Random) -> str:
    """A value somewhere in JSON gone, or of another kind."""
    roots = _roots(text)
    place, key = _place(roots, chance)
    if place is None:
        return _number(text, chance)
    if chance.randrange(4) == 0:
        del place[key]
    else:
        place[key] = chance.choice(VALUES)
    return "\n".join(json.dumps(root, indent=0) for root in roots)


def _roots(text: str) -> list[Any]:
    """Values of JSON that a text has one after the other; nothing of another text."""
    roots, at, decoder = list[Any](), 0, json.JSONDecoder()
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        try:
            root, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        roots.append(root)
    return roots


def _place(root: Any, chance: random.Random) -> tuple[Any, Any]:
    """A list or a map somewhere in a value, and a key of it; deep ones as often as others."""
    place, key = None, None
    while isinstance(root, dict | list) and root:
        place = root
        key = chance.choice([*root] if isinstance(root, dict) else range(len(root)))
        if place is not None and chance.randrange(6) == 0:
            break
        root = root[key]
    return place, key


CHANGES = (
    _value,
    _replaced,
    _replaced,
    _swapped,
    _number,
    _number,
    _number,
    _lines,
    _lines,
    _cut,
    _character,
)
