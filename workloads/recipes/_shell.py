"""Shell scripts that export variables: what they set, and the scripts beside them that they source; none is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, Mistake
from workloads.recipes._documents import Document, Entry, text_of

#: Scripts that source each other.
DEEPEST = 8
# export NAME=value, NAME=value, : ${NAME:=value}
ASSIGNED = re.compile(r"^[\s&]*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
DEFAULT = re.compile(r"^\s*:\s*\"?\$\{([A-Za-z_]\w*):?=([^}]*)\}")
# Commands of a line: text in quotes, in $(...) and in $((...)) may hold semicolons.
COMMANDS = re.compile(
    r"""((?:"[^"]*"|'[^']*'|\$\(\([^\n]*?\)\)|\$\([^\n]*\)|\$\{[^}]*\}|(?!&&)[^;\n])+)"""
)
SOURCED = re.compile(r"^\s*(?:source|\.)\s+(.+?)\s*$")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
NAME = re.compile(r"\b[A-Za-z_]\w*\b")
#: Letters of a value, with variables put in.
LONGEST = 100_000
ARITHMETIC = re.compile(r"\$\(\((.*)\)\)")


def read_exports(path: Path, text: str) -> Document:
    """The variables that a script sets, by name; arithmetic on its own variables is worked out, commands are not.

    Raises
    ------
    InputError
        If it sources a script that is not beside it, or itself.
    """
    entries: dict[str, Entry] = {}
    _read(path, text, entries, ())
    return Document(path, "shell", entries, text)


def _read(
    path: Path, text: str, entries: dict[str, Entry], above: tuple[Path, ...]
) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        for command in COMMANDS.findall(re.sub(r"(^|\s)#.*$", "", line)):
            _command(path, number, command, entries, above)


def _command(
    path: Path,
    number: int,
    line: str,
    entries: dict[str, Entry],
    above: tuple[Path, ...],
) -> None:
    """One command of a line."""
    try:
        _set(path, number, line, entries, above)
    except ValueError as error:
        expected = f"values of at most {LONGEST} letters"
        raise InputError(
            Mistake(f"{path}:{number}", "", str(error), expected)
        ) from None


def _set(
    path: Path,
    number: int,
    line: str,
    entries: dict[str, Entry],
    above: tuple[Path, ...],
) -> None:
    if found := SOURCED.match(line):
        _source(path, number, found[1], entries, (*above, path.resolve()))
    elif found := DEFAULT.match(line):
        if found[1] not in entries:
            entries[found[1]] = Entry(_value(found[2], entries), number)
    elif found := ASSIGNED.match(line):
        entries[found[1]] = Entry(_value(found[2], entries), number)


def _source(
    path: Path,
    number: int,
    said: str,
    entries: dict[str, Entry],
    above: tuple[Path, ...],
) -> None:
    """Reads a script that another sources; it lies beside it."""
    name = said.strip("\"'").rpartition("/")[2]
    beside = path.parent / name
    where, expected = f"{path}:{number}", "a script beside it"
    if beside.resolve() in above or len(above) > DEEPEST:
        raise InputError(Mistake(where, "source", name, "scripts without a circle"))
    if not beside.is_file():
        hint = f"put {name} beside {path.name}, or take the line out"
        raise InputError(Mistake(where, "source", said, expected, hint))
    _read(beside, text_of(beside), entries, above)


def _value(text: str, entries: Mapping[str, Entry]) -> str:
    """A value with the script's own variables put in; what a command would print stays as it is written."""
    value = text.strip().rstrip("\\;").strip()
    if value[:1] in "\"'" and value[:1] == value[-1:] and len(value) > 1:
        value = value[1:-1]
    if found := ARITHMETIC.fullmatch(value):
        return _arithmetic(found[1], entries) or value
    return _replaced(VARIABLE, lambda name: _put_in(name, entries), value)


def _replaced(
    pattern: re.Pattern[str], put_in: Callable[[re.Match[str]], str], text: str
) -> str:
    """A text with its variables put in, which can double it line after line.

    Raises
    ------
    ValueError
        If it would have more than `LONGEST` letters.
    """
    size = sum(len(put_in(found)) for found in pattern.finditer(text))
    if size > LONGEST:
        raise ValueError(f"variables that make a value of {size} letters")
    return pattern.sub(put_in, text)


def _put_in(found: re.Match[str], entries: Mapping[str, Entry]) -> str:
    name = found[1] or found[3]
    if name in entries:
        return str(entries[name].value)
    return found[2] if found[2] is not None else found[0]


def _arithmetic(text: str, entries: Mapping[str, Entry]) -> str:
    """Whole-number arithmetic; "" for anything else."""
    put_in = _replaced(VARIABLE, lambda name: _put_in(name, entries), text)
    put_in = _replaced(
        NAME,
        lambda name: str(entries[name[0]].value) if name[0] in entries else name[0],
        put_in,
    )
    try:
        number = _whole(ast.parse(put_in.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return ""
    return str(number)


def _whole(node: Any) -> int:
    number = _calculated(node)
    files.check_numbers(number)
    return number


def _calculated(node: Any) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            return left // right
    raise ValueError("no arithmetic of whole numbers")
