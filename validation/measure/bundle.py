"""The file of a measurement: a zip of JSON lines, traces and dumps with a manifest that says what it holds."""

from __future__ import annotations

import datetime
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prestep.sim import __version__

FORMAT, VERSION = "prestep-measured", 1
MANIFEST = "manifest.json"
HOLDS = {
    "system.jsonl": "software, GPUs, links, processor, memory, one row a host",
    "micro.jsonl": "one GPU: launches, copies, products, kernels bound by memory, attention, clocks; s",
    "collectives.jsonl": "NCCL: settings (env), times by operation and bytes (collective), beside kernels (overlap); s",
    "training.jsonl": "training steps: configuration (case), seconds of each step by rank, peak memory",
    "storage.jsonl": "disks: writes, syncs and reads; s",
    "host.jsonl": "the host's own speed: Python, memory; s",
    "probes.jsonl": "time that each probe took",
    "skipped.jsonl": "what was not measured, and why",
}
TRACES = "traces/"
# NCCL's log begins its lines with the host's name, and has addresses: neither is of use to anybody else.
_NAMED = re.compile(r"^\S+?:(\d+):(\d+) \[", re.M)
_ADDRESS = re.compile(
    r"\b\d{1,3}(\.\d{1,3}){3}\b|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f%\w]*", re.I
)


def pack(
    folder: Path, output: Path, about: Mapping[str, Any], limit: float | None = None
) -> str:
    """Packs the rows and files of all ranks; what was packed, in words."""
    rows, files = _rows(folder), _files(folder)
    packed = sum(len(text) for text in rows.values()) / 4
    fitting = _within(files, (limit or float("inf")) - 100_000 - packed)
    dropped = sorted(set(files) - set(fitting))
    for name in dropped:
        rows["skipped.jsonl"] = rows.get("skipped.jsonl", "") + _too_large(files, name)
    _write(output, rows, fitting, _manifest(rows, fitting, about))
    more = f"; left out for their size: {', '.join(dropped)}" if dropped else ""
    size = f"{output.stat().st_size / 2**20:.1f} MiB"
    counts = f"rows: {_counts(rows)}; files: {len(fitting)}{more}"
    return f"wrote {output} ({size}; {counts})"


def _too_large(files: Mapping[str, Path], name: str) -> str:
    """The line that says that a file was left out."""
    why = f"{files[name].stat().st_size} bytes, beyond --size-limit"
    return json.dumps({"probe": "bundle", "what": name, "why": why}) + "\n"


def _counts(rows: Mapping[str, str]) -> str:
    """How many rows each file has."""
    return ", ".join(
        f"{name.removesuffix('.jsonl')} {text.count(chr(10))}"
        for name, text in rows.items()
    )


def _files(folder: Path) -> dict[str, Path]:
    """Files of all ranks by their name in the bundle."""
    return {
        str(path.relative_to(files).as_posix()): path
        for files in sorted(folder.glob("rank*/files"))
        for path in sorted(files.rglob("*"))
        if path.is_file()
    }


def _within(files: Mapping[str, Path], left: float) -> dict[str, Path]:
    """The files that so many bytes have room for, traces last, the small ones first."""
    fitting: dict[str, Path] = {}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    order = sorted(files, key=lambda name: (name.startswith(TRACES), sizes[name]))
    for name in order:
        size = sizes[name] / (1 if name.endswith(".gz") else 4)
        if size <= left:
            fitting[name], left = files[name], left - size
    return fitting


def _rows(folder: Path) -> dict[str, str]:
    """Lines of each file, rank after rank; training rows become one row a case."""
    rows: dict[str, str] = {}
    for path in sorted(folder.glob("rank*/*.jsonl")):
        rows[path.name] = rows.get(path.name, "") + path.read_text(encoding="utf-8")
    return dict(sorted(rows.items()))


def _manifest(
    rows: Mapping[str, str], fitting: Mapping[str, Path], about: Mapping[str, Any]
) -> dict[str, Any]:
    listed = {
        name: {"rows": text.count("\n"), "what": HOLDS.get(name, "")}
        for name, text in rows.items()
    }
    listed |= {name: {"bytes": path.stat().st_size} for name, path in fitting.items()}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "format": FORMAT,
        "version": VERSION,
        "prestep": __version__,
        "made": now,
        "units": "seconds, bytes",
        **about,
        "files": listed,
    }


def _write(
    output: Path,
    rows: Mapping[str, str],
    fitting: Mapping[str, Path],
    manifest: Mapping[str, Any],
) -> None:
    """Whole or not at all: written beside, then moved."""
    beside = output.with_name(f".{output.name}.part")
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(MANIFEST, json.dumps(manifest, indent=1) + "\n")
            for name, text in rows.items():
                file.writestr(name, text)
            for name, path in fitting.items():
                if name.endswith(".log"):
                    file.writestr(
                        name,
                        without_names(
                            path.read_text(encoding="utf-8", errors="replace")
                        ),
                    )
                else:
                    file.write(
                        path,
                        name,
                        zipfile.ZIP_STORED
                        if name.endswith(".gz")
                        else zipfile.ZIP_DEFLATED,
                    )
        beside.replace(output)
    finally:
        beside.unlink(missing_ok=True)


def without_names(log: str) -> str:
    """A log of NCCL without the host's name and without addresses."""
    return _ADDRESS.sub("192.0.2.1", _NAMED.sub(r"host:\1:\2 [", log))
