"""Choices that scores decide which nobody computes: which experts tokens go to, as the recording is told to assume."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from prestep.workloads.capture.routing import choices, described

CHOOSING = ("aten::topk.default",)  # by which routers choose
LARGEST = 1 << 20  # choices of an operation that are written down


class Experts:
    """What is assumed of experts, and how often it was.

    Attributes
    ----------
    busiest
        Tokens of the first expert over those of the mean one.
    """

    busiest: ClassVar[float] = 1.0
    assumed: ClassVar[Counter[str]] = Counter()


def name_of(function: Any) -> str:
    return f"{function._schema.name}.{function._overloadname}"


def choose(arguments: Any, results: Any) -> None:
    """Gives what `topk` chooses its values, where it chooses along the last dimension."""
    scores, chosen = arguments[0], results[1]
    along = arguments[2] if len(arguments) > 2 else -1
    if along not in (-1, scores.dim() - 1) or not 0 < chosen.numel() <= LARGEST:
        return
    rows, count = chosen.numel() // chosen.shape[-1], chosen.shape[-1]
    table = choices(rows, count, int(scores.shape[-1]), Experts.busiest)
    if isinstance(chosen, FakeTensor):
        value = torch.tensor(table, dtype=chosen.dtype, device="cpu")
        chosen._value, chosen._assumed = value.reshape(tuple(chosen.shape)), True
        Experts.assumed[described(Experts.busiest)] += 1
