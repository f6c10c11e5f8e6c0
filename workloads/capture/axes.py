"""The parallel axis of a group of ranks: what the program calls the group, else how many ranks it has."""

from __future__ import annotations

import re

#: Words of descriptions (device meshes, Megatron's parallel_state) and the axis that they mean; the first one counts.
WORDS = (
    ("dp", ("data", "dp", "ddp", "fsdp", "hsdp", "shard", "replicate")),
    ("tp", ("tensor", "tp", "etp")),
    ("pp", ("pipeline", "pp")),
    ("cp", ("context", "cp", "sequence", "sp")),
    ("ep", ("expert", "ep")),
)
#: Words of groups that stand for several axes at once.
JOINED = ("and", "intra", "inter")


def axis_of(description: str, ranks: int, world: int) -> str:
    """ "tp" for "TENSOR_MODEL_PARALLEL_GROUP" or "mesh_tp"; "world" or "group-of-4" where the program does not say."""
    words = set(re.findall(r"[a-z]+", description.lower()))
    if not words & set(JOINED):
        for axis, names in WORDS:
            if words & set(names):
                return axis
    return "world" if ranks == world else f"group-of-{ranks}"
