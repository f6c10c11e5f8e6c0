"""Modes that a program enters to see every operation, as selective checkpointing does."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.ops.prim.device.default


def install(recorder: TorchDispatchMode) -> None:
    """Programs' modes see operations alone: which device a tensor is on C++ asks of stand-ins only."""
    of_recording = (type(recorder), FakeTensorMode)
    answering: set[type] = set()
    enter = TorchDispatchMode.__enter__

    def answer_first(kind: Any) -> None:
        see = kind.__torch_dispatch__

        def __torch_dispatch__(
            mode: Any, asked: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if asked is DEVICE:
                return recorder.__torch_dispatch__(asked, types, args, kwargs)
            return see(mode, asked, types, args, kwargs)

        kind.__torch_dispatch__ = __torch_dispatch__

    def entered(mode: TorchDispatchMode) -> Any:
        kind = type(mode)
        if not issubclass(kind, (*of_recording, *answering)):
            answering.add(kind)
            answer_first(kind)
        return enter(mode)

    TorchDispatchMode.__enter__ = entered
