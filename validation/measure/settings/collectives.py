"""Collectives: as NCCL chooses, with forced algorithms and protocols, with few channels."""

from __future__ import annotations

from collections.abc import Sequence

from validation.measure import cases
from validation.measure.options import Options, Place
from validation.measure.plan import Variant, environment

FULL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "sendrecv",
    "send_0_1",
)
SHORT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv")
RINGS = ("all_reduce", "all_gather", "reduce_scatter")


def variants(options: Options, place: Place) -> Sequence[Variant]:
    """As NCCL chooses on all ranks and on two; rings and trees by protocol; 1 to 16 channels."""
    asked = cases.load(options.cases).series if options.cases else ()
    if asked:
        return [
            Variant(
                s.label,
                s.env,
                s.ranks,
                25,
                0.02 * len(s.ops) * len(s.sizes),
                s.ops,
                s.sizes,
            )
            for s in asked
        ]
    found = [Variant(cases=FULL)]
    if options.rehearse:
        return [
            *found,
            Variant(
                "ch2",
                {"NCCL_MAX_NCHANNELS": "2"},
                order=60,
                weight=0.4,
                cases=("all_reduce",),
            ),
        ]
    if place.world > 2:
        found.append(Variant("default", {}, 2, 50, 0.7, FULL))
    for at, algo in enumerate(("Ring", "Tree")):
        for proto in ("Simple", "LL128", "LL"):
            env = {"NCCL_ALGO": f"allreduce:{algo}", "NCCL_PROTO": proto}
            ops = RINGS if algo == "Ring" and proto != "LL128" else ("all_reduce",)
            if (
                place.world > 2 or algo == "Ring"
            ):  # two ranks: a tree is a line there and back
                found.append(Variant(f"{algo}-{proto}", env, None, 60 + at, 0.45, ops))
    if place.nodes == 1 and _sharp(options, place):
        env = {"NCCL_ALGO": "allreduce:NVLS", "NCCL_PROTO": "Simple"}
        found.append(Variant("NVLS-Simple", env, None, 62, 0.45, ("all_reduce",)))
    for at, n in enumerate((8, 2, 4, 1, 16)):
        found.append(
            Variant(
                f"ch{n}", {"NCCL_MAX_NCHANNELS": str(n)}, None, 70 + at, 0.45, SHORT
            )
        )
    return found


def _sharp(options: Options, place: Place) -> bool:
    """Whether NVLink SHARP may be tried: Hopper and later, and nobody said no."""
    off = environment(options, Variant()).get("NCCL_NVLS_ENABLE") == "0"
    return not off and bool(place.gpus) and place.gpus[0].get("capability", [0])[0] >= 9
