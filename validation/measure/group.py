"""A process of a group that measures GPUs: it waits for the others, and agrees with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from prestep.validation.measure.session import Session

T = TypeVar("T")


class GroupSession(Session):
    """One process of a group.

    Attributes
    ----------
    device : torch.device
        That of this process.
    hosts
        A communicator of the CPUs, to wait in; None: this process is alone.
    """

    def __init__(
        self, spec: Mapping[str, Any], env: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(spec, env)
        self.hosts: Any = None
        self.device = (
            torch.device("cuda", self.local_rank) if self.cuda else torch.device("cpu")
        )

    def going(self, need: float = 0.0) -> bool:
        """Whether there is time for `need` seconds more: rank 0 decides for all."""
        enough = super().going(need)
        if self.world == 1:
            return enough
        flag = torch.tensor([float(enough)], device=self.device)
        dist.broadcast(flag, 0)
        return bool(flag.item())

    def slowest(self, value: float) -> float:
        """The largest of all ranks' values."""
        if self.world == 1:
            return value
        tensor = torch.tensor([value], device=self.device, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def gathered(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """All ranks meet with idle GPUs, and wait on their hosts.

        A rank that waits in NCCL keeps its GPU busy, and whoever reaches for that GPU from another process meanwhile
        gets a time slice of it every two milliseconds.
        """
        self.synchronize()
        if self.hosts is not None:
            dist.barrier(group=self.hosts)

    def barrier(self) -> None:
        """All ranks meet, with idle GPUs, and go on as close together as their GPUs can."""
        self.wait()
        if self.world > 1:
            dist.barrier()
            self.synchronize()

    @property
    def dtype(self) -> torch.dtype:
        """What training computes in, where there is a GPU."""
        return torch.bfloat16 if self.cuda else torch.float32

    def randn(self, *shape: int, dtype: torch.dtype | None = None, **how: Any) -> Any:
        """Random numbers on this process's device, in 16 bits if no type is named."""
        dtype = dtype or torch.bfloat16
        return torch.randn(*shape, device=self.device, dtype=dtype, **how)

    def synchronize(self) -> None:
        """Waits for the GPU of this process."""
        if self.cuda:
            torch.cuda.synchronize()
