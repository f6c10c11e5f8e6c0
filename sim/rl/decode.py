"""One step of an engine: a token for every rollout in its batch.

products   every weight is read once, by measured laws (`laws.toml`); above 256 rows by the GPU's tables
experts    as many as the batch's tokens meet, on average, are read and computed; routers have favourites
           (parallel.imbalance)
attention  keys and values of all tokens so far, a kernel a layer
exchanges  between an engine's GPUs
small      norms, rotation, routing: the time of a small kernel each
sampling   a token, and its log-probability, of all logits
host       scheduling and sampling, as far as the GPU does not work beside them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from prestep.sim import files
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.costs import Gpu
from prestep.sim.graph.kernel import product
from prestep.sim.rl.constants import (
    QUANTIZED,
    QUANTIZED_OF_EXPERTS,
    SMALL,
    SMALL_OF_EXPERTS,
)
from prestep.sim.rl.pools import Pools
from prestep.sim.units import parse_duration
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.routing import layers_of

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


#: Times of kernels that were measured, by kind.
FILE = Path(__file__).parent / "laws.toml"
MEASURED_ON = "h100"


@dataclass(frozen=True)
class Law:
    """Times of one kind of kernel: seconds of `start`, seconds of a `step`, share of HBM's bandwidth."""

    start: float
    step: float
    share: float
    evidence: str

    def seconds(
        self, gpu: Gpu, moved: float, depth: float = 0.0, busy: float = 0.0
    ) -> float:
        """Seconds in which `moved` bytes are read and written; `busy` seconds of arithmetic are beside it."""
        reading = moved / (self.share * gpu.bandwidth)
        return self.start + math.hypot(reading, depth * self.step, busy)


@cache
def laws() -> Mapping[str, Law]:
    """The laws of the file, by the kind of kernel."""
    return {
        name: _law(name, entry)
        for name, entry in files.toml(FILE.read_text(encoding="utf-8")).items()
    }


def _law(name: str, entry: Mapping[str, object]) -> Law:
    where = str(FILE)
    start = parse_duration(entry["start"], where, f"{name}.start")
    step = parse_duration(entry.get("step", "0 s"), where, f"{name}.step")
    return Law(start, step, float(str(entry["share"])), str(entry["evidence"]))


#: Bytes that sampling moves for a logit (a count of kernels in vLLM's sampler; a softmax reads twice): widened 6,
#: log-softmax 12, scaled 8, softmax 12, noise 4, divided 12, argmax 4, compared and counted 6.
SAMPLED = 64.0
#: Bytes of a weight, and the kernels' number format, by an engine's precision.
WEIGHTS = {"bf16": 2.0, "fp8": 1.0}
KERNELS = {"bf16": "bf16", "fp8": "fp8_block"}
LAWS = {"bf16": "product", "fp8": "product_fp8"}
PEAKS = {"bf16": "bf16", "fp8": "fp8"}
#: Rows of a product up to which laws were measured.
FEW = 256
#: Bytes of a GPU that an engine keeps for activations and NCCL's buffers, beside weights and KV cache; a guess.
WORKING = 2e9


@dataclass(frozen=True)
class Engine:
    """One generation engine: its GPUs, and what a step of decoding takes on them."""

    pools: Pools
    gpus: tuple[str, ...]

    @property
    def model(self) -> ModelSpec:
        return self.pools.model

    @property
    def gpu(self) -> Gpu:
        return self.pools.gpu

    @property
    def tp(self) -> int:
        return self.pools.rl.generation_tp

    @property
    def stages(self) -> int:
        return self.pools.rl.generation_pp

    @cached_property
    def weights(self) -> float:
        """Bytes of weights on a GPU of the engine."""
        size = WEIGHTS[self.pools.rl.generation_precision]
        return total_parameters(self.model) * size / len(self.gpus)

    @cached_property
    def cached(self) -> float:
        """Bytes that one token's keys and values take on a GPU of the engine."""
        m = self.model
        layers = m.layers / self.stages
        if m.latent:  # every rank holds the whole latent vector
            return layers * (m.kv_lora_rank + m.rope_head_dim) * ACTIVATION
        heads = max(1.0, m.kv_heads / self.tp)
        return layers * 2 * heads * m.head_dim * ACTIVATION

    @cached_property
    def room(self) -> float:
        """Tokens whose keys and values fit the engine."""
        memory = self.gpu.memory * self.pools.rl.generation_memory
        return (memory - WORKING - self.weights) / self.cached

    def step(self, batch: int, context: float) -> float:
        """Seconds in which each of `batch` rollouts of `context` tokens on average gets one more."""
        return sum(self.parts(batch, context).values())

    def parts(self, batch: int, context: float) -> Mapping[str, float]:
        """Seconds of a step by what they are for."""
        made = {**self._of_batch(batch), "kv_cache": self._reading(batch, context)}
        if self.pools.rl.async_scheduling and not self.by_ray:
            busy = sum(made.values()) - made["host"]
            made["host"] = max(0.0, made["host"] - busy)
        return made

    def _of_batch(self, batch: int) -> dict[str, float]:
        """What does not depend on the context, remembered: batches come again and again."""
        if batch not in self._known:
            c, rl, slow = self.pools.constants, self.pools.rl, self.pools.host_factor
            small = self._small_kernels()
            launch = c.small_kernel if rl.cuda_graphs else c.eager_launch * slow
            self._known[batch] = {
                "weights": self._products(batch),
                "exchanges": self._exchanges(batch),
                "small_kernels": small * launch,
                "sampling": self._sampling(batch),
                "host": slow * self._host(batch),
            }
        return self._known[batch]

    def _host(self, batch: int) -> float:
        """Seconds of the host of a DGX H100 for a step."""
        c = self.pools.constants
        own = c.step_host + batch * c.sequence_host
        return own + c.ray_host if self.by_ray else own

    @property
    def by_ray(self) -> bool:
        """Whether Ray carries what is scheduled to the workers: of one GPU the engine is the worker."""
        return self.pools.rl.executor == "ray" and len(self.gpus) > 1

    @cached_property
    def _known(self) -> dict[int, dict[str, float]]:
        return {}

    def _small_kernels(self) -> int:
        m = self.model
        experts = sum(map(m.has_experts, range(m.layers)))
        made = SMALL * m.layers + SMALL_OF_EXPERTS * experts
        if self.pools.rl.generation_precision == "bf16":
            return made
        return made + QUANTIZED * m.layers + QUANTIZED_OF_EXPERTS * experts

    def _products(self, batch: int) -> float:
        """Seconds of all products of one token for each rollout."""
        m = self.model
        layers = range(m.layers)
        experts = sum(map(m.has_experts, layers))
        total = m.layers * self._attention(batch)
        total += (m.layers - experts) * self._feed_forward(batch, m.ffn)
        if experts:
            total += experts * self._experts(batch)
        return total + self._product(batch, m.vocab // self.tp, m.hidden)

    def _attention(self, batch: int) -> float:
        """Projections of a layer's attention."""
        m, tp = self.model, self.tp
        if m.latent:
            # absorbed: queries go into the latent space and values come out of it, so no key is ever built
            q, rank = m.heads * m.query_dim // tp, m.kv_lora_rank
            widths = [
                (m.q_lora_rank + rank + m.rope_head_dim, m.hidden),
                (q, m.q_lora_rank or m.hidden),
                (m.heads * m.head_dim // tp, rank),
                (m.heads * m.v_head_dim // tp, rank),
                (m.hidden, m.heads * m.v_head_dim // tp),
            ]
            return sum(self._product(batch, n, k) for n, k in widths)
        heads, kv = m.heads // tp, max(1, m.kv_heads // tp)
        qkv = (heads + 2 * kv) * m.head_dim
        out = self._product(batch, m.hidden, heads * m.head_dim)
        return self._product(batch, qkv, m.hidden) + out

    def _feed_forward(self, batch: int, width: int) -> float:
        m = self.model
        wide = max(1, width // self.tp)
        up = self._product(batch, wide * (2 if m.gated else 1), m.hidden)
        return up + self._product(batch, m.hidden, wide)

    def _experts(self, batch: int) -> float:
        """The router, shared experts, and the routed ones that the batch meets."""
        m, spread = self.model, self.pools.rl.generation_ep
        total = self._product(batch, m.experts, m.hidden)
        if m.shared_experts:
            total += self._feed_forward(batch, m.moe_ffn * m.shared_experts)
        met = max(1, round(self.met(batch) / spread))
        rows = max(1, round(batch * m.experts_per_token / spread / met))
        wide = max(1, m.moe_ffn * spread // self.tp)
        inner = wide * (2 if m.gated else 1)
        return (
            total
            + self._grouped(met, rows, inner, m.hidden)
            + self._grouped(met, rows, m.hidden, wide)
        )

    def met(self, batch: int) -> float:
        """Experts that tokens of so many rollouts choose, on average over layers: fewer, where some are popular."""
        missed = (1.0 - self._chosen) ** batch
        return float((1.0 - missed).sum(axis=1).mean())

    @cached_property
    def _chosen(self) -> np.ndarray:
        """How likely a token is to choose each expert, by layer: routers spread tokens as they do in training."""
        m, said = self.model, self.pools.scenario.parallel.imbalance
        loads = np.array(layers_of(said, m.experts, m.experts_per_token))
        return np.minimum(1.0, loads * m.experts_per_token / m.experts)

    def _product(self, m: int, n: int, k: int) -> float:
        law = LAWS[self.pools.rl.generation_precision]
        few = self._by_law(law, 1, min(m, FEW), n, k)
        if m <= FEW:
            return few
        dtype = KERNELS[self.pools.rl.generation_precision]
        return max(few, self.gpu.duration(product((m, n, k), dtype)))

    def _grouped(self, experts: int, rows: int, n: int, k: int) -> float:
        """Experts' products: bound by their weights, or by the arithmetic of as large a product."""
        few = self._by_law("experts", experts, rows, n, k)
        many = experts * rows
        return few if many <= FEW else max(few, self._product(many, n, k))

    def _by_law(self, kind: str, count: int, m: int, n: int, k: int) -> float:
        """Products of m rows each, by weights of their own."""
        precision = self.pools.rl.generation_precision
        size = WEIGHTS[precision]
        moved = count * (size * (n * k + m * k) + ACTIVATION * m * n)
        busy = 2.0 * count * m * n * k / self.gpu.peak[PEAKS[precision]]
        return laws()[kind].seconds(self.gpu, moved, k, busy)

    def _reading(self, batch: int, context: float) -> float:
        """Attention of a token for each rollout, in all layers one after the other."""
        m = self.model
        law = laws()["latent_attention" if m.latent else "attention"]
        of_layer = batch * context * self.cached * self.stages / m.layers
        return m.layers * law.seconds(self.gpu, of_layer, context)

    def _sampling(self, batch: int) -> float:
        """Every GPU of a stage has all logits and samples the same tokens."""
        moved = SAMPLED * batch * self.model.vocab
        return laws()["sampling"].seconds(self.gpu, moved)

    def _exchanges(self, batch: int) -> float:
        """What the GPUs of an engine send each other for one token of each rollout."""
        return Exchanges(self.pools, self.gpus).seconds(self.model, batch)

    def prefill(self, prompts: int, tokens: int) -> float:
        """Seconds of the prompts' keys and values; a prompt that is sampled many times is computed once."""
        if prompts == 0:
            return 0.0
        m, count = self.model, prompts * tokens
        return self._products(count) - self._product(
            count, m.vocab // self.tp, m.hidden
        )
