"""Many commands of another prestep: each in a process forked from one that has imported it, which takes longer than a small command works."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: Reads a command line and the files for its two streams, runs it in a fork, and prints its exit code. What a step needs
#: is imported before, as a first fork finds out; what it reads is not kept, for tests change files between commands.
CODE = """
import gc, importlib, json, os, sys
import pandas, prestep.sim.predict, prestep.sim.spec.load
from prestep import cli
from prestep.sim.tools.catalog import find_scenario
read, write = os.pipe()
if os.fork() == 0:
    prestep.sim.predict.predict(find_scenario("mlp-ddp4"))
    import prestep.sim.commands.run
    os.write(write, " ".join(sys.modules).encode())
    os._exit(0)
os.close(write)
with os.fdopen(read) as names:
    for name in names.read().split():
        if not name.startswith("_"):
            importlib.import_module(name)
os.wait()
gc.freeze()
for line in sys.stdin:
    words, *paths = json.loads(line)
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        cli.main(words)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@dataclass(frozen=True)
class Commands:
    """A prestep that is asked one command after the other."""

    orders: IO[str]
    codes: IO[str]
    folder: Path

    def run(self, *words: str) -> str:
        """What a command prints; one that does not end with 0 is an AssertionError with what it says."""
        code, out, err = self.end(*words)
        assert code == 0, f"exit code {code}: {out[-2000:]}{err[-2000:]}"
        return out

    def end(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command."""
        streams = [self.folder / "stdout", self.folder / "stderr"]
        print(json.dumps([words, *map(str, streams)]), file=self.orders, flush=True)
        code = int(self.codes.readline())
        out, err = (path.read_text(encoding="utf-8") for path in streams)
        return code, out, err


@contextmanager
def commands(
    python: str | Path,
    folder: Path,
    cwd: Path,
    env: Mapping[str, str] = os.environ,
    limit: Callable[[], None] | None = None,
) -> Iterator[Commands]:
    """The prestep that a Python imports in a folder; `folder` takes what its commands print, `limit` bounds its resources."""
    folder.mkdir()
    with subprocess.Popen(
        [str(python), "-c", CODE],
        cwd=cwd,
        env=env,
        preexec_fn=limit,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Commands(process.stdin, process.stdout, folder)
        process.stdin.close()
