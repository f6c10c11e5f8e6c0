"""stdout and stderr as they may be: closed, full, or in an encoding without bars and arrows."""

from __future__ import annotations

import errno
import io
import os
import sys

#: What writing to a full disk, a quota, or a device that went away fails with.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF)


def prepare() -> None:
    """Makes both usable: a closed one leads nowhere, and signs that an encoding lacks become question marks.

    UTF-8 lacks halves of pairs, which JSON can say (`\\ud83d`): they are printed as it says them.
    """
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            lacks = "backslashreplace" if _is_unicode(stream.encoding) else "replace"
            stream.reconfigure(errors=lacks)


def cannot_be_written(error: OSError) -> bool:
    """Whether it is stdout that could not be written: of files the error names the path."""
    return error.errno in UNWRITABLE and error.filename is None


def close_stdout() -> None:
    """What Python still writes when it ends goes nowhere, instead of failing again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().replace("-", "").startswith("utf")
