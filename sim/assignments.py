"""Items of `--set`: `section.key=value`, split and read as the key's type says."""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Literal

from prestep.sim.errors import InputError
from prestep.sim.extras import lazily
from prestep.sim.strict import has_keys, type_hints

with lazily():
    from prestep import topologies
    from prestep.sim import words

_SPEED = re.compile(r"\s*[\d.]+\s*(x|%|[kMGT]?i?B/s|[kMGT]?bit/s|[GT])\s*")


#: Changes as `--set` takes them, by key: {"training.micro_batch": 4, "nvlink.bandwidth": "2x"}.
Changes = Mapping[str, object]


def texts_of(changes: Changes | None) -> tuple[str, ...]:
    """Changes as items of `--set`.

    Examples
    --------
    >>> texts_of({"parallel.tp": 4, "nccl.nvls": False})
    ('parallel.tp=4', 'nccl.nvls=false')
    """
    return tuple(f"{key}={text_of(value)}" for key, value in (changes or {}).items())


def text_of(value: object) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def split(item: str) -> tuple[str, str]:
    """`"section.key=value"` in two.

    Raises
    ------
    InputError
        If it is none; a key without its section is told where it is.
    """
    name, equals, value = item.partition("=")
    name = name.strip()
    if not name or not equals or ("." not in name and value.strip().lower() != "off"):
        expected = "section.key=value, selector.attribute=value or selector=off"
        raise InputError.of("--set", name, f'"{item}"', expected, _hint(item))
    return name, value.strip().strip("\"'")


def _hint(item: str) -> str:
    """The same item with the key that its word means."""
    name, equals, value = item.partition("=")
    place = topologies.cluster_with_gpu(value.strip()) if equals else ""
    if place:
        return f"a GPU comes with its cluster: --cluster {place}"
    key = words.key_of(name)
    if not key and _SPEED.fullmatch(value):  # of a kind of link: "spine=2x"
        key = f"{name.strip()}.bandwidth"
        value = re.sub(r"([GT])\s*$", r" \1bit/s", value)
    return f'did you mean "{key}={value.strip() if equals else "..."}"?' if key else ""


def read(cls: type, name: str, value: str) -> object:
    """The value of an override, typed as its key is: `2.28` is a text for a version and a number for a factor."""
    known = {entry.name: entry for entry in fields(cls)}
    hint = type_hints(cls).get(name)
    if (
        name not in known
        or known[name].metadata["unit"]
        or hint is str
        or typing.get_origin(hint) is Literal
    ):
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def read_inside(cls: type, table: str, name: str, value: str) -> object:
    """The value of an override of a key in a table of a section."""
    hint = type_hints(cls)[table]
    return read(hint, name, value) if has_keys(hint) else value


def link_key(name: str, sections: Collection[str]) -> str:
    """The key of a change to the cluster's links; a misspelt section is not one."""
    head = name.partition(".")[0]
    close = difflib.get_close_matches(head, list(sections), n=1, cutoff=0.8)
    if close and head not in sections:
        hint = f'did you mean "{close[0]}{name[len(head) :]}"?'
        raise InputError.of(
            "--set", name, f'"{head}"', "a section or a kind of link", hint
        )
    return name.removeprefix("cluster.set.")
