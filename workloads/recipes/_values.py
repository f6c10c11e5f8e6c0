"""Values of Python recipes that are read as text: what calls make, what is not known, and operators on known values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
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

    def changed(self, values: Mapping[str, Any], line: int) -> Made:
        """The same with other values of some keys (`dataclasses.replace`)."""
        lines = self.lines | dict.fromkeys(values, line)
        return Made(self.name, self.args, self.values | dict(values), lines)


@dataclass(frozen=True)
class Unknown:
    """A value that is not written out: how it is written."""

    text: str


#: Items of a list that is worked out: longer ones are no layout.
LONGEST = 100_000


def key_of(value: Any) -> str | None:
    """A key of a dictionary as a text: of a pair of sizes, too; None of one that is not known."""
    if isinstance(value, str):
        return value
    whole = value if isinstance(value, list) else [value]
    plain_ones = all(isinstance(one, int | str | None) for one in whole)
    return str(value) if plain_ones else None


def item(owner: Any, index: Any, node: ast.AST) -> Any:
    """`owner[index]` of a known list or dictionary."""
    if has_item(owner, index):
        return owner[index]
    key = key_of(index) if isinstance(owner, Made) and owner.name == "dict" else None
    if key is None or key not in owner.values:
        return unknown_of(node)
    return owner.values[key]


def has_item(owner: Any, index: Any) -> bool:
    """Whether a value is a list with an item of that index."""
    whole = isinstance(owner, list) and type(index) is int
    return whole and -len(owner) <= index < len(owner)


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


ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
#: Functions that return their first argument, or what a trainer of its own takes for it (torchtitan).
COPIES = ("deepcopy", "copy", "to_graph_trainer_config")
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
    if isinstance(how, ast.In | ast.NotIn) and isinstance(right, Made):
        key = key_of(left) if right.name == "dict" else None
        return (
            unknown_of(node)
            if key is None
            else (key in right.values) == isinstance(how, ast.In)
        )
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
    if name in COPIES and args:
        return args[0]
    if name == "cast" and len(args) == 2:
        return args[1]
    if name == "isinstance" and len(args) == 2 and known(args[0]):
        kind = KINDS.get(str(plain(args[1])))
        return None if kind is None else isinstance(args[0], kind)
    if name in ATTRIBUTES and len(args) >= 2 and isinstance(args[0], Made):
        return _attribute(name, node, args)
    if len(args) == 1 and (made := _converted(name, args[0])) is not None:
        return made
    return _of_numbers(name, args)


#: Functions that ask an object for an attribute.
ATTRIBUTES = ("getattr", "hasattr")


def _attribute(name: str, node: ast.Call, args: list[Any]) -> Any:
    """`getattr` and `hasattr`: an attribute that nobody set may have a default that is not seen here."""
    owner, key = args[:2]
    if key in owner.values:
        return owner.values[key] if name == "getattr" else True
    return unknown_of(node)


def _of_numbers(name: str, args: list[Any]) -> Any:
    """Functions of whole numbers; None for any other."""
    if not args or any(type(one) is not int for one in args):
        return None
    if name in ("min", "max") and len(args) > 1:
        return min(args) if name == "min" else max(args)
    if name == "divmod" and len(args) == 2 and args[1]:
        return list(divmod(args[0], args[1]))
    if name == "abs" and len(args) == 1:
        return abs(args[0])
    if name == "range" and len(args) <= 3 and len(range(*args)) <= LONGEST:
        return list(range(*args))
    return None


def _converted(name: str, value: Any) -> Any:
    """What Python's own types and `len` make of a known value; None for anything else."""
    if name == "bool" and known(value):
        return bool(value)
    if name == "len" and isinstance(value, list):
        return len(value)
    if name in ("list", "tuple") and isinstance(value, list):
        return list(value)
    if name not in ("int", "str") or not plain_values(value):
        return None
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
    """Arithmetic of numbers; lists and texts that are joined or repeated."""
    if isinstance(left, list | str) or isinstance(right, list | str):
        return _sequences(node, left, right)
    numbers = type(left) in (int, float) and type(right) in (int, float)
    compute = ARITHMETIC.get(type(node.op))
    if not numbers or compute is None:
        return unknown_of(node)
    try:
        made = compute(left, right)
    except ArithmeticError:
        return unknown_of(node)
    return made if abs(made) < 2**63 else unknown_of(node)


def _sequences(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Lists or texts one after the other, or one several times."""
    alike = type(left) is type(right) and isinstance(node.op, ast.Add)
    if alike and len(left) + len(right) <= LONGEST:
        return left + right
    many, times = (right, left) if isinstance(left, int) else (left, right)
    repeats = isinstance(node.op, ast.Mult) and type(times) is int
    if repeats and len(many) * max(0, times) <= LONGEST:
        return many * times
    return unknown_of(node)
