"""Reads traces of real runs: one module per format with ``sniff(head)`` and ``read(path)``, told apart by content.

>>> from workloads import traces
>>> recordings = traces.read(["run/rank0.pt.trace.json.gz", "run/rank1.pt.trace.json.gz"])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sim import plugins
from sim.errors import InputError, Mistake
from workloads.traces.files import head_of
from workloads.traces.schema import Recording

__all__ = ["files_of", "formats", "read", "read_file"]

_RANK = re.compile(r"(?:rank|worker|_)[_-]?(\d+)(?=[._-]|$)", re.IGNORECASE)
# Files beside traces that are never traces themselves.
_OTHER = {".md", ".txt", ".py", ".log", ".csv", ".toml", ".jsonl", ".xml", ".png"}


def formats() -> list[str]:
    """Names of the formats that can be read."""
    return sorted(plugins.providers(__name__, "sniff"))


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Trace files: the files named, and those in the directories named (not in those below them).

    Raises
    ------
    InputError
        For paths that do not exist and directories without a trace.
    """
    found, mistakes = list[Path](), []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(f for f in path.iterdir() if f.is_file() and f.suffix not in _OTHER and f.name[0] != ".")
            found += inside
            if not inside:
                mistakes.append(Mistake(str(path), "", "no trace in this directory", "one file per rank"))
        elif path.is_file():
            found.append(path)
        else:
            mistakes.append(Mistake(str(path), "", "no such file or directory", "traces, one file per rank"))
    if mistakes:
        raise InputError(mistakes)
    return list(dict.fromkeys(found))


def read_file(path: str | Path) -> Recording:
    """The recording in a file of any known format.

    Raises
    ------
    InputError
        If the file cannot be read or is of no known format.
    """
    head = head_of(Path(path))
    for name, sniff in plugins.providers(__name__, "sniff").items():
        if sniff(head):
            return plugins.load_function(__name__, name, "read")(Path(path))  # type: ignore[no-any-return]
    start = head[:40].decode("utf-8", "replace")
    raise InputError(Mistake(str(path), "", f"a file that starts with {start!r}", f"one of {', '.join(formats())}"))


def read(paths: Sequence[str | Path]) -> list[Recording]:
    """The recordings of one run, by rank.

    A file that does not say its rank gets it from its name (rank3, worker3), else from its place among the files.

    Raises
    ------
    InputError
        For files that cannot be read, two files of one rank, files of different runs, or files without GPU work.
    """
    recordings, mistakes = list[Recording](), list[Mistake]()
    for path in files_of(paths):
        try:
            recordings.append(read_file(path))
        except InputError as error:
            mistakes += error.mistakes
    if not mistakes:
        recordings = _numbered(recordings)
        mistakes = _contradictions(recordings)
    if mistakes:
        raise InputError(mistakes)
    return sorted(recordings, key=lambda r: r.rank)


def _numbered(recordings: list[Recording]) -> list[Recording]:
    """Ranks that files do not say, from their names or their order."""
    taken = {r.rank for r in recordings if r.rank >= 0}
    result = []
    for recording in recordings:
        if recording.rank < 0:
            named = [int(n) for n in _RANK.findall(Path(recording.path).name)]
            free = next(n for n in range(len(recordings) + len(taken) + 1) if n not in taken)
            rank = named[0] if named and named[0] not in taken and named[0] < 100_000 else free
            taken.add(rank)
            recording = recording.as_rank(rank)
        result.append(recording)
    return result


def _contradictions(recordings: list[Recording]) -> list[Mistake]:
    mistakes, seen = [], dict[int, Recording]()
    first = recordings[0]
    for recording in recordings:
        if recording.count("kernel", "memcpy", "memset") == 0:
            hint = "record with ProfilerActivity.CUDA, and on a machine with a GPU"
            mistakes.append(Mistake(recording.path, "", "no GPU work", "kernels of a GPU", hint))
        if recording.rank in seen:
            other = seen[recording.rank].path
            hint = "files of one run, one per rank"
            mistakes.append(Mistake(recording.path, "rank", f"{recording.rank}, as in {other}", "another rank", hint))
        seen.setdefault(recording.rank, recording)
        if recording.world and first.world and recording.world != first.world:
            expected = f"{first.world}, as in {first.path}"
            mistakes.append(Mistake(recording.path, "world size", str(recording.world), expected, "one run at a time"))
        if recording.device and first.device and recording.device != first.device:
            expected = f"{first.device}, as in {first.path}"
            mistakes.append(Mistake(recording.path, "GPU", recording.device, expected, "one run at a time"))
    return mistakes
