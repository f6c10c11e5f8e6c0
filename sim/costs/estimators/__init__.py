"""Ways to price a kernel, alone on a GPU: one file each. A GPU asks them in turn, the surest first (`chain`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from prestep.sim.costs.tables import REACH
from prestep.sim.graph.kernel import Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

#: Whose times a kernel's are, where no other GPU and no library lends them: its own table, or the datasheet's limits.
OWN, LIMITS = "own", "limits"
EXTRAPOLATED = "extrapolation of its table"
NO_TABLE = "no table"


class Basis(NamedTuple):
    """What the time of a kernel rests on.

    Attributes
    ----------
    grade
        "measured" (this shape), "fitted" (this kind), "datasheet" or "guess".
    reason
        What replaces a measurement of the kernel, in words; "" where the GPU's own table reaches it.
    octaves
        By which the kernel lies past the sizes of the table; 0 where that reaches it.
    source
        Whose times they are: `OWN`, `LIMITS`, "library NAME" or "borrowed from GPU".
    """

    grade: str
    reason: str = ""
    octaves: float = 0.0
    source: str = OWN


class Estimator:
    """One way to price a kernel; the base of all of them.

    `seconds` and `basis` are apart because a kernel takes no longer than a larger one (`padding`): of dozens of larger
    kernels the seconds are asked for, and of none what they rest on.

    Attributes
    ----------
    name, covers
        For people: its name, and which kernels it answers for.
    final
        Whether its seconds stand as they are. Those of others are at least what the limits of the GPU allow, and at
        most those of a larger kernel.
    loaded
        Whether its grade counts how much is known of long load; else the GPU adds that.
    """

    name = ""
    covers = ""
    final = False
    loaded = False

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def answers(self, kernel: Kernel) -> bool:
        """Whether it has something to say about a checked kernel; if not, the next one is asked."""
        raise NotImplementedError

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of a kernel that it answers for, alone on the GPU."""
        raise NotImplementedError

    def basis(self, kernel: Kernel) -> Basis:
        """What those seconds rest on, without load."""
        raise NotImplementedError


def lent_octaves(like: Gpu, kernel: Kernel) -> float:
    """Octaves by which a kernel lies past the table that another GPU lends, where that counts.

    What a lent table is continued to near its sizes is in the width of lent times.
    """
    past = like.basis(kernel).octaves
    return past if past > math.log2(REACH) else 0.0
