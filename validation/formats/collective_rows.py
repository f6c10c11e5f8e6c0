"""Measured collectives, one row a size.

Readers: `collective_reader` (JSON lines of the harness), `nccl_tests` (its logs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from prestep.sim.collectives.settings import Nccl

IN_PLACE = "_inplace"
# One-way sends, and the rank that receives; all others are idle.
ONE_WAY = {"send_0_1": 1, "send_0_last": -1}
MIB = 2**20


# Series of nccl-tests; the others were timed through torch.distributed.
TESTED = ("nccl-tests", "published")


@dataclass(frozen=True)
class Row:
    """One measured size.

    Attributes
    ----------
    label : str
        Series, as the harness or the source names it.
    op : str
        Operation with the harness's variants: `send_0_1`, `all_gather_inplace`.
    size : int
        Bytes as nccl-tests counts them.
    time, eager : float
        Seconds on the GPU, and with the host's launches.
    held_out : bool
        Whether the fits of the bundled constants leave it out, where they use its file at all.
    wanted : Nccl
        NCCL's settings of the run.
    cluster : str
        Name or file; "": the measured host.
    hosts, per_host : int or None
        Hosts of the cluster, and GPUs used on each; None: one host, the first GPUs.
    machine : str
        Group to report it in; "": the measured host.
    fitted : bool
        Whether constants were fitted to this size of this machine (set by readers of other machines).
    ignored : tuple of str
        Variables of the run that the prediction leaves out.
    skip : str
        Why it cannot be compared.
    calls : int
        Calls through PyTorch, one after the other, whose mean time it is; 0: times on the GPU, or not known.
    alone : bool
        Whether each call through PyTorch was timed by itself: the host's way to the kernel is in it.
    launches : int
        GPUs whose kernels one thread launches, one after the other (nccl-tests -g).
    """

    label: str
    op: str
    ranks: int
    size: int
    time: float
    eager: float
    held_out: bool = True
    where: str = ""
    wanted: Nccl = field(default_factory=Nccl)
    cluster: str = ""
    hosts: int | None = None
    per_host: int | None = None
    machine: str = ""
    fitted: bool = False
    ignored: tuple[str, ...] = ()
    skip: str = ""
    id: str = ""
    calls: int = 0
    alone: bool = False
    launches: int = 1

    @property
    def name(self) -> str:
        return self.id or f"{self.label}/{self.op}/n{self.ranks}/{self.size}"

    @property
    def series(self) -> str:
        """What a tolerance is set for: decided by the settings, not by the label."""
        w = self.wanted
        if self.machine:
            return f"{self.machine}, {_side(self.size)}"
        if w.algo or w.proto:
            algo = "_".join(part.capitalize() for part in (w.algo or "any").split("_"))
            return f"{algo}-{w.proto or 'any'}"
        if w.min_channels or w.max_channels or w.max_ctas:
            return "channel-limited"
        if replace(w, version=Nccl.version, nvls=None) != Nccl():
            return "other settings"
        return f"default, {_side(self.size)}"


def _side(size: int) -> str:
    return "1 MiB and more" if size >= MIB else "below 1 MiB"


def nccl_op(op: str) -> str:
    return "send" if op in ONE_WAY else op.removesuffix(IN_PLACE)


def members(row: Row, gpus: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Operation and ranks of a row on a cluster with these GPUs (`send_0_1` is one-way, the other ranks idle)."""
    chosen = list(gpus[: row.ranks])
    if row.op in ONE_WAY:
        receiver = chosen[ONE_WAY[row.op]]
        return "send", [
            chosen[0],
            receiver,
            *(gpu for gpu in chosen[1:] if gpu != receiver),
        ]
    return nccl_op(row.op), chosen
