"""How fast hosts run framework code: as the scenario or the cluster says it, and on the right socket or another one.

A copy between host and GPU from the wrong socket crosses the link between the sockets, both ways, and shares it with
the other ranks of the socket. The host's code waits longer for whatever is not in its caches. Where memory and NCCL's
threads are is `prestep.sim.collectives.wires.processes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.collectives.wires.processes import CROSSINGS, LOCAL

#: Latency of the other socket's memory over one's own. Datasheet: the distances 10 and 32 that firmware of an AWS p5
#: states (numactl --hardware, AMD EPYC 7R13; Hugging Face, The Smol Training Playbook). Measured ones are often less.
LATENCY = 3.2
#: Share of the host's time for framework code that waits for memory. Guess: such code runs out of its caches nearly
#: throughout. It makes 11 %; a log of BigScience says 1 to 5 % of steps that were badly bound.
WAITING = 0.05


@dataclass(frozen=True)
class HostSpeed:
    """Time of a host's framework code over that of the host on which its costs were fitted.

    Attributes
    ----------
    stated : float or None
        As somebody says it; None: nobody does, and it is taken as 1.
    source : str
        Who does: the scenario or the cluster.
    numa : str
        On which socket a rank's process and its memory are: that of its GPU ("local"), or another one ("wrong").

    Examples
    --------
    >>> HostSpeed(2.0, "cluster").factor
    2.0
    >>> round(HostSpeed(numa="wrong").factor, 3)  # nobody says how fast it is
    1.11
    """

    stated: float | None = None
    source: Literal["scenario", "cluster", ""] = ""
    numa: str = LOCAL

    @property
    def factor(self) -> float:
        """How much slower the host is, by itself and by where its processes are."""
        return (1.0 if self.stated is None else self.stated) * self.socket

    @property
    def socket(self) -> float:
        """Time of the host's code over that of a process on the right socket."""
        return 1.0 if self.is_local else 1.0 + WAITING * (LATENCY - 1.0)

    @property
    def is_local(self) -> bool:
        return self.numa == LOCAL

    @property
    def is_known(self) -> bool:
        """Whether somebody says the whole of it."""
        return self.stated is not None and self.is_local

    @property
    def caveat(self) -> str:
        """What a wrong socket slows and what not: a step that waits for neither is as long as on the right one.

        "" for processes on the right socket.
        """
        if self.is_local:
            return ""
        return (
            f"cluster.numa = {self.numa}: the host's code takes {self.socket:.2f} times as long, and "
            "copies between host and GPU cross the sockets; so does what GPUs hand each other through memory, and "
            f"NCCL's proxies cross them {CROSSINGS} times in each step between hosts; kernels, NVLink and the bytes of "
            "NICs beside their GPU feel nothing of it, so a step that waits for none of these is as long as before"
        )
