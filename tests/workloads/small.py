"""Small scenarios, lowered, and their operations as rows that tests can read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, Comm
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.lower import lower

LAYERS, HIDDEN, SEQ = 4, 256, 128
TRANSFORMER = {
    "kind": "transformer",
    "hidden": HIDDEN,
    "layers": LAYERS,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 512,
    "vocab": 1000,
}
EXPERTS = TRANSFORMER | {"experts": 4, "experts_per_token": 2}
MLP = {"kind": "mlp", "sizes": [256, 256, 8]}


def scenario(
    model: dict[str, Any] = TRANSFORMER,
    training: dict[str, Any] | None = None,
    pytorch: dict[str, Any] | None = None,
    **parallel: Any,
) -> Scenario:
    """A scenario on as many GPUs of the measured host as the layout needs."""
    gpus = prod(parallel.get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": gpus},
        "model": model,
        "training": {"seq_len": SEQ, "micro_batch": 2, **(training or {})},
        "parallel": parallel,
        "pytorch": pytorch or {},
    }
    return parse_scenario(tables, "small.toml")


def lowered(
    model: dict[str, Any] = TRANSFORMER,
    training: dict[str, Any] | None = None,
    **parallel: Any,
) -> Lowered:
    """The operation graph of `scenario`."""
    s = scenario(model, training, **parallel)
    return lower(s, load_model(s.model))


@dataclass(frozen=True)
class Op:
    """One operation: a kernel, or the communications it takes part in."""

    index: int
    name: str
    stream: str
    phase: str
    layer: int
    microbatch: int
    deps: tuple[int, ...]
    kernel: Kernel | None
    comms: tuple[Comm, ...]

    @property
    def size(self) -> float:
        """Bytes of its communications."""
        return sum(c.size for c in self.comms)


def ops(low: Lowered, rank: int = 0) -> list[Op]:
    """The operations of a simulated rank in the order its host issues them."""
    graph = low.graph
    p = next(p for p in graph.programs if p.rank == rank)
    rows = []
    for i, (kind, payload) in enumerate(
        zip(p.kind.tolist(), p.payload.tolist(), strict=True)
    ):
        kernel = graph.kernels[payload] if kind == KERNEL else None
        comms = tuple(graph.comms[c] for c in p.parts[payload]) if kind == COMM else ()
        phase, layer = graph.phases[p.phase[i]], int(p.layer[i])
        stream = graph.streams[p.stream[i]]
        rows.append(
            Op(
                i,
                p.names[i],
                stream,
                phase,
                layer,
                int(p.microbatch[i]),
                p.deps[i],
                kernel,
                comms,
            )
        )
    return rows


def communications(low: Lowered, rank: int = 0) -> Counter[str]:
    """How often the rank takes part in each operation of each axis: "dp all_reduce" -> count."""
    return Counter(f"{c.axis} {c.op}" for op in ops(low, rank) for c in op.comms)


def volume(low: Lowered, name: str, rank: int = 0) -> float:
    """Bytes of all communications called "axis operation" of a rank."""
    return sum(
        c.size for op in ops(low, rank) for c in op.comms if f"{c.axis} {c.op}" == name
    )
