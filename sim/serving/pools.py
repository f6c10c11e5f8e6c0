"""The pools of disaggregated inference: which GPUs prefill and which decode, and what their memory must hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prestep.sim.costs import Gpu
from prestep.sim.costs.measured import gpu_of
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.predict import load_fabric
from prestep.sim.serving.section import Inference
from prestep.sim.spec.sections import Scenario
from prestep.sim.storage.systems import System, load_system, names
from prestep.sim.units import format_bytes
from prestep.topologies.core.links import Floats
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.stores import Stores
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec, load_model

WEIGHT = 2.0  # bytes
#: Ways of a KV cache that need no storage system.
PATHS = ("auto", "nvlink", "rdma", "host", "nvme")
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
    stores: Stores | None = None
    system: System | None = None

    @property
    def inference(self) -> Inference:
        section: Inference = self.scenario.section("inference")
        return section

    @property
    def bandwidth(self) -> Floats:
        """Bytes/s of the cluster's links, then of those in front of the storage."""
        if self.stores is None:
            return self.fabric.links.bandwidth
        return self.stores.bandwidth

    @property
    def cache(self) -> float:
        """Bytes of the KV cache of a prompt."""
        return self.per_token * self.inference.prompt

    @property
    def per_token(self) -> float:
        """Bytes of the KV cache of one token."""
        m = self.model
        width = (
            m.kv_lora_rank + m.rope_head_dim
            if m.latent
            else 2 * m.kv_heads * m.head_dim
        )
        return m.layers * width * KV[self.inference.kv_dtype]


def pools_of(scenario: Scenario) -> Pools:
    """The pools on the scenario's cluster.

    Raises
    ------
    InputError
        With everything that does not fit.
    """
    inference: Inference = scenario.section("inference")
    model, fabric = load_model(scenario.model, scenario.where), load_fabric(scenario)
    InputError.check(_mistakes(scenario, model, fabric))
    first = inference.prefill_gpus or 0
    last = first + (inference.decode_gpus or 0)
    system = _system(scenario)
    pools = Pools(
        scenario,
        fabric,
        model,
        gpu_of(fabric),
        _workers(fabric.gpus[:first], inference.prefill_tp),
        _workers(fabric.gpus[first:last], inference.decode_tp),
        None if system is None else system.at(fabric),
        system,
    )
    _check_room(pools)
    return pools


def _system(scenario: Scenario) -> System | None:
    """The storage system that caches go through or come from.

    Raises
    ------
    InputError
        If there is none of that name, or two are asked for.
    """
    i, where = scenario.section("inference"), scenario.where
    asked = {} if i.path in PATHS else {"path": i.path}
    if i.reuse > 0 and i.reuse_from != "cpu":
        asked["reuse_from"] = i.reuse_from
    for key, name in asked.items():
        if name not in names() and not name.endswith(".toml"):
            usual = PATHS if key == "path" else ("cpu",)
            wrong = unknown(where, f"inference.{key}", name, (*usual, *names()))
            raise InputError(wrong)
    if len(set(asked.values())) > 1:
        found, expected = " and ".join(asked.values()), "one storage system"
        raise InputError.of(where, "inference.reuse_from", found, expected)
    chosen = [
        load_system(name, where, f"inference.{key}") for key, name in asked.items()
    ]
    return chosen[0] if chosen else None


def _mistakes(scenario: Scenario, model: ModelSpec, fabric: Fabric) -> list[Mistake]:
    """What does not fit: the model, or the pools."""
    inference, where = scenario.section("inference"), scenario.where
    prefill, decode = inference.prefill_gpus, inference.decode_gpus
    mistakes = []
    if model.kind != "transformer":
        expected = "a transformer, which has a KV cache"
        mistakes.append(Mistake(where, "inference", f"a {model.kind}", expected))
    if sparse := model.sparse_keys:
        expected = "nothing: a cache of chosen or compressed keys is not simulated"
        mistakes.append(Mistake(where, *sparse, expected))
    mistakes += _uneven(where, "prefill", prefill, inference.prefill_tp)
    mistakes += _uneven(where, "decode", decode, inference.decode_tp)
    mistakes += _wrong_numbers(where, inference)
    if inference.tier == "nvme" and "nvme" not in fabric.nodes.kinds:
        found, hint = '"nvme"', f"{fabric.name} has no disks in its hosts"
        mistakes.append(Mistake(where, "inference.tier", found, "hbm or cpu", hint))
    need = (prefill or 0) + (decode or 0)
    if need > len(fabric.gpus):
        found, expected = f"{need} GPUs in all", f"at most {len(fabric.gpus)}"
        mistakes.append(Mistake(where, "inference.decode_gpus", found, expected))
    return mistakes


def _wrong_numbers(where: str, i: Inference) -> Iterator[Mistake]:
    """A share of more than all, and more copies than workers."""
    if i.reuse > 1:
        yield Mistake(where, "inference.reuse", f"{i.reuse:g}", "a share: at most 1")
    workers = (i.decode_gpus or 0) // i.decode_tp
    if i.copies > max(1, workers):
        expected = f"at most {workers} decode workers"
        yield Mistake(where, "inference.copies", str(i.copies), expected)


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
    i, room = p.inference, p.gpu.memory * p.inference.decode_tp
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
        raise InputError.of(
            p.scenario.where, "inference.decode_batch", found, expected, hint
        )
