"""Worker processes work as the process that started them does, and end with it, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading

from sim.tools.garbage import collect_rarely


def begin() -> None:
    """Initializer of a pool's workers: they collect garbage as rarely as the command, and end with it."""
    collect_rarely()
    _end_with_parent()


def _end_with_parent() -> None:
    """A process that is killed takes its workers along, which it cannot do itself."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
