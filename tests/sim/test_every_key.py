"""Nothing that was asked for is dropped in silence: every key moves the prediction, is named by a warning, or refused.

For each key values of its type are tried until one moves a figure. Where none does, a warning has to name the key; a key
that is named for several values and silent for none is one that the scenario has no use for.
"""

from __future__ import annotations

import copy
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from functools import cache
from typing import Any, Literal

import pytest

from prestep.sim.collectives.settings import Ctas
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import SECTIONS
from prestep.sim.strict import type_hints
from prestep.sim.tools import catalog

MODEL = {"kind": "transformer", "hidden": 512, "layers": 2, "heads": 8, "ffn": 1024}
BASES: dict[str, dict[str, Any]] = {
    "ddp": {
        "cluster": {"name": "dgx-h100"},
        "model": MODEL | {"vocab": 1000},
        "training": {"seq_len": 256},
        "parallel": {"dp": 8},
    },
    "two hosts": {
        "cluster": {"name": "rail-h100", "hosts": 2},
        "model": MODEL | {"vocab": 1000},
        "training": {"seq_len": 256},
        "parallel": {"dp": 16, "data_parallel": "fsdp"},
    },
    "one GPU": {
        "cluster": {"name": "dgx-h100", "gpus": 1},
        "model": MODEL | {"vocab": 1000},
        "training": {"seq_len": 256},
    },
}
#: Megatron's steps: in stages with a distributed optimizer, and with experts.
BASES["stages"] = {
    "cluster": {"name": "dgx-h100"},
    "model": MODEL | {"vocab": 1000, "layers": 4},
    "training": {"seq_len": 256, "framework": "megatron", "microbatches": 4},
    "parallel": {"dp": 2, "tp": 2, "pp": 2, "data_parallel": "zero1"},
}
BASES["experts"] = {
    "cluster": {"name": "dgx-h100"},
    # So large that its kernels, not its host, decide: what overlaps is to be seen.
    "model": {"kind": "transformer", "hidden": 4096, "layers": 2, "heads": 32}
    | {"ffn": 16384, "vocab": 1000}
    | {"experts": 8, "experts_per_token": 2, "moe_ffn": 2048},
    "training": {"seq_len": 8192, "framework": "megatron", "microbatches": 2},
    "parallel": {"dp": 8, "ep": 4, "data_parallel": "zero1"},
    "megatron": {"overlap_grad_reduce": True},
}
QUICK = ("cluster", "nccl", "faults", "checkpoint", "inference", "placement", "rl")
LONG = ("pytorch", "adapter", "dataload")
OF_A_STEP = ("training", "parallel", "model", "megatron")
#: Values that say what holds anyway, of keys that take no other one here: the whole cluster, nothing of a part.
AS_IT_IS: dict[str, tuple[Any, ...]] = {
    "cluster.hosts": (1, 2),
    "cluster.gpus": (1, 8, 16),
    "nccl.collnet": (False,),
    "placement.slots": (8, [8]),
    # Batches, microbatches and ranks that the scenarios have.
    "training.global_batch": (8, 16),
    "training.grad_accumulation": (2,),
    "parallel.microbatches": (2, 4),
    "parallel.etp": (1,),
    # Leave to refuse nothing, and what balanced experts are without.
    "parallel.uneven_stages": (True,),
    "megatron.moe_force_load_balancing": (True,),
    # Others' names of the same arithmetic.
    "training.optimizer": ("adam",),
    "model.activation": ("silu", "gelu", "relu", "relu2"),
    "model.streams": (1,),
    "model.gated": (True,),
}
TEXTS = {
    "bytes": ("1 KiB", "1 MiB", "100 MiB", "1 GiB"),
    "duration": ("1 us", "1 ms", "1 s"),
}
WHOLE = (0, 1, 2, 3, 4, 8, 16, 64, 256, 1000)
#: So many values of a key that a warning names are enough.
NAMED = 3
SHARES = (0.1, 0.5, 0.9, 1.5, 2.0, 10.0)


def _values(entry: Field[Any], hint: Any) -> list[Any]:
    """Values of a key's type, within its limits."""
    meta: Mapping[str, Any] = entry.metadata
    if meta["names"]:
        return [*catalog.names(meta["names"])]
    if meta["unit"]:
        return [*TEXTS.get(meta["unit"], ("5 GB/s",))]
    return _typed(hint, float(meta["low"] or 0))


def _typed(hint: Any, low: float) -> list[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return [*args]
    if origin is typing.Union:
        return [value for part in args for value in _typed(part, low)]
    if origin is tuple:
        one = _typed(args[0], low)
        return [[value] for value in one] + [[value, value] for value in one]
    if hint is bool:
        return [True, False]
    if hint is Ctas:
        return [{"max_ctas": 1}, {"min_ctas": 32}]
    numbers: dict[Any, tuple[Any, ...]] = {int: WHOLE, float: SHARES}
    return [value for value in numbers.get(hint, ()) if value >= low]


@cache
def _predicted(text: str) -> tuple[str, str]:
    """Figures of a prediction, and its warnings."""
    result = predict(parse_scenario(json.loads(text), "x")).to_dict()
    del result["scenario"]
    warnings = " ".join(result.pop("warnings"))
    return json.dumps(result, sort_keys=True), warnings


def _tries(base: str, section: str, entry: Field[Any]) -> Iterator[tuple[Any, str]]:
    """Values of a key that are no mistakes, and what comes of each: "moves", "named" or "silent"."""
    plain, _ = _predicted(json.dumps(BASES[base]))
    key = f"{section}.{entry.name}"
    for value in _values(entry, type_hints(SECTIONS[section])[entry.name]):
        own = BASES[base].get(section, {}).get(entry.name)
        if value in AS_IT_IS.get(key, ()) or value in (entry.default, own, [*()]):
            continue
        if section == "model" and not value:
            continue  # a part that a model does not have
        tables = copy.deepcopy(BASES[base])
        tables.setdefault(section, {})[entry.name] = value
        try:
            figures, warnings = _predicted(json.dumps(tables))
        except InputError:
            continue
        named = key in warnings
        yield value, "moves" if figures != plain else "named" if named else "silent"


def _silent(base: str, section: str) -> list[str]:
    """Keys of a section that move nothing and are not named."""
    found = []
    for entry in fields(SECTIONS[section]):
        silent, named = list[Any](), 0
        for value, outcome in _tries(base, section, entry):
            if outcome == "moves":
                silent = []
                break
            if outcome == "silent":
                silent.append(value)
            named += outcome == "named"
            if named == NAMED and not silent:
                break
        if silent:
            found.append(f"{section}.{entry.name} = {silent}")
    return found


@pytest.mark.daily
@pytest.mark.parametrize("section", QUICK)
def test_no_key_is_dropped_in_silence(section: str) -> None:
    """Of PyTorch's DDP on one host."""
    assert not _silent("ddp", section)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["ddp", "stages", "experts"])
@pytest.mark.parametrize("section", OF_A_STEP)
def test_no_key_of_a_step_is_dropped_in_silence(section: str, base: str) -> None:
    """Of PyTorch's and of Megatron's steps."""
    assert not _silent(base, section)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize("base", ["ddp", "two hosts", "one GPU"])
@pytest.mark.parametrize("section", LONG)
def test_no_key_of_longer_sections_is_dropped_in_silence(
    section: str, base: str
) -> None:
    """Of sharded data parallelism over hosts, and of one GPU, too."""
    assert not _silent(base, section)
