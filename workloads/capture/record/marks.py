"""Ranges that a program names for profilers: one of the names may say where its steps begin."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.autograd.profiler import record_function

NUMBER = re.compile(r"\d+")


class Marks:
    """Ranges as the program comes to them.

    Attributes
    ----------
    names
        Of NVTX ranges and marks so far, each once, with "*" for its numbers.
    """

    def __init__(self, pattern: str, begin_step: Callable[[], None]) -> None:
        self.pattern, self.begin_step = pattern, begin_step
        self.names: dict[str, None] = {}

    def arrive(self, name: str) -> None:
        """The program comes to a range of this name."""
        if self.pattern and fnmatchcase(name, self.pattern):
            self.begin_step()

    def _nvtx(self, name: str, *_: Any, **__: Any) -> int:
        self.names.setdefault(NUMBER.sub("*", name))
        self.arrive(name)
        return 0

    def install(self) -> None:
        nvtx = torch.cuda.nvtx
        for name in ("range_push", "range_start", "mark"):
            setattr(nvtx, name, self._nvtx)
        nvtx.range_pop = nvtx.range_end = lambda *_: 0
        torch.cuda.profiler.start = lambda: self.arrive("cudaProfilerStart")
        torch.cuda.profiler.stop = lambda: self.arrive("cudaProfilerStop")
        if self.pattern:
            record_function.__enter__ = _entered(record_function.__enter__, self)


def _entered(enter: Any, marks: Marks) -> Any:
    """PyTorch names its profiler's steps so, too: "ProfilerStep#3"."""

    def entered(range_: record_function) -> Any:
        marks.arrive(range_.name)
        return enter(range_)

    return entered
