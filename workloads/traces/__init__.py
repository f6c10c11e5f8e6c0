"""Reads traces of real runs: one module per format with ``sniff(head)`` and ``read(path)``, told apart by content.

>>> from prestep.workloads import traces
>>> recordings = traces.read(["run/rank0.pt.trace.json.gz", "run/rank1.pt.trace.json.gz"])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import plugins, progress
from prestep.sim.errors import InputError, Mistake
from prestep.workloads.traces import linked
from prestep.workloads.traces.files import head_of
from prestep.workloads.traces.readers.chakra import GROUPS
from prestep.workloads.traces.schema import Recording

READERS = "prestep.workloads.traces.readers"

__all__ = ["files_of", "formats", "read", "read_file"]

_RANK = re.compile(r"(?:rank|worker|_)[_-]?(\d+)(?=[._-]|$)", re.IGNORECASE)
# Files beside traces that are never traces themselves.
_OTHER = {".md", ".txt", ".py", ".log", ".csv", ".toml", ".jsonl", ".xml", ".png"}


def formats() -> list[str]:
    """Names of the formats that can be read."""
    return sorted(plugins.providers(READERS, "sniff"))


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
            inside = sorted(
                f for f in path.iterdir() if f.is_file() and _may_be_trace(f)
            )
            found += inside
            if not inside:
                mistakes.append(
                    Mistake(
                        str(path), "", "no trace in this directory", "one file per rank"
                    )
                )
        elif path.is_file():
            found.append(path)
        else:
            mistakes.append(
                Mistake(
                    str(path),
                    "",
                    "no such file or directory",
                    "traces, one file per rank",
                )
            )
    InputError.check(mistakes)
    return list(dict.fromkeys(found))


def format_of(path: str | Path) -> str:
    """The format of a file, told by its content.

    Raises
    ------
    InputError
        If the file cannot be read or is of no known format.
    """
    head = head_of(Path(path))
    for name, sniff in plugins.providers(READERS, "sniff").items():
        if sniff(head):
            return name
    raise InputError.of(
        str(path),
        "",
        f"a file that starts with {head[:40]!r}",
        f"one of {', '.join(formats())}",
        "dumps of collectives alone are for prestep doctor cluster",
    )


def _may_be_trace(file: Path) -> bool:
    return (
        file.suffix not in _OTHER
        and file.name[0] != "."
        and not file.name.endswith(GROUPS)
    )


def read_file(path: str | Path, **options: Any) -> Recording:
    """The recording in a file of any known format; `options` are those of its reader.

    Raises
    ------
    InputError
        If the file cannot be read or is of no known format.
    """
    read_file = plugins.load_function(READERS, format_of(path), "read")
    recording: Recording = read_file(Path(path), **options)
    return recording


def recordings_in(path: str | Path, **options: Any) -> list[Recording]:
    """The recordings of all ranks in a file: of formats whose reader has `read_all`; else the one of `read`."""
    reader = plugins.load(READERS, format_of(path))
    if hasattr(reader, "read_all"):
        recordings: list[Recording] = reader.read_all(Path(path), **options)
        return recordings
    return [read_file(path, **options)]


def read(paths: Sequence[str | Path]) -> list[Recording]:
    """The recordings of one run, by rank.

    A file that does not say its rank gets it from its name (rank3, worker3), else from its place among the files.
    PyTorch execution traces beside Kineto traces are linked with those of their ranks.

    Raises
    ------
    InputError
        For files that cannot be read, two files of one rank, files of different runs, or files without GPU work.
    """
    recordings, mistakes, known = list[Recording](), list[Mistake](), dict[Path, str]()
    for path in files_of(paths):
        with InputError.collected(mistakes):
            known[path] = format_of(path)
    companions, found = _companions(known)
    mistakes += found
    for path in progress.track(
        [path for path in known if path not in companions.values()], "traces"
    ):
        with InputError.collected(mistakes):
            options = (
                {"companion": linked.companion(companions[path])}
                if path in companions
                else {}
            )
            recordings += recordings_in(path, **options)
    if not mistakes:
        recordings = _numbered(recordings)
        mistakes = _contradictions(recordings)
    InputError.check(mistakes)
    return sorted(recordings, key=lambda r: r.rank)


def _companions(known: Mapping[Path, str]) -> tuple[dict[Path, Path], list[Mistake]]:
    """Kineto trace -> execution trace of the same rank, by the ranks in their names; mistakes if unclear."""
    traces_, others = (
        [p for p, name in known.items() if name == wanted]
        for wanted in ("kineto", "pytorch_et")
    )
    if not traces_ or not others:
        return {}, []
    if len(traces_) == len(others) == 1:
        return {traces_[0]: others[0]}, []
    by_rank = {_rank_in(path.name): path for path in traces_}
    pairs, mistakes = {}, []
    for path in others:
        partner = by_rank.get(_rank_in(path.name))
        if partner is None or _rank_in(path.name) < 0 or partner in pairs:
            expected = "a rank in its name that one of the Kineto traces has too (rank3, worker3)"
            mistakes.append(
                Mistake(str(path), "", "an execution trace of no known rank", expected)
            )
        else:
            pairs[partner] = path
    return pairs, mistakes


def _rank_in(name: str) -> int:
    """The first number after "rank", "worker" or an underscore; -1 if there is none."""
    named = [int(n) for n in _RANK.findall(name)]
    return named[0] if named and named[0] < 100_000 else -1


def _numbered(recordings: list[Recording]) -> list[Recording]:
    """Ranks that files do not say, from their names or their order."""
    taken = {r.rank for r in recordings if r.rank >= 0}
    result = []
    for recording in recordings:
        if recording.rank < 0:
            named = _rank_in(Path(recording.path).name)
            free = next(
                n for n in range(len(recordings) + len(taken) + 1) if n not in taken
            )
            rank = named if named >= 0 and named not in taken else free
            taken.add(rank)
            recording = recording.as_rank(rank)
        result.append(recording)
    return result


def _contradictions(recordings: list[Recording]) -> list[Mistake]:
    mistakes, seen = [], dict[int, Recording]()
    first = recordings[0]
    if len({r.format for r in recordings}) > 1:
        listed = "; ".join(f"{Path(r.path).name} is {r.format}" for r in recordings[:4])
        hint = (
            "only an execution trace of PyTorch goes with the Kineto trace of its rank"
        )
        return [Mistake("traces", "formats", listed, "files of one format", hint)]
    for recording in recordings:
        path, rank = recording.path, recording.rank
        if recording.count("kernel", "memcpy", "memset") == 0:
            hint = "record with ProfilerActivity.CUDA, and on a machine with a GPU"
            mistakes.append(Mistake(path, "", "no GPU work", "kernels of a GPU", hint))
        if rank in seen:
            taken = f"{rank}, as in {seen[rank].path}"
            hint = "files of one run, one per rank"
            mistakes.append(Mistake(path, "rank", taken, "another rank", hint))
        seen.setdefault(rank, recording)
        mistakes += _other_run(recording, first)
    return mistakes


def _other_run(recording: Recording, first: Recording) -> list[Mistake]:
    """What shows that a recording is of another run than the first."""
    properties = (
        ("world size", recording.world, first.world),
        ("GPU", recording.device, first.device),
    )
    return [
        Mistake(
            recording.path,
            name,
            str(own),
            f"{expected}, as in {first.path}",
            "one run at a time",
        )
        for name, own, expected in properties
        if own and expected and own != expected
    ]
