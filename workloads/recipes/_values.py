"""Values of Python recipes that are read as text: what calls make, what is not known, and operators on known values."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Made:
    """What a call makes: its name, its arguments, and what is set on it afterwards."""

    name: str
    args: list[Any] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def put(self, key: str, value: Any, line: int) -> None:
        self.values[key] = value
        self.lines[key] = line


@dataclass(frozen=True)
class Unknown:
    """A value that is not written out: how it is written."""

    text: str


def called(made: Made) -> str:
    """How a value was made: the call's name, and texts and names among its arguments."""
    shown = [str(plain(arg)) for arg in made.args]
    return f"{made.name}({', '.join(shown)})"


def plain(value: Any) -> Any:
    if isinstance(value, Made):
        return called(value)
    return value.text if isinstance(value, Unknown) else value


def unknown_of(node: ast.AST) -> Unknown:
    """An expression that is not worked out."""
    return Unknown(ast.unparse(node)[:200])


def turned(node: ast.UnaryOp, value: Any) -> Any:
    """`not x` and `-x` of known values."""
    if isinstance(node.op, ast.Not) and not isinstance(value, Unknown | Made):
        return not value
    if isinstance(node.op, ast.USub) and isinstance(value, int | float):
        return -value
    return unknown_of(node)


def compared(node: ast.Compare, left: Any, right: Any) -> Any:
    """`is`, `==` and their opposites of known values."""
    operator = node.ops[0]
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return unknown_of(node)
    if isinstance(operator, ast.Is | ast.IsNot):
        return (left is right) == isinstance(operator, ast.Is)
    if isinstance(operator, ast.Eq | ast.NotEq):
        return (left == right) == isinstance(operator, ast.Eq)
    return unknown_of(node)


def decided(node: ast.BoolOp, values: list[Any]) -> Any:
    """`and` and `or` as far as their values are known."""
    ends = isinstance(node.op, ast.Or)  # the truth that decides it
    for value in values:
        if isinstance(value, Unknown):
            return unknown_of(node)
        if bool(value) == ends:
            return value
    return values[-1]


def computed(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Arithmetic of whole numbers."""
    if type(left) is not int or type(right) is not int:
        return unknown_of(node)
    if isinstance(node.op, ast.Mult) and abs(left * right) < 2**63:
        return left * right
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.FloorDiv) and right:
        return left // right
    return unknown_of(node)
