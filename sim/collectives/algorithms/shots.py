"""All-reduces of inference engines within a host: vLLM's and TensorRT-LLM's custom kernels, MSCCL++'s.

`one_shot`: every GPU reads all of everybody's buffer and adds it up. `two_shot`: it adds up one part, and reads the
others' sums. Both are one kernel without channels, in CUDA graphs: a start, then bytes at the rate that its threads
reach, or the links'. Constants: [shots] of sim/costs/hardware/extra-nccl.toml. NCCL never chooses them: a caller asks
for them by name.
"""

from __future__ import annotations

from itertools import permutations

from prestep.sim.collectives.assemble import Call, wires
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import paths

OPS = ("all_reduce",)
NAMES = ("one_shot", "two_shot")


def obstacle(call: Call) -> str:
    """Why the kernels cannot run there; "": they can."""
    if call.group.nodes > 1:
        return "its GPUs are in several hosts"
    if call.settings.peers_off or "nvlink" not in call.group.local_kind:
        return "its GPUs do not reach each other over NVLink"
    return ""


def plan(call: Call) -> Plan:
    """The all-reduce by the kernel that `backend` names; by one shot, where it names none."""
    backend, n, fabric = call.settings.backend, call.group.n, call.fabric
    name = backend if backend in NAMES else NAMES[0]
    pace = call.constants.tables["shots"][name]
    share = 1.0 if name == "one_shot" else 2 / n
    flows = [(a, b, share) for a, b in permutations(call.ranks, 2)]
    links, data = paths.gather(fabric, call.group.expand(fabric, flows))
    return Plan(
        call.op,
        call.size,
        call.ranks,
        "shots",
        name,
        0,
        pace["start"] + call.group.local_latency,
        links,
        data / wires(links, fabric, call.constants.wire),
        pace["rate"] / ((n - 1) * share),
        "guess",
        data=data,
    )
