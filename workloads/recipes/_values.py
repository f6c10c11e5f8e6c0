"""Values of Python recipes that are read as text: what calls make, what is not known, and operators on known values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
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


def known(value: Any) -> bool:
    """Whether a value is written out, or an object of a class (in capitals); what another call returns is not."""
    if isinstance(value, Made):
        last = value.name.rpartition(".")[2]
        return last == "dict" or last[:1].isupper()
    return not isinstance(value, Unknown)


def called(made: Made) -> str:
    """How a value was made: the call's name, and texts and names among its arguments."""
    shown = [str(plain(arg)) for arg in made.args]
    return f"{made.name}({', '.join(shown)})"


def plain(value: Any) -> Any:
    if isinstance(value, Made):
        return called(value)
    return value.text if isinstance(value, Unknown) else value


KINDS: dict[str, type] = {"str": str, "int": int, "list": list, "bool": bool}
ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def unknown_of(node: ast.AST) -> Unknown:
    """An expression that is not worked out."""
    return Unknown(ast.unparse(node)[:200])


def turned(node: ast.UnaryOp, value: Any) -> Any:
    """`not x` and `-x` of known values."""
    if isinstance(node.op, ast.Not) and known(value):
        return not value
    if isinstance(node.op, ast.USub) and isinstance(value, int | float):
        return -value
    return unknown_of(node)


def compared(node: ast.Compare, left: Any, right: Any) -> Any:
    """`is`, `==` and their opposites of known values."""
    how = node.ops[0]
    if not (known(left) and known(right)):
        return unknown_of(node)
    if isinstance(how, ast.Is | ast.IsNot):
        return (left is right) == isinstance(how, ast.Is)
    if isinstance(how, ast.Eq | ast.NotEq):
        return (left == right) == isinstance(how, ast.Eq)
    alike = plain_values(left, right)
    if isinstance(how, ast.In | ast.NotIn) and isinstance(right, list):
        return (left in right) == isinstance(how, ast.In)
    for kind, holds in ORDERS.items():
        if isinstance(how, kind) and alike:
            return holds(left, right)
    return unknown_of(node)


def plain_values(*values: Any) -> bool:
    """Whether all are numbers, or all texts."""
    kinds: tuple[type, ...] = (int, float)
    numbers = all(isinstance(value, kinds) for value in values)
    return numbers or all(isinstance(value, str) for value in values)


def built_in(node: ast.Call, args: list[Any]) -> Any:
    """What a function of Python's own returns of known values; None for any other."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("deepcopy", "copy") and args:
        return args[0]
    if name == "cast" and len(args) == 2:
        return args[1]
    if name == "isinstance" and len(args) == 2 and known(args[0]):
        kind = KINDS.get(str(plain(args[1])))
        return None if kind is None else isinstance(args[0], kind)
    if name in ("int", "str") and len(args) == 1 and plain_values(args[0], args[0]):
        return _converted(name, args[0])
    return None


def _converted(name: str, value: Any) -> Any:
    try:
        return int(value) if name == "int" else str(value)
    except ValueError:
        return None


def decided(node: ast.BoolOp, values: list[Any]) -> Any:
    """`and` and `or` as far as their values are known."""
    ends = isinstance(node.op, ast.Or)  # the truth that decides it
    for value in values:
        if not known(value):
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
