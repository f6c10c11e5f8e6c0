"""Processes of a pool work as the command does."""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from prestep.sim.tools.process import BETWEEN_COLLECTIONS
from prestep.sim.tools.workers import begin


def test_workers_collect_garbage_as_rarely_as_the_command() -> None:
    """Python's own threshold costs a prediction a sixth of its time, in whichever process it is made."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, begin) as pool:
        assert pool.submit(gc.get_threshold).result()[0] == BETWEEN_COLLECTIONS
