"""Damaged and hostile versions of good files: what a hypothesis draw of numbers turns a text into."""

from __future__ import annotations

import random
import re

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
    for _ in range(times):
        text = chance.choice(CHANGES)(text, chance)
    return text


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


CHANGES = (
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
