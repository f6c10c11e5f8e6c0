"""Every key of an execution trace with every value that it can not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.running import outcome
from tests.fuzz.seeds import seeds
from tests.fuzz.values import VALUES

SEEDS = seeds()
# Kind of file -> the list in it whose last entries are damaged.
LISTS = {"pytorch_et": "nodes", "chakra_flat": "workload_graph", "trace": "traceEvents"}


def entries(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    root = json.loads(SEEDS[name].text)
    kinds = {frozenset(entry): entry for entry in root[LISTS[name]]}
    return root, list(kinds.values())


@pytest.mark.parametrize("name", LISTS)
def test_no_value_of_a_key_is_a_crash(name: str, tmp_path: Path) -> None:
    """Nothing, a list, a number beyond all others: the entry is left out, or the file refused with its place."""
    root, listed = entries(name)
    path = tmp_path / f"x{SEEDS[name].suffix}"
    for entry in listed:
        for key, good in list(entry.items()):
            for value in VALUES[::2]:
                entry[key] = value
                path.write_text(json.dumps(root))
                assert outcome(SEEDS[name], path, tmp_path / "out") == "", (key, value)
            del entry[key]
            path.write_text(json.dumps(root))
            assert outcome(SEEDS[name], path, tmp_path / "out") == "", key
            entry[key] = good
