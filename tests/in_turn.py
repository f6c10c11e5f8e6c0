"""Several commands of another prestep in one process: one that begins imports for longer than a small command works."""

from __future__ import annotations

import json
from collections.abc import Sequence

#: Runs command lines one after the other and prints, as JSON, what each printed.
CODE = """
import contextlib, io, json, sys
import cli
told = []
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.main(line, standalone_mode=False)
    told.append(out.getvalue())
print(json.dumps(told))
"""


def arguments(lines: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What Python is called with."""
    return "-c", CODE, json.dumps([list(line) for line in lines])


def told(stdout: str) -> list[str]:
    """What each command printed."""
    texts: list[str] = json.loads(stdout)
    return texts
