"""Measurements that are made to do harm: zip bombs, paths that escape, members without number or end."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.running import ended, outcome
from tests.fuzz.seeds import seeds
from tests.validation.test_calibrate_machine import MANIFEST

SEED = seeds()["measured"]


def packed(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("manifest.json", json.dumps(MANIFEST))
        for name, content in members:
            file.writestr(name, content)
    return made.getvalue()


def link() -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("rows.jsonl")
    made.external_attr = (stat.S_IFLNK | 0o777) << 16
    return made


HOSTILE: dict[str, Callable[[], bytes]] = {
    "bomb": lambda: packed(("micro.jsonl", b" " * (300 << 20))),
    "many bombs": lambda: packed(
        *((f"traces/{n}.pt.trace.json.gz", b"\0" * (20 << 20)) for n in range(20))
    ),
    "escape": lambda: packed(("../escaped.jsonl", b"{}")),
    "deep escape": lambda: packed(("traces/../../escaped.jsonl", b"{}")),
    "absolute": lambda: packed(("/tmp/escaped.jsonl", b"{}")),
    "backslash": lambda: packed(("..\\escaped.jsonl", b"{}")),
    "link": lambda: packed((link(), b"/etc/passwd")),
    "many": lambda: packed(*((f"a{n}.jsonl", b"") for n in range(30_000))),
    "cut off": lambda: packed(("micro.jsonl", b"{}"))[:-30],
    "only a head": lambda: b"PK\x03\x04",
    "deep": lambda: packed(("micro.jsonl", b"[" * 100_000)),
    "huge numbers": lambda: packed(
        (
            "micro.jsonl",
            b'{"kind": "gemm", "shape": [1e308, 9e99, 1], "seconds": 1e-320}\n',
        )
    ),
    "nan": lambda: packed(("micro.jsonl", b'{"kind": "gemm", "seconds": NaN}\n')),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_measurement_is_refused(name: str, tmp_path: Path) -> None:
    """Exit 2 with the file's name, within ten seconds; nothing is written outside, nothing is left."""
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    path = folder / "x.zip"
    path.write_bytes(HOSTILE[name]())
    assert outcome(SEED, path, folder / "out.toml") == ""
    assert ended.code == 2
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == ["x.zip"]
    assert not Path("/tmp/escaped.jsonl").exists()
