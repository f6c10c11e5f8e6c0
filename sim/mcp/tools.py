"""The tools that agents have: commands that print JSON, with their options as JSON Schema.

A tool's options are its command's, so they have one meaning and one help. Options that write files are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from prestep.sim import outputs, plugins
from prestep.sim.errors import InputError, unknown

#: A scenario as text, for agents that have no file to name.
INLINE = "scenario_toml"
#: Words of a call that are no option: what every tool asks for by itself, or has no use for.
_UNUSED = {"json_", "verbose", "jobs"}


@dataclass(frozen=True)
class Tool:
    """A command as a tool.

    Attributes
    ----------
    words : tuple of str
        The command.
    left_out : frozenset of str
        Options that only count for files that a tool does not write.
    fixed : tuple of str
        What its command line begins with.
    """

    words: tuple[str, ...]
    left_out: frozenset[str] = frozenset()
    fixed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "-".join(self.words)


_PICTURES = frozenset({"each", "trace_window", "trace_ranks"})
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(("run",), _PICTURES),
        Tool(("whatif",)),
        Tool(("search",), fixed=("--jobs", "1")),
        Tool(("collective",)),
        Tool(("replay",)),
        Tool(("doctor",)),
        Tool(("doctor", "nccl")),
        Tool(("list",), frozenset({"long_"})),
    )
}


def command_of(tool: Tool) -> click.Command:
    """The command of a tool, as the command line has it."""
    first, *rest = tool.words
    command: click.Command = plugins.load("prestep.sim.commands", first).command
    for word in rest:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


def description(tool: Tool) -> str:
    """What the command's help says, and where its keys are explained."""
    command = command_of(tool)
    text = (command.help or "").replace("\b\n", "").strip()
    return f"{text}\n\nSI units: seconds, bytes, bytes/s. Output: the JSON of `prestep {' '.join(tool.words)} --json`."


def input_schema(tool: Tool) -> dict[str, Any]:
    """The options and arguments of the command as JSON Schema."""
    params = dict(_params(tool))
    properties = {name: _schema(param) for name, param in params.items()}
    needed = [name for name, param in params.items() if param.required]
    if "scenario" in params:
        doc = "The scenario itself, as TOML, in place of a name or a file."
        properties[INLINE] = {"type": "string", "description": doc}
        needed = [name for name in needed if name != "scenario"]
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def output_schema(tool: Tool) -> dict[str, Any]:
    """The schema of its output; the protocol asks for an object, so a list is the key `result` of one."""
    schema = outputs.schema(tool.name)
    if schema.get("type") == "array":
        head = {key: schema.pop(key) for key in ("$schema", "title")}
        keys = {"properties": {"result": schema}, "required": ["result"]}
        return {**head, "type": "object", **keys}
    return {**schema, "type": "object"}


def structured(value: Any) -> dict[str, Any]:
    """The value of an output as that schema has it."""
    return value if isinstance(value, dict) else {"result": value}


def arguments(tool: Tool, given: Mapping[str, Any]) -> list[str]:
    """The command line of a call.

    Raises
    ------
    InputError
        With every argument that the tool does not have, or that has no value of its kind.
    """
    params = dict(_params(tool))
    known = [*params, *([INLINE] if "scenario" in params else [])]
    mistakes = [
        unknown(tool.name, "", name, known) for name in given if name not in params
    ]
    line: list[str] = [*tool.words, *tool.fixed, "--json"]
    last: list[str] = []
    for name, param in params.items():
        if name not in given or given[name] is None:
            continue
        try:
            words = _words(tool, name, param, given[name])
        except InputError as error:
            mistakes.extend(error.mistakes)
            continue
        (line if isinstance(param, click.Option) else last).extend(words)
    InputError.check(mistakes)
    return [*line, "--", *last]


def is_text(text: str) -> bool:
    """Whether a process can be given a text, or a file hold it: JSON also knows zeros and halves of characters."""
    try:
        return b"\0" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False


def texts(tool: Tool, given: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a call that may name a file: all but choices and the tool's own words."""
    for name, param in _params(tool):
        value = given.get(name)
        if not isinstance(param.type, click.Choice):
            for one in value if isinstance(value, list) else [value]:
                yield from [one] if isinstance(one, str) else []


def _params(tool: Tool) -> Iterator[tuple[str, click.Parameter]]:
    """What an agent may say, by its name: that of the option, underscores for dashes."""
    for param in command_of(tool).params:
        name = param.name or ""
        writes = isinstance(param, click.Option) and isinstance(param.type, click.Path)
        if writes or name in _UNUSED or name in tool.left_out:
            continue
        if isinstance(param, click.Option):
            name = max(param.opts, key=len).lstrip("-").replace("-", "_")
        yield name, param


def _schema(param: click.Parameter) -> dict[str, Any]:
    doc = getattr(param, "help", None) or (param.metavar or param.name or "")
    if getattr(param, "is_flag", False):
        return {"type": "boolean", "description": doc}
    item = _item(param.type)
    if param.multiple or param.nargs == -1:
        return {"type": "array", "items": item, "description": doc}
    return {**item, "description": doc}


def _item(kind: Any) -> dict[str, Any]:
    """The JSON type of a click type, with its bounds."""
    if isinstance(kind, click.Choice):
        return {"type": "string", "enum": list(kind.choices)}
    if isinstance(kind, click.IntRange | click.FloatRange):
        made: dict[str, Any] = {
            "type": "integer" if isinstance(kind, click.IntRange) else "number"
        }
        low = "exclusiveMinimum" if kind.min_open else "minimum"
        high = "exclusiveMaximum" if kind.max_open else "maximum"
        made |= {low: kind.min} if kind.min is not None else {}
        return made | ({high: kind.max} if kind.max is not None else {})
    named = {"integer": "integer", "float": "number", "boolean": "boolean"}
    return {"type": named.get(kind.name, "string")}


def _words(tool: Tool, name: str, param: click.Parameter, value: Any) -> list[str]:
    """A value as words of a command line."""
    flag = getattr(param, "is_flag", False)
    several = param.multiple or param.nargs == -1
    values = value if isinstance(value, list) else [value]
    if not all(is_text(str(one)) for one in values):
        expected = "a text without zeros and halves of characters"
        raise InputError.of(tool.name, name, repr(value)[:60], expected)
    fits = [isinstance(one, bool) == flag for one in values]
    plain = [isinstance(one, str | int | float) for one in values]
    if not all(fits) or not all(plain) or (isinstance(value, list) and not several):
        expected = _schema(param).get("type", "a value")
        raise InputError.of(tool.name, name, repr(value)[:60], str(expected))
    if not isinstance(param, click.Option):
        return [str(one) for one in values]
    option = max(param.opts, key=len)
    if flag:
        return [option] if value else []
    return [f"{option}={one}" for one in values]
