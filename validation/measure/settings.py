"""Settings of NCCL and numbers of GPUs that a probe runs with; read by the controller, which may have no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prestep.validation.formats.usual import COLLECTIVES, Case
from prestep.validation.measure import cases
from prestep.validation.measure.options import Options, Place

MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
FULL = (*COLLECTIVES, "send_0_1")
SHORT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv")
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
#: Variables of the processes that write NCCL's log.
LOG = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING",
    "NCCL_DEBUG_FILE": "{files}/nccl/nccl.%p.log",
    "NCCL_TOPO_DUMP_FILE": "{files}/nccl/topo.xml",
    "NCCL_GRAPH_DUMP_FILE": "{files}/nccl/graph.xml",
    "NCCL_TOPO_DUMP_FILE_RANK": "0",
    "NCCL_GRAPH_DUMP_FILE_RANK": "0",
}


@dataclass(frozen=True)
class Variant:
    """A setting in which a probe runs: `env` before NCCL starts, on `ranks` processes (None: all).

    Attributes
    ----------
    label : str
        Series of its rows.
    order : int
        Stages run by order; those at 0 share one group of processes.
    weight : float
        Share of the time, against the others'.
    cases : tuple of str
        What of the probe's list it is for (a probe's own business).
    """

    label: str = "default"
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    order: int = 0
    weight: float = 1.0
    cases: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()


def environment(options: Options, variant: Variant) -> dict[str, str]:
    """Variables of a group's processes, over those of this process."""
    env = dict(variant.env)
    if not options.nvls or os.environ.get("NCCL_NVLS_ENABLE") == "0":
        env |= MULTICAST_OFF
    return env


def _collectives(options: Options, place: Place) -> Sequence[Variant]:
    """As NCCL chooses on all ranks and on two; rings and trees by protocol; 1 to 16 channels."""
    asked = cases.load(options.cases).series if options.cases else ()
    if asked:
        return [
            Variant(s.label, s.env, s.ranks, 25, weight, s.ops, s.sizes)
            for s in asked
            for weight in (0.02 * len(s.ops) * len(s.sizes),)
        ]
    if options.rehearse:
        return [Variant(cases=FULL), _channels(2, 60, 0.4, ("all_reduce",))]
    return [
        Variant(cases=FULL),
        *([Variant("default", {}, 2, 50, 0.7, FULL)] if place.world > 2 else []),
        *_forced(options, place),
        *(_channels(n, 70 + at, 0.45, SHORT) for at, n in enumerate((8, 2, 4, 1, 16))),
    ]


def _channels(count: int, order: int, weight: float, ops: tuple[str, ...]) -> Variant:
    env = {"NCCL_MAX_NCHANNELS": str(count)}
    return Variant(f"ch{count}", env, None, order, weight, ops)


def _forced(options: Options, place: Place) -> Iterator[Variant]:
    """Rings, trees and NVLS by protocol; two ranks have no tree: it is a line there and back."""
    for at, algo in enumerate(("Ring", "Tree") if place.world > 2 else ("Ring",)):
        for proto in ("Simple", "LL128", "LL"):
            env = {"NCCL_ALGO": f"allreduce:{algo}", "NCCL_PROTO": proto}
            ops = RINGS if algo == "Ring" and proto != "LL128" else ("all_reduce",)
            yield Variant(f"{algo}-{proto}", env, None, 60 + at, 0.45, ops)
    if place.nodes == 1 and _sharp(options, place):
        env = {"NCCL_ALGO": "allreduce:NVLS", "NCCL_PROTO": "Simple"}
        yield Variant("NVLS-Simple", env, None, 62, 0.45, ("all_reduce",))


def _sharp(options: Options, place: Place) -> bool:
    """Whether NVLink SHARP may be tried: Hopper and later, and nobody said no."""
    off = environment(options, Variant()).get("NCCL_NVLS_ENABLE") == "0"
    return not off and bool(place.gpus) and place.gpus[0].get("capability", [0])[0] >= 9


def _nccl_log(options: Options, place: Place) -> Sequence[Variant]:
    """One group of its own: a log of every call slows calls down."""
    return [Variant("nccl-log", LOG, order=20)]


def _training(options: Options, place: Place) -> Sequence[Variant]:
    """A group of processes for each environment and number of GPUs among the cases."""
    if options.cases is None:
        return [Variant("default", order=30)]
    groups = cases.groups(cases.load(options.cases).training, place.world)
    total = sum(len(listed) for *_, listed in groups)
    return [
        Variant(label, env, ranks, 30, len(listed) / total, _ids(listed))
        for label, env, ranks, listed in groups
    ]


def _ids(listed: Sequence[Case]) -> tuple[str, ...]:
    return tuple(case["id"] for case in listed)


SETTINGS: Mapping[str, Callable[[Options, Place], Sequence[Variant]]] = {
    "collectives": _collectives,
    "nccl_log": _nccl_log,
    "training": _training,
}


def variants(probe: str, options: Options, place: Place) -> Sequence[Variant]:
    """Settings that a probe runs in; one that is not in `SETTINGS` runs once, as NCCL decides."""
    of_probe = SETTINGS.get(probe)
    return (Variant(),) if of_probe is None else of_probe(options, place)
