"""Hooks around the modules of a model: what an engine does before and behind each of them, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prestep.workloads.torch.tape import Tensor


class ModuleHooks(Protocol):
    """What an engine hangs on every module (`torch.nn.Module.register_forward_pre_hook` and its kin).

    A module is known by the parameters that it has itself, and not by its children.
    """

    def enter(self, parameters: Sequence[Tensor]) -> None:
        """A module is about to run."""
        ...

    def take(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The input that it gets, whose gradient says that the module has run backward."""
        ...

    def leave(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """The output that it gives, whose gradient says that the module is about to run backward."""
        ...
