"""The pools of disaggregated inference: which GPUs prefill and which decode, and what their memory must hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sim.costs import Gpu
from sim.costs.measured import gpu_of
from sim.errors import InputError, Mistake
from sim.predict import load_fabric
from sim.spec.sections import Scenario
from sim.units import format_bytes
from topologies.fabric import Fabric
from workloads.models.counts import total_parameters
from workloads.models.model import ModelSpec, load_model

WEIGHT = 2.0  # bytes
KV = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Pools:
    """A scenario's pools: the GPUs of every prefill and every decode worker."""

    scenario: Scenario
    fabric: Fabric
    model: ModelSpec
    gpu: Gpu
    prefill: tuple[tuple[str, ...], ...]
    decode: tuple[tuple[str, ...], ...]

    @property
    def cache(self) -> float:
        """Bytes of the KV cache of a prompt."""
        return self.per_token * self.scenario.inference.prompt

    @property
    def per_token(self) -> float:
        """Bytes of the KV cache of one token."""
        m = self.model
        width = (
            m.kv_lora_rank + m.rope_head_dim
            if m.latent
            else 2 * m.kv_heads * m.head_dim
        )
        return m.layers * width * KV[self.scenario.inference.kv_dtype]


def pools_of(scenario: Scenario) -> Pools:
    """The pools on the scenario's cluster.

    Raises
    ------
    InputError
        With everything that does not fit.
    """
    inference = scenario.inference
    model, fabric = load_model(scenario.model, scenario.where), load_fabric(scenario)
    if mistakes := _mistakes(scenario, model, fabric):
        raise InputError(mistakes)
    first = inference.prefill_gpus or 0
    last = first + (inference.decode_gpus or 0)
    pools = Pools(
        scenario,
        fabric,
        model,
        gpu_of(fabric),
        _workers(fabric.gpus[:first], inference.prefill_tp),
        _workers(fabric.gpus[first:last], inference.decode_tp),
    )
    _check_room(pools)
    return pools


def _mistakes(scenario: Scenario, model: ModelSpec, fabric: Fabric) -> list[Mistake]:
    """What does not fit: the model, or the pools."""
    inference, where = scenario.inference, scenario.where
    prefill, decode = inference.prefill_gpus, inference.decode_gpus
    mistakes = []
    if model.kind != "transformer":
        expected = "a transformer, which has a KV cache"
        mistakes.append(Mistake(where, "inference", f"a {model.kind}", expected))
    mistakes += _uneven(where, "prefill", prefill, inference.prefill_tp)
    mistakes += _uneven(where, "decode", decode, inference.decode_tp)
    need = (prefill or 0) + (decode or 0)
    if need > len(fabric.gpus):
        found, expected = f"{need} GPUs in all", f"at most {len(fabric.gpus)}"
        mistakes.append(Mistake(where, "inference.decode_gpus", found, expected))
    return mistakes


def _uneven(where: str, name: str, gpus: int | None, tp: int) -> Iterator[Mistake]:
    """A pool without GPUs, or whose GPUs make no whole number of workers."""
    key = f"inference.{name}"
    if gpus is None:
        yield Mistake(where, f"{key}_gpus", "nothing", "a number of GPUs")
    elif gpus % tp:
        expected = f"a divisor of {name}_gpus = {gpus}"
        yield Mistake(where, f"{key}_tp", str(tp), expected)


def _workers(gpus: tuple[str, ...], tp: int) -> tuple[tuple[str, ...], ...]:
    """Workers of `tp` GPUs each."""
    return tuple(gpus[at : at + tp] for at in range(0, len(gpus), tp))


def _check_room(p: Pools) -> None:
    """Weights, and the caches of a batch where they lie in HBM, fit a decode worker."""
    i, room = p.scenario.inference, p.gpu.memory * p.scenario.inference.decode_tp
    weights = total_parameters(p.model) * WEIGHT
    caches = (
        i.decode_batch * (i.prompt + i.output) * p.per_token if i.tier == "hbm" else 0.0
    )
    if weights + caches > room:
        found = (
            f"{format_bytes(weights)} of weights and {format_bytes(caches)} of KV cache"
        )
        hint = 'a smaller decode_batch, more decode_tp, or tier = "cpu"'
        expected = f"at most {format_bytes(room)}, the memory of a decode worker"
        raise InputError(
            Mistake(p.scenario.where, "inference.decode_batch", found, expected, hint)
        )
