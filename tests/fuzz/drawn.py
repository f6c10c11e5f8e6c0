"""Random scenarios of all keys that the sections have: drawn from their fields, then mended until they are valid."""

from __future__ import annotations

import random
import typing
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, Literal

from prestep.sim.errors import InputError
from prestep.sim.predict import plan
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import SECTIONS, Scenario
from prestep.sim.strict import type_hints
from prestep.sim.tools import catalog

#: Clusters, and whether their family scales to several hosts.
CLUSTERS = {
    "dgx-h100": False,
    "h200-host-4": False,
    "mi300x": False,
    "mi355x": False,
    "dgx-b200": False,
    "rail-h100": True,
    "rail-mi300x": True,
    "rail-mi325x": True,
    "roce-a100": True,
    "gb200-nvl72": False,
    "h200-leafspine-2x2": False,
}
GPUS = {"h200-host-4": 4, "h200-leafspine-2x2": 4}
FRAMEWORKS = (
    "megatron",
    "megatron",
    "pytorch-eager",
    "pytorch-eager",
    "automodel",
    "deepspeed",
    "pytorch-compiled",
    "cuda-graph",
)
#: Sections whose keys are drawn, and how many of each at most.
DRAWN = {
    "training": 4,
    "parallel": 4,
    "megatron": 5,
    "pytorch": 4,
    "nccl": 2,
    "model": 4,
}
#: Keys that the layout decides, that name files, or that want one.
LEFT_OUT = {
    *("parallel.dp", "parallel.tp", "parallel.pp", "parallel.cp", "parallel.order"),
    *("training.framework", "training.warmup", "training.global_batch"),
    *("model.name", "model.file", "model.kind", "model.sizes", "model.layers"),
    *("model.image_size", "model.classes", "model.hidden", "nccl.version"),
    *("nccl.tensors", "nccl.backend", "nccl.hostid", "training.microbatches"),
    *("training.grad_accumulation", "parallel.microbatches", "training.seq_len"),
}
TEXTS = {"bytes": ("1 MiB", "25 MiB"), "duration": ("1 us", "1 ms")}
HYBRID = {
    "mamba_heads": 8,
    "mamba_state": 64,
    "mamba_groups": 4,
    "linear_key_heads": 4,
    "linear_value_heads": 8,
    "linear_key_dim": 64,
    "linear_value_dim": 64,
}
EXPERTS = {"experts": 8, "experts_per_token": 2, "moe_ffn": 256}
ROUTINGS = ("zipf", "zipf 0.5", "gini 0.2", "qwen3-moe", [8, 7, 6, 5, 4, 3, 2, 1])
TRIES = 25
#: Ways of sharding: which of nine ways is drawn by itself is one of 30 keys, and most frameworks refuse most of them.
SHARDED = ("zero1", "zero1", "zero2", "zero3", "fsdp", "ddp")


def drawn(seed: int) -> tuple[dict[str, Any], Scenario] | None:
    """Tables of a scenario that can be planned, and the scenario; None where this seed gives none."""
    chance = random.Random(seed)
    return mended(_tables(chance), chance)


def mended(
    tables: dict[str, Any], chance: random.Random
) -> tuple[dict[str, Any], Scenario] | None:
    """The tables without keys that make them wrong, and the scenario that can be planned; None if nothing helps."""
    for _ in range(TRIES):
        try:
            scenario = parse_scenario(tables, "drawn")
            plan(scenario)
        except InputError as error:
            if not _less(tables, error, chance):
                return None
        else:
            return tables, scenario
    return None


def _less(tables: dict[str, Any], error: InputError, chance: random.Random) -> bool:
    """Leaves out the keys that mistakes are about; whether there were any."""
    done = False
    for mistake in error.mistakes:
        for name in mistake.key.replace(",", " ").split():
            section, _, key = name.partition(".")
            table = tables.get(section)
            if isinstance(table, dict) and key.partition(".")[0] in table:
                del table[key.partition(".")[0]]
                done = True
    if done:
        return True
    for section in chance.sample(sorted(DRAWN), len(DRAWN)):
        spare = [k for k in tables.get(section, {}) if f"{section}.{k}" not in KEPT]
        if spare:
            del tables[section][chance.choice(spare)]
            return True
    return False


KEPT = {
    *(f"model.{key}" for key in ("kind", "layers", "layer_pattern", "hidden", "heads")),
    *("model.ffn", "model.vocab", "training.framework", "parallel.dp", "parallel.tp"),
    *("parallel.pp", "parallel.cp"),
}


def _tables(chance: random.Random) -> dict[str, Any]:
    """A layout and a model, and some keys of every section."""
    framework, model = chance.choice(FRAMEWORKS), _model(chance)
    if model["kind"] == "mlp":
        framework = chance.choice(("pytorch-eager", "cuda-graph"))
    tables: dict[str, Any] = {
        "model": model,
        "training": {
            "framework": framework,
            "seq_len": chance.choice((256, 512, 2048, 8192)),
            "micro_batch": chance.choice((1, 1, 2)),
        },
        **_spread(chance, framework),
    }
    if tables["parallel"]["pp"] > 1:
        tables["training"]["microbatches"] = chance.choice((4, 8, 16))
    elif chance.random() < 0.4:
        tables["training"]["grad_accumulation"] = chance.choice((2, 3, 5))
    for section, most in DRAWN.items():
        if section == "megatron" and framework in ("pytorch-eager", "cuda-graph"):
            continue
        if section == "pytorch" and framework == "megatron":
            continue
        for entry in _some(chance, section, most):
            tables.setdefault(section, {})[entry.name] = value(
                chance, entry, type_hints(SECTIONS[section])[entry.name]
            )
    _further(chance, tables, framework)
    return tables


def _further(chance: random.Random, tables: dict[str, Any], framework: str) -> None:
    """Features that need several keys: uneven experts, adapters, packs, faults, other links, ways of sharding."""
    layout, training = tables["parallel"], tables["training"]
    if layout["dp"] > 1 and chance.random() < 0.7:
        layout["data_parallel"] = chance.choice(SHARDED)
        tables.setdefault("megatron", {})["overlap_param_gather"] = (
            chance.random() < 0.5
        )
    if "experts" in tables["model"]:
        layout["ep"] = chance.choice((1, 2, 4, 8))
        if framework in ("megatron", "automodel") and chance.random() < 0.5:
            layout["imbalance"] = chance.choice(ROUTINGS)
        layout["sequence_parallel"] = layout["tp"] > 1
        if chance.random() < 0.3:
            layout["etp"] = 1
    if framework == "megatron" and chance.random() < 0.25:
        tables["adapter"] = {"kind": "lora", "rank": chance.choice((4, 16))} | {
            key: chance.choice(choices)
            for key, choices in (
                ("dropout", (0.1,)),
                ("targets", (["qkv"], ["fc1", "fc2"], ["all"])),
                ("all_to_all", (False,)),
                ("fp8_weights", (True,)),
            )
            if chance.random() < 0.4
        }
    if framework == "megatron" and chance.random() < 0.2:
        training["packed"] = chance.choice((64, 200, training["seq_len"]))
    if chance.random() < 0.3:
        training["precision"] = chance.choice([*catalog.names("precisions")])
    if chance.random() < 0.3:
        training["optimizer"] = chance.choice([*catalog.names("optimizers")])
    if chance.random() < 0.15:
        tables["faults"] = {"slow_rank": 0, "slow_factor": chance.choice((1.2, 2.0))}
    if layout["pp"] > 1 and chance.random() < 0.7:
        layout["schedule"] = chance.choice([*catalog.names("schedules")])
        layout["vpp"] = chance.choice((1, 2, 2))


def _model(chance: random.Random) -> dict[str, Any]:
    """A small model: dense, with experts, with latent attention, a hybrid, or a perceptron."""
    kind = chance.choice(("dense", "dense", "experts", "hybrid", "hybrid", "mlp"))
    if kind == "mlp" and chance.random() < 0.5:
        return {"kind": "mlp", "sizes": [1024, 1024, 64]}
    model = {
        "kind": "transformer",
        "hidden": chance.choice((512, 1024, 4096)),
        "heads": chance.choice((8, 16)),
        "ffn": chance.choice((1024, 4096)),
        "vocab": chance.choice((1000, 32000)),
        "layers": chance.choice((4, 8, 7)),
    }
    if chance.random() < 0.5:
        model["kv_heads"] = chance.choice((2, 4, 8))
    if kind == "experts" or chance.random() < 0.15:
        model |= EXPERTS
        if chance.random() < 0.3:
            model["shared_experts"] = 1
        if chance.random() < 0.3:
            model["dense_layers"] = 1
    if kind == "hybrid":
        del model["layers"]
        letters = "MGK*-" + ("EE" if "experts" in model else "-")
        model["layer_pattern"] = "".join(
            chance.choice(letters) for _ in range(chance.choice((4, 8)))
        )
        model |= HYBRID
    return model


def _spread(chance: random.Random, framework: str) -> dict[str, Any]:
    """A cluster, and axes that fill as many GPUs as are used of it."""
    name = chance.choice([*CLUSTERS])
    hosts = chance.choice((1, 2, 4)) if CLUSTERS[name] else 1
    gpus = GPUS.get(name, 8 * hosts)
    parallel = dict.fromkeys(("dp", "tp", "pp", "cp"), 1)
    left = chance.choice([n for n in (1, 2, 4, 8, 16, 32) if n <= gpus])
    cluster: dict[str, Any] = {"name": name, "gpus": left}
    if CLUSTERS[name]:
        cluster["hosts"] = max(hosts, 1)
    while left > 1:
        parallel[chance.choice(("dp", "dp", "tp", "pp", "cp"))] *= 2
        left //= 2
    return {"cluster": cluster, "parallel": parallel}


def _some(chance: random.Random, section: str, most: int) -> list[Field[Any]]:
    free = [
        entry
        for entry in fields(SECTIONS[section])
        if f"{section}.{entry.name}" not in LEFT_OUT
    ]
    return chance.sample(free, chance.randrange(most + 1))


def value(chance: random.Random, entry: Field[Any], hint: Any) -> Any:
    """A value of the key's type, within its limits."""
    meta: Mapping[str, Any] = entry.metadata
    if meta["names"]:
        return chance.choice([*catalog.names(meta["names"])])
    if meta["unit"]:
        return chance.choice(TEXTS.get(meta["unit"], ("50 GB/s",)))
    return _typed(chance, hint, meta)


def _typed(chance: random.Random, hint: Any, meta: Mapping[str, Any]) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return chance.choice(args)
    if origin is typing.Union:
        return _typed(chance, args[0], meta)
    if origin is tuple:
        return [_typed(chance, args[0], meta) for _ in range(chance.choice((1, 2)))]
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        return max(int(meta["low"] or 0), chance.choice((0, 1, 2, 3, 4, 8, 64, 256)))
    if hint is float:
        return chance.choice((0.1, 0.5, 1.0, 1.5))
    return {} if origin is dict else "x"
