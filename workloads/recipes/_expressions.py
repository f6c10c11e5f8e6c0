"""Values of expressions in Python recipes, as far as they are written out; nothing is imported or executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from prestep.workloads.models.model import MODELS, read_model
from prestep.workloads.recipes import _models, _values
from prestep.workloads.recipes._values import Made, Unknown, plain, unknown_of

#: Methods of texts that are worked out.
TEXTS = ("lower", "upper", "join")
#: A function by its arguments, those in order and those by name.
Function = Callable[[list[Any], Mapping[str, Any]], Any]


class Expressions:
    """Works out expressions; a reader of a file knows what names and functions stand for."""

    def named(self, name: str) -> Any:
        """What a name of the file stands for outside its functions."""
        raise NotImplementedError

    def function(self, name: str) -> Function | None:
        """A function that is written in the file, or in a file of the checkout that it imports from."""
        raise NotImplementedError

    def value(self, node: ast.expr, env: Mapping[str, Any]) -> Any:
        """The value of an expression as far as it is written out."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return env[node.id] if node.id in env else self.named(node.id)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self.value(item, env) for item in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node, env)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, env)
        if isinstance(node, ast.Dict):
            return self._dict(node, env)
        if isinstance(node, ast.Subscript):
            return _values.item(
                self.value(node.value, env), self.value(node.slice, env), node
            )
        if isinstance(node, ast.ListComp) and len(node.generators) == 1:
            return self._comprehended(node, env)
        return self._worked_out(node, env)

    def _comprehended(self, node: ast.ListComp, env: Mapping[str, Any]) -> Any:
        """A list over a list that is known, with known conditions."""
        loop = node.generators[0]
        items = self.value(loop.iter, env)
        if not isinstance(items, list) or not isinstance(loop.target, ast.Name):
            return unknown_of(node)
        made = []
        for one in items:
            inner = {**env, loop.target.id: one}
            tests = [self.value(test, inner) for test in loop.ifs]
            if not all(_values.known(test) for test in tests):
                return unknown_of(node)
            if all(tests):
                made.append(self.value(node.elt, inner))
        return made

    def _dict(self, node: ast.Dict, env: Mapping[str, Any]) -> Any:
        made = Made("dict")
        for key, value in zip(node.keys, node.values, strict=True):
            name = None if key is None else _values.key_of(self.value(key, env))
            if name is not None:
                made.put(name, self.value(value, env), value.lineno)
        return made

    def _attribute(self, node: ast.Attribute, env: Mapping[str, Any]) -> Any:
        owner = self.value(node.value, env)
        if isinstance(owner, Made) and node.attr in owner.values:
            return owner.values[node.attr]
        if isinstance(owner, Made) and (size := _sized(owner, node.attr)):
            return size
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
            if _values.known(test):
                return self.value(node.body if test else node.orelse, env)
        return unknown_of(node)

    def _call(self, node: ast.Call, env: Mapping[str, Any]) -> Any:
        """A call: of a function of this file what it returns, else its name and arguments."""
        args = [self.value(arg, env) for arg in node.args]
        keywords = {
            one.arg: self.value(one.value, env) for one in node.keywords if one.arg
        }
        result = None
        if isinstance(node.func, ast.Name):
            function = self.function(node.func.id)
            if function is not None:
                return function(args, keywords)  # None, too, is what it returns
            result = self._built_in(node, args)
            if node.func.id == "replace" and args and isinstance(args[0], Made):
                result = args[0].changed(keywords, node.lineno)
        elif isinstance(node.func, ast.Attribute):
            result = self._method(node, node.func, env, args, keywords)
        if result is not None:
            return result
        text = ast.unparse(node.func)
        if isinstance(node.func, ast.Subscript):  # KINDS["lora"]()
            key = self.value(node.func.slice, env)
            text = key if isinstance(key, str) else text
        if text in ("run.Config", "run.Partial", "Config", "Partial") and args:
            first, *args = args
            text = str(plain(first))
        return self._made(text, args, keywords, node)

    @staticmethod
    def _built_in(node: ast.Call, args: list[Any]) -> Any:
        """What one of Python's functions returns; None for any other."""
        known = _values.built_in(node, args)
        if isinstance(known, Unknown) and isinstance(args[1], str):
            known = _sized(args[0], args[1]) or known
        return known

    def _method(
        self,
        node: ast.Call,
        method: ast.Attribute,
        env: Mapping[str, Any],
        args: list[Any],
        keywords: dict[str, Any],
    ) -> Any:
        """A method of what another call makes, or of a text; None for any other."""
        if isinstance(method.value, ast.Call):
            inner = self.value(method.value, env)  # from_hf_pretrained(..).to_..(..)
            if isinstance(inner, Made):
                name = f"{inner.name}.{method.attr}"
                every = [*inner.args, *args]
                return self._made(name, every, inner.values | keywords, node)
        owner = self.value(method.value, env) if method.attr in TEXTS else None
        if not isinstance(owner, str):
            return None
        if method.attr != "join":
            return owner.lower() if method.attr == "lower" else owner.upper()
        parts = args[0] if args and isinstance(args[0], list) else [None]
        if not all(isinstance(part, str) for part in parts):
            return unknown_of(node)
        return owner.join(map(str, parts))

    def _made(
        self, name: str, args: list[Any], values: Mapping[str, Any], node: ast.Call
    ) -> Made:
        first, _, last = name.partition(".")
        short = last if last and "." not in last and last != "Config" else name
        made = Made(short if first != "run" else last, args)
        for key, value in values.items():
            made.put(key, value, node.lineno)
        return made


#: Attributes of Megatron-Bridge's models -> those of the models here.
SIZES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
}


def _sized(made: Made, attribute: str) -> int | None:
    """A size of a model that a call names, such as `from_hf_pretrained("deepseek-ai/DeepSeek-V3")`."""
    key = SIZES.get(attribute)
    names = [_models.model_named(one) for one in made.args if isinstance(one, str)]
    name = next(filter(None, names), "")
    if key is None or not name:
        return None
    model = read_model(MODELS / f"{name}.toml")
    return getattr(model, key) or (
        len(model.layer_pattern or "") if key == "layers" else None
    )
