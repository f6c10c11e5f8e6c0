"""One collective on a fabric: its plan, which the fabric remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prestep.sim.collectives import backends
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.extras import lazily
from prestep.sim.graph.opgraph import Tokens

with lazily():
    from prestep.sim.collectives import deepep, hybridep

KERNELS = {"deepep": deepep, "hybridep": hybridep}


def plan_collective(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    in_place: bool = False,
    tokens: Tokens | None = None,
) -> Plan:
    """The plan of one collective, remembered: the same operation, size and group give the same object.

    Parameters
    ----------
    op : str
        all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter, send, recv or sendrecv;
        with `nccl.backend` "nvshmem" also put and get.
    size : float
        Bytes as nccl-tests counts them (gathers, scatters and all-to-all: n times a rank's part).
    ranks : sequence of str
        GPU nodes of `fabric`; the first is the root of a broadcast, reduce, gather or scatter.
    fabric : topologies.fabric.Fabric
    nccl : sim.spec.sections.Nccl, optional
    tokens : Tokens, optional
        What DeepEP's or HybridEP's kernel exchanges in place of NCCL's, where that was measured.
    in_place : bool
        Each rank's part of an all-gather already lies in its output: the first step need not copy it there.

    Raises
    ------
    InputError
        For anything that NCCL would refuse; see `prestep.sim.collectives.nccl.tuner.choose`.
    """
    settings = nccl or Nccl()
    # One look at thousands of ranks, not one for every question.
    ranks = tuple(ranks)
    plans = paths.index_of(fabric).plans.setdefault(ranks, {})
    key = (op, size, settings, in_place, tokens)
    plan: Plan | None = plans.get(key)
    if plan is None:
        own = None
        if tokens is not None:
            kernel = KERNELS[tokens.kernel]
            own = kernel.plan(op, size, ranks, fabric, settings, tokens)
        plan = own or backends.plan_of(op, size, ranks, fabric, settings, in_place)
        plans[key] = plan
    return plan
