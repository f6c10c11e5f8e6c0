"""Shell scripts that export variables: what they set, and the scripts beside them that they source; none is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError
from prestep.workloads.recipes._documents import Document, Entry, text_of
from prestep.workloads.substitution import EXPECTED, Bounded, substituted

#: Scripts that source each other.
DEEPEST = 8
# export NAME=value, NAME=value, : ${NAME:=value}
ASSIGNED = re.compile(r"^[\s&]*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
DEFAULT = re.compile(r"^\s*:\s*\"?\$\{([A-Za-z_]\w*):?=([^}]*)\}")
# Commands of a line: text in quotes, in $(...) and in $((...)) may hold semicolons.
# Their lengths are bounded: each of many brackets that nobody closes would be looked for to the end.
COMMANDS = re.compile(
    r"""((?:"[^"]*"|'[^']*'|\$\(\([^\n]{0,2000}?\)\)|\$\([^\n]{0,2000}\)|\$\{[^}]{0,2000}\}|(?!&&)[^;\n])+)"""
)
UNSET = re.compile(r"^[\s&]*unset\s+(?:-v\s+)?([A-Za-z_]\w*(?:\s+[A-Za-z_]\w*)*)\s*$")
SOURCED = re.compile(r"^\s*(?:source|\.)\s+(.+?)\s*$")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]{0,2000}))?\}|(\w+))")
NAME = re.compile(r"\b[A-Za-z_]\w*\b")
ARITHMETIC = re.compile(r"\$\(\((.*)\)\)")


class Script:
    """What scripts have set so far: values and their lines, by name."""

    def __init__(self) -> None:
        self.values = Bounded()
        self.lines: dict[str, int] = {}

    def set(self, name: str, value: str, line: int) -> None:
        self.values[name] = value
        self.lines[name] = line

    def entries(self) -> dict[str, Entry]:
        return {
            name: Entry(self.values[name], line) for name, line in self.lines.items()
        }


def read_exports(path: Path, text: str) -> Document:
    """The variables that a script sets, by name; arithmetic on its own variables is worked out, commands are not.

    Raises
    ------
    InputError
        If it sources a script that is not beside it, or itself.
    """
    script = Script()
    _read(path, text, script, ())
    return Document(path, "shell", script.entries(), text)


def _read(path: Path, text: str, script: Script, above: tuple[Path, ...]) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        for command in COMMANDS.findall(re.sub(r"(^|\s)#.*$", "", line)):
            _command(path, number, command, script, above)


def _command(
    path: Path, number: int, line: str, script: Script, above: tuple[Path, ...]
) -> None:
    """One command of a line."""
    try:
        _set(path, number, line, script, above)
    except ValueError as error:
        raise InputError.of(f"{path}:{number}", "", str(error), EXPECTED) from None


def _set(
    path: Path, number: int, line: str, script: Script, above: tuple[Path, ...]
) -> None:
    if found := SOURCED.match(line):
        _source(path, number, found[1], script, (*above, path.resolve()))
    elif found := UNSET.match(line):
        for name in found[1].split():
            script.values.pop(name, None)
            script.lines.pop(name, None)
    elif found := DEFAULT.match(line):
        if found[1] not in script.values:
            script.set(found[1], _value(found[2], script.values), number)
    elif found := ASSIGNED.match(line):
        script.set(found[1], _value(found[2], script.values), number)


def _source(
    path: Path, number: int, said: str, script: Script, above: tuple[Path, ...]
) -> None:
    """Reads a script that another sources; it lies beside it."""
    name = said.strip("\"'").rpartition("/")[2]
    beside = path.parent / name
    where, expected = f"{path}:{number}", "a script beside it"
    if beside.resolve() in above or len(above) > DEEPEST:
        raise InputError.of(where, "source", name, "scripts without a circle")
    if not beside.is_file():
        hint = f"put {name} beside {path.name}, or take the line out"
        raise InputError.of(where, "source", said, expected, hint)
    _read(beside, text_of(beside), script, above)


def _value(text: str, values: Mapping[str, str]) -> str:
    """A value with the script's own variables put in; what a command would print stays as it is written."""
    value = text.strip().rstrip("\\;").strip()
    if value[:1] in "\"'" and value[:1] == value[-1:] and len(value) > 1:
        value = value[1:-1]
    if found := ARITHMETIC.fullmatch(value):
        return _arithmetic(found[1], values) or value
    return substituted(VARIABLE, lambda name: _put_in(name, values), value)


def _put_in(found: re.Match[str], values: Mapping[str, str]) -> str:
    name = found[1] or found[3]
    if name in values:
        return values[name]
    return found[2] if found[2] is not None else found[0]


def _arithmetic(text: str, values: Mapping[str, str]) -> str:
    """Whole-number arithmetic; "" for anything else."""
    put_in = substituted(VARIABLE, lambda name: _put_in(name, values), text)
    put_in = substituted(
        NAME, lambda name: values[name[0]] if name[0] in values else name[0], put_in
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
