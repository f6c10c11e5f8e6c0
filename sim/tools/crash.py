"""What a user sees when prestep itself is wrong: what happened, where the details are, how to report it."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from pathlib import Path

from sim import __version__

EXIT_CRASH = 3
DEBUG = "PRESTEP_DEBUG"  # set: the traceback itself


def message(error: Exception) -> str:
    """The message; the traceback, the command and versions go to a file of which it tells the path."""
    import tempfile  # brings a dozen modules along, for what should never happen

    details = "".join(traceback.format_exception(error))
    about = f"prestep {__version__}, Python {platform.python_version()}, {platform.platform()}\n{sys.argv}\n\n{details}"
    try:
        handle, name = tempfile.mkstemp(
            prefix="prestep-crash-", suffix=".txt", text=True
        )
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(about)
        where = f"Details are in {Path(name)}"
    except OSError:
        where = f"Set {DEBUG}=1 to see where"
    return (
        f"prestep has a mistake of its own: {type(error).__name__}: {error}\n{where}. "
        "Please report it with that file, the scenario and the command (CONTRIBUTING.md says where).\n"
        f"Nothing is wrong with your input as far as prestep can tell; {DEBUG}=1 shows the traceback here."
    )


def wanted() -> bool:
    """Whether tracebacks are to be explained: not while debugging."""
    return not os.environ.get(DEBUG)
