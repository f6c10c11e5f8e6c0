"""Writing files whole or not at all: a file that is interrupted half way leaves what was there before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.errors import InputError, Mistake


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends well, and is removed if not.

    The suffix is that of `path`, since writers look at it. A link is followed: what it points to is replaced.

    Raises
    ------
    InputError
        If the folder is not there or cannot be written to, or `path` is a folder.
    """
    target = Path(path)
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe: nothing to keep whole
        if target.is_dir():
            raise InputError(Mistake(str(path), "", "a folder", "a file to write"))
        yield target
        return
    real = Path(os.path.realpath(target))
    suffix = "".join(target.suffixes[-2:])
    try:
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{target.name[:40]}.", suffix=suffix)
    except OSError as error:
        raise InputError(Mistake(str(path), "", error.strerror or str(error), "a file that can be written")) from None
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        os.chmod(beside, real.stat().st_mode & 0o777 if real.exists() else 0o666 & ~_umask())
        os.replace(beside, real)
    except OSError as error:
        raise InputError(Mistake(str(path), "", error.strerror or str(error), "a file that can be written")) from None
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """The text as UTF-8, whole or not at all.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _umask() -> int:
    current = os.umask(0)  # the only way to read it
    os.umask(current)
    return current
