"""Disks: writing, syncing and reading a file, with the page cache and around it.

Read back at once, a file comes from memory: it is read once so (warm), and once after the kernel was told to forget it
(posix_fadvise), which needs no rights. Folders: the temporary one and the working one, where they are on other disks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from prestep.validation.measure.session import Session

TITLE, NEEDS, WEIGHT, ORDER = "storage", "host", 12.0, 2
SIZES = (64 * 2**20, 2**30, 4 * 2**30)
TINY = (2**20,)
CHUNK = 16 * 2**20
ROOM = 4  # times the file that must be free


def measure(session: Session) -> None:
    """A row for each folder and size; folders in memory (tmpfs) are said to be so."""
    if not hasattr(os, "posix_fadvise"):
        session.skip(
            "storage", "this system has no posix_fadvise: reads would come from memory"
        )
        return
    block = os.urandom(CHUNK)
    for folder in _folders():
        rate = 0.0  # s a byte, of the size before
        for size in TINY if session.tiny else SIZES:
            begin = time.time()
            if shutil.disk_usage(folder).free < ROOM * size:
                session.skip(f"{folder}, {size} bytes", "too little room")
            elif session.left() < max(1.0, rate * size):
                session.skip(f"{folder}, {size} bytes", "no time left")
            else:
                _file(session, folder, size, block)
                rate = (time.time() - begin) / size


def _folders() -> Iterator[Path]:
    """One folder of each disk that is within reach."""
    seen = set()
    for folder in (Path(tempfile.gettempdir()), Path.cwd(), Path.home()):
        if (
            folder.is_dir()
            and os.access(folder, os.W_OK)
            and (device := folder.stat().st_dev) not in seen
        ):
            seen.add(device)
            yield folder


def _file(session: Session, folder: Path, size: int, block: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=folder, prefix=".prestep-measure-")
    begin = time.perf_counter()
    try:
        for at in range(0, size, CHUNK):
            os.write(handle, block[: min(CHUNK, size - at)])
        written = time.perf_counter() - begin
        os.fsync(handle)
        synced = time.perf_counter() - begin - written
        warm = _read(handle, size)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        cold = _read(handle, size)
    except OSError as error:
        session.skip(f"{folder}, {size} bytes", error)
        return
    finally:
        os.close(handle)
        os.unlink(name)
    about = {"node": session.rank, "filesystem": _kind(folder), "bytes": size}
    writes = {"write_s": written, "sync_s": synced}
    reads = {
        "read_warm_s": warm,
        "read_cold_s": cold,
        "cold_is_cold": cold > 1.5 * warm,
    }
    session.emit("storage", kind="storage", **about, **writes, **reads)


def _read(handle: int, size: int) -> float:
    os.lseek(handle, 0, os.SEEK_SET)
    begin, left = time.perf_counter(), size
    while left > 0:
        left -= len(os.read(handle, CHUNK)) or left
    return time.perf_counter() - begin


def _kind(folder: Path) -> str:
    """Type of the file system, by the longest mount point that holds the folder."""
    mounts = Path("/proc/mounts")
    mount = ("", "unknown")
    for line in mounts.read_text().splitlines() if mounts.is_file() else ():
        _, point, kind = line.split()[:3]
        if (str(folder) + "/").startswith(point.rstrip("/") + "/") and len(point) > len(
            mount[0]
        ):
            mount = point, kind
    return mount[1]
