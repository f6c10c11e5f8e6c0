"""Collectives that a job recorded of itself: NCCL's inspector plugin, and PyTorch's flight recorder.

The inspector (NCCL's plugins/profiler/inspector) writes one JSON object a line: `header` (rank, n_ranks, nnodes), and
`coll_perf` with the bytes of one rank and microseconds. A flight recorder's dump (torch.distributed, TORCH_FR_*) is a
pickle or JSON with `entries` and the ranks of groups in `pg_config`; it has times where TORCH_NCCL_ENABLE_TIMING was
set. Both count the waiting for the last rank in.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim import files
from prestep.sim.errors import InputError
from prestep.validation.doctor.stuck import Dump, dump_of, dumps_of_log
from prestep.validation.formats.records import text_of
from prestep.workloads.traces.collectives import KERNEL_OPS, OPS, SIZES

#: Operations whose bytes are those of one rank, where nccl-tests counts those of all.
BY_RANK = ("all_gather", "reduce_scatter")
INSPECTOR, FLIGHT_RECORDER = b'"coll_perf"', b"pg_config"
#: What a file is told by stands in so many of its first bytes; the groups of a dump may stand at its end.
HEAD = 1 << 16
UNTIMED = "some; TORCH_NCCL_ENABLE_TIMING=1 has the flight recorder time them"


class Recorded(NamedTuple):
    """One collective on one rank: bytes as nccl-tests counts them, seconds; no hosts where the file does not say."""

    op: str
    size: int
    ranks: tuple[int, ...]
    hosts: int
    time: float


def is_recorded(head: bytes) -> bool:
    """Whether a file of such a beginning is one of the two.

    Examples
    --------
    >>> is_recorded(b'{"header": {"rank": 0, "n_ranks": 8, "nnodes": 1}, "coll_perf": {"coll": "AllReduce"}}')
    True
    >>> is_recorded(b"# nThread 1 nGpus 8")
    False
    """
    return INSPECTOR in head or _is_dump(head)


def _is_dump(head: bytes) -> bool:
    beginning = head.lstrip()[:1]
    return beginning in (b"{", b"\x80") and (
        FLIGHT_RECORDER in head or b"profiling_name" in head
    )


def read(path: Path) -> list[Recorded]:
    """The collectives of a file that were timed.

    Raises
    ------
    InputError
        If it is damaged, or has no collective with a time.
    """
    collectives, _ = opened(path)
    if not collectives:
        raise InputError.of(path.name, "", "no collective with a time", UNTIMED)
    return collectives


def head_of(path: Path) -> bytes:
    """The beginning of a file; nothing of one that cannot be read, which is said later."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


def ranks_of(path: Path) -> list[Dump]:
    """What a dump, or a log in which PyTorch's watchdog speaks, says of its ranks; nothing of other files.

    Raises
    ------
    InputError
        If it is damaged.
    """
    if not is_recorded(head_of(path)):
        return dumps_of_log(text_of(path))
    dump = opened(path)[1]
    return [] if dump is None else [dump]


def opened(path: Path) -> tuple[list[Recorded], Dump | None]:
    """The collectives of a file that were timed, and what a dump says of its rank.

    Raises
    ------
    InputError
        If it is damaged.
    """
    try:
        raw = path.read_bytes()
        if _is_dump(raw[:HEAD]):
            content = _loaded(raw)
            return list(_of_dump(content)), dump_of(path, content)
        return list(_of_inspector(raw.decode("utf-8"))), None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        expected = (
            "JSON lines of NCCL's inspector, or a dump of PyTorch's flight recorder"
        )
        found = f"no {error}" if isinstance(error, KeyError) else str(error)[:100]
        raise InputError.of(path.name, "", found, expected) from None
    except (pickle.UnpicklingError, EOFError) as error:
        expected = "a whole dump of PyTorch's flight recorder"
        raise InputError.of(path.name, "", str(error)[:100], expected) from None


def _of_inspector(text: str) -> Iterator[Recorded]:
    """Records of collectives; later versions write the header once for those that follow."""
    header: Mapping[str, Any] = {}
    for line in filter(str.strip, text.splitlines()):
        record = json.loads(line)
        header = record.get("header", header)
        about = record.get("coll_perf", {})
        op = KERNEL_OPS.get(about.get("coll", ""), "")
        if not op or not about["coll_exec_time_us"] > 0:
            continue
        ranks = int(header["n_ranks"])
        size = int(about["coll_msg_size_bytes"]) * (ranks if op in BY_RANK else 1)
        seconds = about["coll_exec_time_us"] * 1e-6
        members = tuple(range(ranks))
        yield Recorded(op, size, members, int(header["nnodes"]), seconds)


class _Plain(pickle.Unpickler):
    """Numbers, texts, lists and mappings; a dump has nothing else, and what names code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names code, {module}.{name}")


def _loaded(raw: bytes) -> Mapping[str, Any]:
    is_pickle = raw[:1] == b"\x80"
    return _Plain(io.BytesIO(raw)).load() if is_pickle else files.json_of(raw.decode())  # type: ignore[no-any-return]


def _of_dump(dump: Mapping[str, Any]) -> Iterator[Recorded]:
    """Collectives of a flight recorder that ended and were timed."""
    groups = {
        name: tuple(json.loads(str(group["ranks"])))
        for name, group in dump["pg_config"].items()
    }
    for entry in dump["entries"]:
        op = OPS.get(entry["profiling_name"].rpartition(":")[2].lower(), "p2p")
        # The group of all ranks may stand there without a name.
        ranks = groups.get(entry["process_group"][0]) or groups.get("", ())
        milliseconds = entry.get("duration_ms") or 0.0
        if op == "p2p" or len(ranks) < 2 or not milliseconds > 0:
            continue
        sides = (
            _bytes(entry[f"{side}_sizes"], entry[f"{side}_dtypes"])
            for side in ("input", "output")
        )
        if size := max(sides):
            yield Recorded(op, size, ranks, 0, milliseconds * 1e-3)


def _bytes(shapes: Iterable[Iterable[int]], dtypes: Iterable[str]) -> int:
    pairs = zip(shapes, dtypes, strict=True)
    return sum(math.prod(shape) * SIZES[dtype.lower()] for shape, dtype in pairs)
