"""Collectives: as NCCL chooses, with forced algorithms and protocols, with few channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prestep.validation.formats.usual import COLLECTIVES
from prestep.validation.measure import cases
from prestep.validation.measure.options import Options, Place
from prestep.validation.measure.plan import Variant, environment

FULL = (*COLLECTIVES, "send_0_1")
SHORT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv")
RINGS = ("all_reduce", "all_gather", "reduce_scatter")


def variants(options: Options, place: Place) -> Sequence[Variant]:
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
