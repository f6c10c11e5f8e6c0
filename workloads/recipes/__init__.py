"""Recipes: configurations of trainers, read as they are and never executed; a file for each format, found by its name.

A format is a module with ``LOOKS`` (how people know such a file), ``recognise(document) -> bool`` and
``read(document, beside) -> Recipe``: `beside` are further files of the same job, of the kinds that the module lists in
``BESIDE`` (`_companions.py`; none where it lists nothing). What its keys mean lies in a TOML file of the same name
(`_rules.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import InputError, Mistake
from prestep.workloads.recipes import _companions, _documents
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe

LISTED = "trainers whose own files `prestep run` takes"
_TREES = {
    ".toml": _documents.read_toml,
    ".json": _documents.read_json,
    ".yaml": _documents.read_yaml,
    ".yml": _documents.read_yaml,
}


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that there are, sorted."""
    return tuple(
        name
        for name, outline in plugins.outlines(__name__).items()
        if {"recognise", "read"} <= outline.functions
    )


def document_of(path: Path) -> Document:
    """A recipe's file by its ending; scripts and Python are read by the formats that know them.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    text = _documents.text_of(path)
    reader = _TREES.get(path.suffix.lower())
    if reader is not None:
        return reader(path, text)
    return Document(path, "python" if path.suffix == ".py" else "shell", {}, text)


def format_of(document: Document) -> str:
    """The format that a file is of; "" for none."""
    return next(
        (
            name
            for name in formats()
            if plugins.load_function(__name__, name, "recognise")(document)
        ),
        "",
    )


def of_tables(path: Path, tables: Mapping[str, Any]) -> Document | None:
    """A TOML file that is read already, if it is a recipe and no scenario."""
    document = _documents.of_tables(path, tables)
    return document if format_of(document) else None


def read(document: Document, beside: Sequence[Document] = ()) -> Recipe:
    """Reads a recipe with the further files of the same job, in any order.

    Raises
    ------
    InputError
        If no format knows one of them, or the recipe's format has no use for it.
    """
    files = [(one, format_of(one)) for one in (document, *beside)]
    InputError.check([_strange(one) for one, name in files if not name])
    job = _companions.sort(files)
    module = plugins.load(__name__, job.format)
    if job.beside:
        _companions.check(job, getattr(module, "BESIDE", ()))
    made: Recipe = module.read(job.recipe, job.companions(_companions.PARTS))
    for one in (job.recipe, *job.companions((_companions.MODEL,))):
        _companions.check_text_model(made, one)
    _companions.complete(job, made, document.path.parent)
    return made


def _strange(document: Document) -> Mistake:
    looks = [plugins.load(__name__, name).LOOKS for name in formats()]
    keys = ", ".join(sorted(document.sections())[:8])
    found = (
        f"keys that no format has ({keys})" if keys else "nothing that a format knows"
    )
    hint = "; ".join(
        f"{name}: {look}" for name, look in zip(formats(), looks, strict=True)
    )
    return Mistake(str(document.path), "", found, "a scenario or a recipe", hint)
