"""Finds keys that are stated and cannot affect the step, so that the reader can be told.

They would count in another step: a recipe may carry them, so they are no mistakes. But a what-if of such a key moves
nothing. What a key wants, and which frameworks read it, is said where it is defined (`prestep.sim.strict.key`):
`wants` has conditions, of which each is a key (`parallel.pp > 1`, `parallel.offload = optimizer`), one of
`CONDITIONS` by name, or a command that reads the key, in backticks: no step does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from typing import Any, NamedTuple

from prestep.sim.spec.sections import Scenario
from prestep.workloads.frameworks import framework, framework_of, names, readers
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.precision import precision


class Asked(NamedTuple):
    """What conditions are about: a scenario, its model, and the hosts that its ranks are on."""

    scenario: Scenario
    model: ModelSpec
    hosts: int

    @property
    def in_megatron(self) -> bool:
        """Whether the layers are Megatron's."""
        return bool(framework_of(self.scenario).reads(Megatron))

    @property
    def quantized(self) -> bool:
        return precision(self.scenario.training.precision).quantized

    @property
    def replicas(self) -> int:
        """Ranks that have the same parameters, or parts of them."""
        return self.scenario.parallel.dp * self.scenario.parallel.cp

    @property
    def interleaved(self) -> bool:
        p = self.scenario.parallel
        return p.pp > 1 and p.vpp > 1 and p.schedule == "interleaved"


def _changed_with_releases(a: Asked) -> bool:
    """Whether a step has anything that an older PyTorch does otherwise."""
    s = a.scenario
    recomputes, split = s.training.recompute != "none", s.parallel.cp > 1
    rowwise = s.pytorch.fp8_scaling == "rowwise"
    plain = s.pytorch.attention == "auto" and not a.in_megatron
    chosen = plain or s.megatron.attention == "sdpa"
    attends = chosen and a.model.kind == "transformer"
    layer_norm = a.model.norm == "layer"
    return any((recomputes, split, rowwise, attends, layer_norm, a.interleaved))


def _in_buckets(a: Asked) -> bool:
    """Whether gradients are in PyTorch's buckets."""
    way = a.scenario.parallel.data_parallel
    return not a.in_megatron and way in ("ddp", "ddp-no-overlap", "zero1")


def _has_dense_layer(a: Asked) -> bool:
    m = a.model
    experts = all(m.has_experts(layer) for layer in range(m.layers))
    return a.scenario.model.moe_ffn is None or not experts


def _is_combined(a: Asked) -> bool:
    """Whether ranks combine gradients; one rank under PyTorch may be said to."""
    way = a.scenario.parallel.data_parallel
    return a.replicas > 1 or not a.in_megatron or way == "none"


def _gathers_parameters(a: Asked) -> bool:
    """Whether ranks gather parameters for their passes; DeepSpeed's stage 2 keeps them whole."""
    way = a.scenario.parallel.data_parallel
    return way in ("fsdp", "zero3") or (way == "zero2" and not a.in_megatron)


def _is_gathered_beside(a: Asked) -> bool:
    """Whether Megatron gathers what its distributed optimizer updated beside the forward pass."""
    sharded = a.scenario.parallel.data_parallel == "zero1" and a.replicas > 1
    return sharded and a.scenario.megatron.overlap_param_gather


def _waits_for_norm(a: Asked) -> bool:
    """Whether Megatron's host waits for the norm of the gradients long enough to count."""
    p, graphs = a.scenario.parallel, a.scenario.megatron.cuda_graph_scope
    return p.tp * p.pp > 1 or "full_iteration" in graphs


def _leaves_host(a: Asked) -> bool:
    """Whether the network counts; GPUs of one host that are kept from each other use it too."""
    nccl = a.scenario.nccl
    return a.hosts > 1 or nccl.shm_disable or nccl.hostid is not None


#: Conditions on more than a key, by name: whether one is met, and the words for it.
CONDITIONS: dict[str, tuple[Callable[[Asked], bool], str]] = {
    "quantized": (lambda a: a.quantized, "a precision of 8 or 4 bits"),
    "fusible": (
        lambda a: a.scenario.adapter.on or a.quantized,
        "adapters, or a precision of 8 or 4 bits",
    ),
    "interleaved": (
        lambda a: a.interleaved,
        "parallel.schedule = interleaved with vpp > 1",
    ),
    "gathered": (
        _is_gathered_beside,
        "overlap_param_gather with data_parallel = zero1",
    ),
    "unaligned": (
        lambda a: not (a.interleaved and a.scenario.megatron.align_param_gather),
        "gathers that are not aligned",
    ),
    "reduced": (
        lambda a: a.scenario.megatron.overlap_grad_reduce and a.replicas > 1,
        "overlap_grad_reduce with dp x cp > 1",
    ),
    "biased": (
        lambda a: a.model.bias or a.scenario.megatron.hidden_dropout > 0,
        "a model with biases, or hidden_dropout",
    ),
    "dense": (_has_dense_layer, "a layer without experts"),
    "resharded": (
        _gathers_parameters,
        "parallel.data_parallel = fsdp or zero3, or PyTorch's zero2",
    ),
    "assembled": (
        lambda a: a.scenario.adapter.on or a.scenario.parallel.tp > 1,
        "adapters, or parallel.tp > 1",
    ),
    "replicated": (_is_combined, "dp x cp > 1"),
    "bucketed": (
        _in_buckets,
        "PyTorch's DDP, which rebuilds its first buckets after some steps",
    ),
    "versioned": (
        _changed_with_releases,
        "recomputation, LayerNorm, cp, interleaved stages, rowwise FP8 or attention's kernel left to PyTorch, which "
        "changed with its releases",
    ),
    "accumulated": (
        lambda a: microbatches_of(a.scenario) > 1,
        "more than one microbatch",
    ),
    "waiting": (
        _waits_for_norm,
        "tp or pp > 1, or cuda_graph_scope with full_iteration",
    ),
    "ranks": (lambda a: _ranks(a) > 1, "more than one rank"),
    "hosts": (_leaves_host, "more than one host"),
}
_KEY = re.compile(r"(\w+)\.(\w+)(?: ([=>]) (.+))?")


def idle(s: Scenario, model: ModelSpec, hosts: int) -> Iterator[str]:
    """A line for each reason, with the keys that have no part in the step for it; its ranks are on so many hosts."""
    reasons: dict[str, list[str]] = {}
    for section, part in s.sections().items():
        plain = type(part)()
        for key in fields(part):
            if getattr(part, key.name) == getattr(plain, key.name):
                continue
            reason = _missing(Asked(s, model, hosts), type(part), key)
            if reason:
                reasons.setdefault(reason, []).append(f"{section}.{key.name}")
    for words, keys in reasons.items():
        have = "has" if len(keys) == 1 else "have"
        yield f"{', '.join(keys)} {have} no part in this step: that wants {words}"


def _missing(asked: Asked, cls: type, key: Field[Any]) -> str:
    """What a key wants first of all that is not there; "" for one with a part in the step."""
    families = readers(cls, key)
    if families and framework_of(asked.scenario).family not in families:
        others = [name for name in names() if framework(name).family in families]
        return f"training.framework = {' or '.join(others)}"
    for condition in wants(cls, key):
        met, words = condition_of(condition)
        if not met(asked):
            return words
    return ""


def wants(cls: type, key: Field[Any]) -> list[str]:
    """Conditions of a key: those of its section, and its own."""
    own = key.metadata["wants"]
    if own is None:  # whether it counts is said elsewhere
        return []
    return [one for one in (*getattr(cls, "WANTS", ()), *own.split("; ")) if one]


def condition_of(text: str) -> tuple[Callable[[Asked], bool], str]:
    """Whether a condition is met, and the words for it: of `CONDITIONS`, on one key, or never, of another command.

    Examples
    --------
    >>> met, words = condition_of("parallel.pp > 1")
    >>> words
    'parallel.pp > 1'
    >>> condition_of("interleaved")[1]
    'parallel.schedule = interleaved with vpp > 1'
    """
    if text in CONDITIONS:
        return CONDITIONS[text]
    if text.startswith("`"):
        return lambda asked: False, text
    match = _KEY.fullmatch(text)
    assert match is not None, text
    section, name, sign, value = match.groups()

    def met(asked: Asked) -> bool:
        own = section == "model"
        part = asked.model if own else asked.scenario.section(section)
        found = getattr(part, name)
        if sign == "=":
            return str(found) in value.split(" or ")
        return found > float(value) if sign else bool(found)

    return met, text


def _ranks(a: Asked) -> int:
    return a.replicas * a.scenario.parallel.tp * a.scenario.parallel.pp
