"""Python recipes, read as text: what a function sets, as far as it is written out. Nothing is imported or executed.

Constants, calls of functions of the same file with their default arguments, and conditions on known values are worked
out; everything else is a value that is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, Mistake, unknown
from workloads.recipes import _values
from workloads.recipes._documents import Document, Entry
from workloads.recipes._values import Made, Unknown, called, plain, unknown_of

#: Statements that are followed, and calls in calls.
MOST_STATEMENTS, DEEPEST = 20_000, 16


def functions_of(path: Path, text: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name.

    Raises InputError if it is no Python.
    """
    return {
        node.name: node
        for node in _module(path, text).body
        if isinstance(node, ast.FunctionDef)
    }


def _module(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        found = getattr(error, "msg", None) or str(error)
        raise InputError(Mistake(where, "", found, "Python")) from None
    except (RecursionError, MemoryError):
        raise InputError(Mistake(str(path), "", files.DEEP, "Python")) from None


def read_function(path: Path, text: str, name: str) -> tuple[Document, tuple[str, ...]]:
    """What a function returns, as flat keys; and statements whose conditions are not known.

    Raises
    ------
    InputError
        If there is no such function, or it returns nothing with keys.
    """
    reader = Reader(path, text)
    if name not in reader.functions:
        raise InputError(unknown(str(path), "function", name, reader.functions))
    try:
        made = reader.call(reader.functions[name], [], {})
    except RecursionError:
        raise InputError(Mistake(str(path), name, files.DEEP, "Python")) from None
    if not isinstance(made, Made):
        expected = "a function that returns a configuration"
        raise InputError(Mistake(str(path), name, "no configuration", expected))
    entries = {"recipe": Entry(called(made)), **dict(_flat(made, ""))}
    return Document(path, "python", entries, text, name), tuple(reader.open)


def _flat(made: Made, prefix: str) -> Iterator[tuple[str, Entry]]:
    """Keys under a value, with the call that made it as a value of its own."""
    for key, value in made.values.items():
        line = made.lines.get(key, 0)
        if isinstance(value, Made):
            yield f"{prefix}{key}", Entry(called(value), line)
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", Entry([plain(item) for item in value], line)
            for item in value:
                if isinstance(item, Made):
                    yield from _flat(item, f"{prefix}{key}.{item.name}.")
        else:
            yield f"{prefix}{key}", Entry(plain(value), line)


class Reader:
    """Works out what functions of a file return."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        module = _module(path, text)
        self.functions = functions_of(path, text)
        self.left = MOST_STATEMENTS
        self.depth = 0
        self.open: list[str] = []
        self.globals: dict[str, Any] = {}
        for node in module.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self._assign(node, self.globals)

    def call(
        self, function: ast.FunctionDef, args: list[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """What a function returns for these arguments, and its defaults for the others."""
        self.depth += 1
        try:
            if self.depth > DEEPEST:
                return Unknown(function.name)
            returned, value = self._block(
                function.body, self._bound(function, args, keywords)
            )
            return value if returned else None
        finally:
            self.depth -= 1

    def _bound(
        self, function: ast.FunctionDef, args: list[Any], keywords: Mapping[str, Any]
    ) -> dict[str, Any]:
        stated = function.args
        names = [one.arg for one in (*stated.posonlyargs, *stated.args)]
        bound: dict[str, Any] = {
            one.arg: Unknown(one.arg)
            for one in (*stated.posonlyargs, *stated.args, *stated.kwonlyargs)
        }
        for name, default in zip(
            names[len(names) - len(stated.defaults) :], stated.defaults, strict=True
        ):
            bound[name] = self.value(default, {})
        for one, usual in zip(stated.kwonlyargs, stated.kw_defaults, strict=True):
            if usual is not None:
                bound[one.arg] = self.value(usual, {})
        bound |= dict(zip(names, args, strict=False))
        return bound | {key: value for key, value in keywords.items() if key in bound}

    def _block(self, body: list[ast.stmt], env: dict[str, Any]) -> tuple[bool, Any]:
        """Follows statements; whether one returned, and what."""
        for node in body:
            self.left -= 1
            if self.left < 0:
                found, expected = "more statements than a recipe has", "a recipe"
                raise InputError(Mistake(str(self.path), "", found, expected))
            if isinstance(node, ast.Return):
                return True, self.value(node.value, env) if node.value else None
            if isinstance(node, ast.If):
                returned, value = self._if(node, env)
                if returned:
                    return True, value
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self._assign(node, env)
            elif isinstance(node, ast.Expr):
                self._expression(node.value, env)
            elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
                self._left_open(node)
        return False, None

    def _left_open(self, node: ast.stmt) -> None:
        head = ast.unparse(node).partition("\n")[0]
        self.open.append(f"{self.path}:{node.lineno}: {head}")

    def _if(self, node: ast.If, env: dict[str, Any]) -> tuple[bool, Any]:
        """The branch that a known condition takes; none of an unknown one."""
        test = self.value(node.test, env)
        if isinstance(test, Unknown | Made):
            self._left_open(node)
            return False, None
        return self._block(node.body if test else node.orelse, env)

    def _assign(self, node: ast.Assign | ast.AnnAssign, env: dict[str, Any]) -> None:
        if node.value is None:
            return
        value = self.value(node.value, env)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                env[target.id] = value
            elif isinstance(target, ast.Attribute):
                owner = self._owner(target.value, env, node.lineno)
                if owner is not None:
                    owner.put(target.attr, value, node.lineno)

    def _owner(self, node: ast.expr, env: dict[str, Any], line: int) -> Made | None:
        """What an attribute is set on; made where only its use shows that it is there."""
        if isinstance(node, ast.Name):
            found = env.get(node.id)
            if isinstance(found, Unknown):
                found = env[node.id] = Made(found.text)
            return found if isinstance(found, Made) else None
        if isinstance(node, ast.Attribute):
            above = self._owner(node.value, env, line)
            if above is None:
                return None
            inner = above.values.get(node.attr)
            if not isinstance(inner, Made):
                inner = Made(node.attr)
                above.put(node.attr, inner, line)
            return inner
        return None

    def _expression(self, node: ast.expr, env: dict[str, Any]) -> None:
        """`x.callbacks.append(y)`: the list of callbacks has one more."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return
        target = node.func.value
        if node.func.attr != "append" or not isinstance(target, ast.Attribute):
            return
        owner = self._owner(target.value, env, node.lineno)
        if owner is not None and node.args:
            listed = owner.values.get(target.attr)
            item = self.value(node.args[0], env)
            kept = list(listed) if isinstance(listed, list) else []
            owner.put(target.attr, [*kept, item], node.lineno)

    def value(self, node: ast.expr, env: Mapping[str, Any]) -> Any:
        """The value of an expression as far as it is written out."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            known = {**self.globals, **env}
            return known.get(node.id, Unknown(node.id))
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(item, env) for item in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node, env)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, env)
        if isinstance(node, ast.Dict):
            return self._dict(node, env)
        return self._worked_out(node, env)

    def _dict(self, node: ast.Dict, env: Mapping[str, Any]) -> Any:
        made = Made("dict")
        for key, value in zip(node.keys, node.values, strict=True):
            name = self.value(key, env) if key is not None else None
            if isinstance(name, str):
                made.put(name, self.value(value, env), value.lineno)
        return made

    def _attribute(self, node: ast.Attribute, env: Mapping[str, Any]) -> Any:
        owner = self.value(node.value, env)
        if isinstance(owner, Made) and node.attr in owner.values:
            return owner.values[node.attr]
        return Unknown(ast.unparse(node))

    def _worked_out(self, node: ast.expr, env: Mapping[str, Any]) -> Any:
        """Conditions and arithmetic on known values."""
        if isinstance(node, ast.UnaryOp):
            return _values.turned(node, self.value(node.operand, env))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            right = self.value(node.comparators[0], env)
            return _values.compared(node, self.value(node.left, env), right)
        if isinstance(node, ast.BoolOp):
            return _values.decided(node, [self.value(one, env) for one in node.values])
        if isinstance(node, ast.BinOp):
            right = self.value(node.right, env)
            return _values.computed(node, self.value(node.left, env), right)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, env)
            if not isinstance(test, Unknown | Made):
                return self.value(node.body if test else node.orelse, env)
        return unknown_of(node)

    def _call(self, node: ast.Call, env: Mapping[str, Any]) -> Any:
        """A call: of a function of this file what it returns, else its name and arguments."""
        args = [self.value(arg, env) for arg in node.args]
        keywords = {
            one.arg: self.value(one.value, env) for one in node.keywords if one.arg
        }
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            return self.call(self.functions[node.func.id], args, keywords)
        if isinstance(node.func, ast.Attribute) and isinstance(
            node.func.value, ast.Call
        ):
            inner = self.value(node.func.value, env)  # from_hf_pretrained(..).to_..(..)
            if isinstance(inner, Made):
                args = [*inner.args, *args]
                name = f"{inner.name}.{node.func.attr}"
                return self._made(name, args, inner.values | keywords, node)
        text = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "lower",
            "upper",
        ):
            owner = self.value(node.func.value, env)
            if isinstance(owner, str):
                return owner.lower() if node.func.attr == "lower" else owner.upper()
        if text in ("run.Config", "run.Partial", "Config", "Partial") and args:
            first, *args = args
            text = str(plain(first))
        return self._made(text, args, keywords, node)

    def _made(
        self, name: str, args: list[Any], values: Mapping[str, Any], node: ast.Call
    ) -> Made:
        made = Made(name.rpartition(".")[2] if name.count(".") == 1 else name, args)
        for key, value in values.items():
            made.put(key, value, node.lineno)
        return made
