"""What an engine's GPUs send each other in a step of decoding.

Two all-reduces a layer and the logits of all parts between the tp GPUs of a stage, a send from stage to stage. Between
GPUs of one host that NVLink joins, vLLM reduces by a kernel of its own: every GPU reads its peers' memory, or NVSwitch
adds them up (csrc/custom_all_reduce.cuh; symmetric memory by default since 0.11). NCCL reduces where that would be
faster, and between hosts: between those of one NVL72 rack too, whose processes share no memory
(in_the_same_node_as, vllm/distributed/parallel_state.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.rl.pools import Pools
from prestep.workloads.models.model import ModelSpec

ACTIVATION = 2.0  # bytes of a value of activations and of the KV cache
#: Ranks between which vLLM's own kernels reduce, and the most bytes (vllm/distributed/device_communicators).
REDUCING, MOST = (2, 4, 6, 8), 8 * 2**20
PROBE = 64e6  # bytes of a transfer that shows what a pair of GPUs reaches


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of the engine on these GPUs."""

    pools: Pools
    gpus: Sequence[str]

    def seconds(self, m: ModelSpec, batch: int) -> float:
        """Seconds of a step, for one token of each rollout of a batch."""
        rl, size = self.pools.rl, batch * m.hidden * ACTIVATION
        tp, stages, total = rl.generation_tp, rl.generation_pp, 0.0
        if tp > 1:
            total += 2 * m.layers * self.reduced(size, self.gpus[:tp])
            logits = batch * m.vocab * ACTIVATION
            total += self._nccl("all_gather", logits, self.gpus[:tp])
        if stages > 1:
            pair = self.gpus[0], self.gpus[tp]
            total += (stages - 1) * self._nccl("sendrecv", size, pair)
        return total

    def reduced(self, size: float, ranks: Sequence[str]) -> float:
        """Seconds of an all-reduce by whoever is faster."""
        by_nccl = self._nccl("all_reduce", size, ranks)
        if not self._own(size, ranks):
            return by_nccl
        c, pair = self.pools.constants, self._nccl("sendrecv", PROBE, ranks[:2])
        start = c.reduce_start + len(ranks) * c.reduce_gpu
        return min(by_nccl, start + size * pair / PROBE)

    def _own(self, size: float, ranks: Sequence[str]) -> bool:
        """Whether vLLM's own kernel may reduce: few bytes, GPUs of one host."""
        hosts = {self.pools.fabric.host_of(gpu) for gpu in ranks}
        return len(ranks) in REDUCING and size <= MOST and len(hosts) == 1

    def _nccl(self, op: str, size: float, ranks: Sequence[str]) -> float:
        fabric, nccl = self.pools.fabric, self.pools.scenario.nccl
        plan = plan_collective(op, size, ranks, fabric, nccl)
        return plan.duration(fabric.links.bandwidth)
