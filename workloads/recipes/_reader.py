"""Works out what functions of Python recipes return, statement by statement; nothing is imported or executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.recipes import _documents, _values
from prestep.workloads.recipes._documents import (
    functions_of,
    imported_by,
    module_of,
    text_of,
)
from prestep.workloads.recipes._expressions import Expressions, Function
from prestep.workloads.recipes._rules import decides
from prestep.workloads.recipes._values import Made, Unknown, plain, unknown_of

#: Statements that are followed, and calls in calls.
MOST_STATEMENTS, DEEPEST = 20_000, 16

#: Functions that formats know by their names and arguments, or whose arguments are a model's sizes (torchtitan).
WORDS = re.compile(
    r"default_peft_config|\w*model_registry|to_graph_trainer_config|_?build_\w*layers|\w*vision_encoder_config"
)
#: Keys that helpers of megatron/bridge/utils/cuda_graph.py set, whichever release of Megatron they find.
GRAPHS = {
    "set_cuda_graph_modules": ("cuda_graph_scope",),
    "set_full_iteration_cuda_graph": ("cuda_graph_impl",),
}
#: Statements that are named instead of followed.
OPEN = (ast.While, ast.With, ast.Match, ast.Delete)


@dataclass
class Shared:
    """What readers of several files have in common.

    Attributes
    ----------
    left : int
        Statements that may still be followed.
    depth : int
        Calls in calls.
    open : list of str
        Statements that were not followed.
    deciding : dict
        Those among them that would set a degree, a size, a layout or a number format: names of what they set.
    readers : dict
        Readers by file; None: it is no Python.
    """

    left: int = MOST_STATEMENTS
    depth: int = 0
    open: list[str] = field(default_factory=list)
    deciding: dict[str, set[str]] = field(default_factory=dict)
    readers: dict[Path, Reader | None] = field(default_factory=dict)


class Reader(Expressions):
    """Works out what functions of a file return, and of those that it imports."""

    def __init__(self, path: Path, text: str, shared: Shared | None = None) -> None:
        self.path, self.shared = path, shared or Shared()
        module = module_of(path, text)
        self.functions = functions_of(path, text)
        self.imports = imported_by(path, text)
        self.globals: dict[str, Any] = {}
        self.assigned = {
            target.id: node.value
            for node in module.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (
                node.targets if isinstance(node, ast.Assign) else [node.target]
            )
            if isinstance(target, ast.Name)
        }

    def function(self, name: str) -> Function | None:
        found = None if WORDS.fullmatch(name) else self.written(name)
        return None if found is None else partial(found[0].call, found[1])

    def result(self, node: ast.expr) -> Any:
        """What an entry of a table of functions makes: a function's name, one with some of its arguments, or a call."""
        names, keywords = [node], []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "partial":
            names, keywords = node.args[:1], node.keywords
        function = self.function(ast.unparse(names[0]))
        if function is None:
            return self.value(node, {})
        given = {one.arg: self.value(one.value, {}) for one in keywords if one.arg}
        return function([], given)

    def written(
        self, name: str, depth: int = 0
    ) -> tuple[Reader, ast.FunctionDef] | None:
        """A function by the name that it has in this file, with the reader of the file that it is written in."""
        if name in self.functions:
            return self, self.functions[name]
        source = self.imports.get(name)
        if source is None or depth > DEEPEST:
            return None
        other = self._imported(source)
        if other is None:
            return None
        return other.written(source.name, depth + 1)

    def _imported(self, source: _documents.Source) -> Reader | None:
        """The reader of a file that this one imports from, if it is there."""
        file = _documents.file_of(self.path, source)
        if file is None:
            return None
        readers = self.shared.readers
        if file not in readers:
            try:
                readers[file] = Reader(file, text_of(file), self.shared)
            except InputError:
                readers[file] = None
        return readers[file]

    def named(self, name: str, depth: int = 0) -> Any:
        """What a name of the file stands for outside its functions."""
        if name in self.globals:
            return self.globals[name]
        node, source = self.assigned.get(name), self.imports.get(name)
        self.globals[name] = Unknown(name)  # while it is worked out
        if node is not None:
            self.globals[name] = self.value(node, {})
        elif source is not None and depth <= DEEPEST:
            other = self._imported(source)
            if other is not None:
                self.globals[name] = other.named(source.name, depth + 1)
        return self.globals[name]

    def call(
        self, function: ast.FunctionDef, args: list[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """What a function returns for these arguments, and its defaults for the others."""
        self.shared.depth += 1
        try:
            if self.shared.depth > DEEPEST:
                return Unknown(function.name)
            returned, value = self._block(
                function.body, self._bound(function, args, keywords)
            )
            return value if returned else None
        finally:
            self.shared.depth -= 1

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
            self.shared.left -= 1
            if self.shared.left < 0:
                found, expected = "more statements than a recipe has", "a recipe"
                raise InputError.of(str(self.path), "", found, expected)
            returned, value = self._statement(node, env)
            if returned:
                return True, value
        return False, None

    def _statement(self, node: ast.stmt, env: dict[str, Any]) -> tuple[bool, Any]:
        """Follows a statement; whether it returned, and what."""
        if isinstance(node, ast.Return):
            return True, self.value(node.value, env) if node.value else None
        if isinstance(node, ast.Raise):
            return True, unknown_of(node)
        if isinstance(node, ast.Try):
            return self._try(node, env)
        if isinstance(node, ast.If):
            return self._if(node, env)
        if isinstance(node, ast.For):
            return self._for(node, env)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            self._assign(node, env)
        elif isinstance(node, ast.AugAssign):
            self._augmented(node, env)
        elif isinstance(node, ast.Expr):
            self._expression(node.value, env)
        elif isinstance(node, OPEN):
            self._left_open(node)
        return False, None

    def _try(self, node: ast.Try, env: dict[str, Any]) -> tuple[bool, Any]:
        """A body that goes well: handlers are for what went wrong."""
        returned, value = self._block([*node.body, *node.orelse], env)
        if returned and isinstance(value, Unknown):
            self._left_open(node)
            return False, None
        return returned, value

    def _for(self, node: ast.For, env: dict[str, Any]) -> tuple[bool, Any]:
        """A loop over a list that is written out."""
        items = self.value(node.iter, env)
        if not isinstance(items, list) or not isinstance(node.target, ast.Name):
            self._left_open(node)
            return False, None
        for item in items:
            env[node.target.id] = item
            returned, value = self._block(node.body, env)
            if returned:
                return True, value
        return False, None

    def _left_open(self, node: ast.stmt | ast.expr) -> None:
        head = ast.unparse(node).partition("\n")[0]
        text = f"{self.path}:{node.lineno}: {head}"
        names = _decided(node)
        if names:
            self.shared.deciding.setdefault(text, names)
        elif text not in self.shared.open:
            self.shared.open.append(text)

    def _if(self, node: ast.If, env: dict[str, Any]) -> tuple[bool, Any]:
        """The branch that a known condition takes; none of an unknown one."""
        test = self.value(node.test, env)
        if not _values.known(test):
            self._left_open(node)
            return False, None
        return self._block(node.body if test else node.orelse, env)

    def _assign(self, node: ast.Assign | ast.AnnAssign, env: dict[str, Any]) -> None:
        if node.value is None:
            return
        value = self.value(node.value, env)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            self._put(target, value, env)

    def _augmented(self, node: ast.AugAssign, env: dict[str, Any]) -> None:
        """`x += y` as `x = x + y`."""
        made = ast.BinOp(node.target, node.op, node.value)
        ast.copy_location(made, node)
        self._put(node.target, self.value(made, env), env)

    def _put(self, target: ast.expr, value: Any, env: dict[str, Any]) -> None:
        """Gives a name or an attribute its value; several of a tuple."""
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, env, target.lineno)
            if owner is not None:
                owner.put(target.attr, value, target.lineno)
        elif isinstance(target, ast.Tuple | ast.List):
            several = isinstance(value, list) and len(value) == len(target.elts)
            for at, each in enumerate(target.elts):
                part = value[at] if several else Unknown(str(plain(value)))
                self._put(each, part, env)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, env), self.value(target.slice, env)
            if isinstance(owner, Made) and isinstance(key, str):
                owner.put(key, value, target.lineno)
            elif _values.has_item(owner, key):
                owner[key] = value
            else:
                self._left_open(target)

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
        """`x.callbacks.append(y)`: the list of callbacks has one more; a function that changes its arguments."""
        if not isinstance(node, ast.Call):
            return
        if isinstance(node.func, ast.Name):
            self._changing(node, env)
        if not isinstance(node.func, ast.Attribute):
            return
        target = node.func.value
        if isinstance(target, ast.Name) and node.args:
            self._grown(
                node.func.attr, env.get(target.id), self.value(node.args[0], env)
            )
        if node.func.attr != "append" or not isinstance(target, ast.Attribute):
            return
        owner = self._owner(target.value, env, node.lineno)
        if owner is not None and node.args:
            listed = owner.values.get(target.attr)
            item = self.value(node.args[0], env)
            kept = list(listed) if isinstance(listed, list) else []
            owner.put(target.attr, [*kept, item], node.lineno)

    @staticmethod
    def _grown(how: str, grown: Any, more: Any) -> None:
        """`x.append(y)` and `x.extend(y)` of a list of this function."""
        if isinstance(grown, list) and how == "append":
            grown.append(more)
        elif isinstance(grown, list) and how == "extend" and isinstance(more, list):
            grown.extend(more)

    def _changing(self, node: ast.Call, env: dict[str, Any]) -> None:
        """A call for what it does to its arguments."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        args = [self.value(arg, env) for arg in node.args]
        if name == "setattr" and len(args) == 3 and isinstance(args[0], Made):
            if isinstance(args[1], str):
                args[0].put(args[1], args[2], node.lineno)
        elif name in GRAPHS and args and isinstance(args[0], Made):
            for key, value in zip(
                GRAPHS[name], [*args[1:], "full_iteration"], strict=False
            ):
                args[0].put(key, value, node.lineno)
        elif self.function(name) is not None:
            self.value(node, env)
        elif any(isinstance(arg, Made) for arg in args):
            self._left_open(node)


def _decided(node: ast.AST) -> set[str]:
    """Names of attributes that a statement would set, or of a function that sets them, which decide on a step."""
    names: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            value = one.value.value if isinstance(one.value, ast.Constant) else True
            attributes = [
                part.attr for part in targets if isinstance(part, ast.Attribute)
            ]
            names |= {name for name in attributes if decides(name, value)}
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Name):
            name = one.func.id.lstrip("_")
            if name.startswith("set_") and decides(name):
                names.add(name)
    return names
