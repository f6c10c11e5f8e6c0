"""Python recipes, read as text: what a function sets, as far as it is written out. Nothing is imported or executed.

Constants, calls of functions of the same checkout with their default arguments, loops over lists that are written out,
and conditions on known values are worked out; everything else is a value that is not known. Statements that are not
followed are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.workloads.recipes._documents import Document, Entry, functions_of
from prestep.workloads.recipes._reader import Reader
from prestep.workloads.recipes._values import Made, called, plain


def read_function(path: Path, text: str, name: str) -> tuple[Document, tuple[str, ...]]:
    """What a function returns, as flat keys; and statements whose conditions are not known.

    A name that the file imports is the function that it stands for.

    Raises
    ------
    InputError
        If there is no such function, or it returns nothing with keys.
    """
    reader = Reader(path, text)
    found = reader.written(name)
    if found is None:
        raise InputError(unknown(str(path), "function", name, reader.functions))
    owner, function = found
    try:
        made = owner.call(function, [], {})
    except RecursionError:
        raise InputError.of(str(path), name, files.DEEP, "Python") from None
    if not isinstance(made, Made):
        expected = "a function that returns a configuration"
        raise InputError.of(str(path), name, "no configuration", expected)
    entries = {"recipe": Entry(called(made)), **dict(flat(made, ""))}
    known = {
        key.rpartition(".")[2] for key, one in entries.items() if one.value is not None
    }
    left = [
        text
        for text, names in reader.shared.deciding.items()
        if not any(name.endswith(one) for name in names for one in known)
    ]
    if left:  # what they set would be our default
        raise InputError(_unfollowed(text) for text in left)
    passed = (*reader.shared.open, *reader.shared.deciding)
    return Document(path, "python", entries, text, function.name), passed


def flat(made: Made, prefix: str) -> Iterator[tuple[str, Entry]]:
    """Keys under a value, with the call that made it as a value of its own."""
    for key, value in made.values.items():
        line = made.lines.get(key, 0)
        if isinstance(value, Made):
            yield f"{prefix}{key}", Entry(called(value), line)
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", Entry([plain(item) for item in value], line)
            for item in value:
                if isinstance(item, Made):
                    yield from flat(item, f"{prefix}{key}.{item.name}.")
        else:
            yield f"{prefix}{key}", Entry(plain(value), line)


def _unfollowed(text: str) -> Mistake:
    """A statement that stays open, as `file:line: statement`."""
    where, _, statement = text.partition(": ")
    expected = "values that the file says: they are a degree, a size, a layout or a number format"
    hint = "write them out, or leave the statement out and say them by --set"
    return Mistake(where, "", statement, expected, hint)


#: Texts and names in a call.
WORDS = re.compile(r"[\w./-]+")


def read_recipe(
    document: Document, wanted: str, usual: tuple[str, ...] = ()
) -> tuple[Document, tuple[str, ...]]:
    """The keys that the function sets which is wanted, or the only one there is; and what in it stays open.

    Raises
    ------
    InputError
        If there is no such function, or several and none is named.
    """
    functions = functions_of(document.path, document.text)
    public = [name for name in functions if not name.startswith("_")]
    whole = [
        name for name in public if re.search(r"config|recipe|pretrain|finetune", name)
    ]
    named = [name for name in usual if name in functions]
    choice = [wanted] if wanted else named[:1] or (whole if len(whole) == 1 else [])
    if not choice:
        found = f"{len(whole)} functions ({', '.join(whole[:6])}{', ...' if len(whole) > 6 else ''})"
        hint = "--function NAME says which"
        raise InputError.of(str(document.path), "", found, "one recipe", hint)
    made, left = read_function(document.path, document.text, choice[0])
    return replace(made, entries={**made.entries, **document.entries}), left


def words(text: object) -> list[str]:
    """Names in a call, as they are written."""
    return WORDS.findall(str(text)) if text else []
