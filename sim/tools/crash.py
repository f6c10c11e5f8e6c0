"""What a user sees when prestep itself is wrong: what happened, where the details are, how to report it."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from pathlib import Path

from prestep.sim import __version__
from prestep.sim.entry_points import sources

EXIT_CRASH = 3
DEBUG = "PRESTEP_DEBUG"  # set: the traceback itself


def message(error: Exception) -> str:
    """The message; the traceback, versions and the command without its values go to a file, whose path it has."""
    import tempfile  # brings a dozen modules along, for what should never happen

    details = "".join(traceback.format_exception(error))
    system = f"Python {platform.python_version()}, {platform.platform()}"
    about = f"prestep {__version__}, {system}\n{command()}\n\n{details}"
    try:
        handle, name = tempfile.mkstemp(
            prefix="prestep-crash-", suffix=".txt", text=True
        )
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(about)
        where = f"Details are in {Path(name)}"
    except OSError:
        where = f"Set {DEBUG}=1 to see where"
    owner = foreign_owner(error)
    who = f"{owner}, a plug-in," if owner else "prestep"
    place = "to its authors" if owner else "(CONTRIBUTING.md says where)"
    return (
        f"{who} has a mistake of its own: {type(error).__name__}: {error}\n{where}. "
        "Please report it with that file, and with what you may show of the scenario and the command "
        f"{place}.\n"
        f"Nothing is wrong with your input as far as prestep can tell; {DEBUG}=1 shows the traceback here."
    )


def foreign_owner(error: BaseException) -> str:
    """Returns the distribution whose plug-in was running when an error was raised; "" where it was prestep alone."""
    tops = {
        entry.value.partition(".")[0]: source
        for source, entries in sources().items()
        for entry in entries
        if entry.foreign
    }
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__", "")) for frame in reversed(frames)]
    owners = (tops.get(name.partition(".")[0], "") for name in names)
    return next(filter(None, owners), "")


def command() -> str:
    """The command and the names of its options.

    Values are left out: the file is sent to others, and a value may be a secret, or a name that is nobody's business.
    """
    words = [Path(sys.argv[0]).name]
    for word in sys.argv[1:]:
        name, equals, _ = word.partition("=")
        is_option = name.startswith("-") or (name.isalpha() and len(words) == 1)
        words.append(
            (name + equals + ("..." if equals else "")) if is_option else "..."
        )
    return " ".join(words)


def wanted() -> bool:
    """Whether tracebacks are to be explained: not while debugging."""
    return not os.environ.get(DEBUG)
