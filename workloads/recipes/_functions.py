"""Which function of a Python recipe is meant, and what it sets."""

from __future__ import annotations

import re

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.recipes import _python
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Draft

#: Texts and names in a call.
WORDS = re.compile(r"[\w./-]+")


def called(
    document: Document, wanted: str, usual: tuple[str, ...] = ()
) -> tuple[Document, tuple[str, ...]]:
    """The keys that the function sets which is wanted, or the only one there is; and what in it stays open.

    Raises
    ------
    InputError
        If there is no such function, or several and none is named.
    """
    functions = _python.functions_of(document.path, document.text)
    public = [name for name in functions if not name.startswith("_")]
    whole = [
        name for name in public if re.search(r"config|recipe|pretrain|finetune", name)
    ]
    named = [name for name in usual if name in functions]
    choice = [wanted] if wanted else named[:1] or (whole if len(whole) == 1 else [])
    if not choice:
        found = f"{len(whole)} functions ({', '.join(whole[:6])}{', ...' if len(whole) > 6 else ''})"
        hint = "--function NAME says which"
        raise InputError(Mistake(str(document.path), "", found, "one recipe", hint))
    return _python.read_function(document.path, document.text, choice[0])


def words(text: object) -> list[str]:
    """Names in a call, as they are written."""
    return WORDS.findall(str(text)) if text else []


def left_open(draft: Draft, statements: tuple[str, ...]) -> None:
    """Statements whose conditions are not known are not followed."""
    for text in statements:
        draft.unknown.append(f"{text}")
