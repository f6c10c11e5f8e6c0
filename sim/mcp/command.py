"""What `prestep mcp` does."""

from __future__ import annotations

from pathlib import Path

from prestep.sim.errors import InputError, Mistake


def mcp(paths: tuple[Path, ...], time_limit: float) -> None:
    gone = [path for path in paths if not path.exists()]
    if gone:
        expected = "a file or folder that tools may read"
        raise InputError(
            Mistake("PATH", "", f"{path}, not there", expected) for path in gone
        )
    from prestep.sim.mcp.server import (
        serve,  # needs the extra, which may be missing
    )

    serve(paths, time_limit)
