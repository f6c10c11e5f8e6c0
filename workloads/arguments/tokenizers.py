"""Entries of well-known tokenizers, by the names that training scripts pass (`tokenizers.toml`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from prestep.sim import schema
from prestep.sim.schema import Named, Number

FILE = Path(__file__).with_suffix(".toml")
_ENTRIES = Named(Number(1, whole=True))


@cache
def _tables() -> dict[str, dict[str, int]]:
    """Entries by kinds of tokenizers, and by patterns of their names."""
    return schema.read(FILE, schema.all_of(("kinds", "names"), _ENTRIES))


def vocabulary_of(kind: str, *names: str) -> tuple[int, str] | None:
    """Entries of a tokenizer and what they were concluded from; None where nobody knows it.

    `kind` is Megatron's --tokenizer-type; `names` are the tokenizer's name or path and its files.

    Examples
    --------
    >>> vocabulary_of("HuggingFaceTokenizer", "meta-llama/Meta-Llama-3-8B")
    (128256, 'meta-llama/Meta-Llama-3-8B')
    >>> vocabulary_of("GPT2BPETokenizer", "vocab.json")
    (50257, 'GPT2BPETokenizer')
    >>> vocabulary_of("HuggingFaceTokenizer", "some-org/some-tokenizer")
    """
    for name in names:
        # A repository, or a file in a folder: what lies above says nothing of it.
        short = "/".join(name.lower().rstrip("/").split("/")[-2:])
        for pattern, entries in _tables()["names"].items():
            if re.search(pattern, short):
                return entries, name
    kinds = _tables()["kinds"]
    return (kinds[kind], kind) if kind in kinds else None
