"""PyTorch's profiler without a GPU: it sees the host alone, and leaves Python's calls to the recorder."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler.profiler import _KinetoProfile


def install() -> None:
    _KinetoProfile.__init__ = _of_the_host(_KinetoProfile.__init__)
    torch.autograd.profiler.profile.__init__ = _without_device(
        torch.autograd.profiler.profile.__init__
    )


def _of_the_host(begin: Any) -> Any:
    def begun(self: Any, *, activities: Any = None, **options: Any) -> None:
        del activities
        options = {**options, "with_stack": False}
        begin(self, activities=[ProfilerActivity.CPU], **options)

    return begun


def _without_device(begin: Any) -> Any:
    def begun(self: Any, enabled: bool = True, **options: Any) -> None:
        silent = {"use_cuda": False, "use_device": None, "with_stack": False}
        begin(self, enabled, **{**options, **silent})

    return begun
