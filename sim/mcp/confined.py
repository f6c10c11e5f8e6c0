"""A command in a process that may read the files it was given, and nothing else: `... ROOT... -- COMMAND`.

Python tells an audit hook of every file before it is opened, also of those that a scenario names. Files that its
libraries are made of stay readable, and temporary files may be written. Nothing lifts the hook.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
import zoneinfo
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError

#: Devices that libraries read.
DEVICES = ("/dev/null", "/dev/urandom")
#: Numbers, factors and quantities begin so.
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?[a-zA-Z%]*$")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


def outside(path: str, roots: Iterable[str]) -> InputError:
    """The error of a file that was not given."""
    given = ", ".join(roots)
    expected = f"a file below {given}" if given else "a bundled name: no file was given"
    hint = "`prestep mcp PATH...` says which files tools may read"
    return InputError.of(path, "", "a file that was not given", expected, hint)


def inside(path: str, roots: Iterable[str]) -> bool:
    """Whether a path, links followed, is one of the roots or below one."""
    real = os.path.realpath(path)
    return any(
        real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots
    )


def check(values: Iterable[str], roots: Iterable[Path]) -> None:
    """Refuses values that name a file which was not given, `key=FILE` too: what libraries open in C the hook misses.

    Raises
    ------
    InputError
        For the first of them.
    """
    real = _real(roots)
    for value in values:
        key, _, said = value.rpartition("=")
        # `parallel.tp=1` names no file, though one may have that name; `model.file=1` does
        number = bool(key) and not key.endswith("file") and NUMBER.match(said)
        for part in (value,) if number else (value, said):
            if part and os.path.exists(part) and not inside(part, real):
                raise outside(part, real)


def confine(roots: tuple[str, ...]) -> None:
    """From here on this process opens no other file."""
    # Python would write what it compiles beside the modules, where nothing may be written.
    sys.dont_write_bytecode = True
    compiled = [sys.pycache_prefix] if sys.pycache_prefix else []
    code = [*(entry for entry in sys.path if entry), *compiled]
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    files = map(os.path.realpath, (*code, *python, *zoneinfo.TZPATH))
    readable = (*roots, *files, *DEVICES)
    writable = (os.path.realpath(tempfile.gettempdir()), os.devnull)

    def audit(event: str, about: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, mode, flags = about
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor, which something opened before
        name = os.fsdecode(path)
        writes = set(mode or "") & set("wax+") or flags & _WRITES
        if not inside(name, writable if writes else readable):
            raise outside(name, roots)

    sys.addaudithook(audit)


def main() -> None:
    cut = sys.argv.index("--")
    confine(tuple(sys.argv[1:cut]))
    sys.argv = ["prestep", *sys.argv[cut + 1 :]]
    runpy.run_module("prestep", run_name="__main__", alter_sys=True)


def command(roots: Iterable[Path], words: Iterable[str]) -> list[str]:
    """The command line of such a process; nothing of the working folder is imported."""
    return [sys.executable, "-P", "-m", __name__, *_real(roots), "--", *words]


def _real(roots: Iterable[Path]) -> list[str]:
    return [os.path.realpath(root) for root in roots]


if __name__ == "__main__":
    main()
