"""On how many threads a process does linear algebra."""

from __future__ import annotations

import os

#: What the libraries behind numpy and scipy read when they are loaded.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_OWN = THREADS[0]  # that of their wheels; frameworks read the others
_set_here: set[str] = set()


def sum_alone() -> None:
    """Lets a process that has not imported numpy yet do linear algebra on one thread, if nobody says how many.

    Two threads add in another order than one: the last bit of a prediction would depend on how many cores there are,
    and differ between `run` and `sweep`, whose processes have one each. And the matrices here are small: threads that
    wait for each other's parts took half of the processor time of a short `run`.
    """
    if _OWN not in os.environ:
        os.environ[_OWN] = "1"
        _set_here.add(_OWN)


def environment() -> dict[str, str]:
    """The environment that this process was given, for programs that are not prestep's."""
    return {name: value for name, value in os.environ.items() if name not in _set_here}
