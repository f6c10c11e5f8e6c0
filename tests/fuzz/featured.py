"""Random scenarios of features that need several keys at once: `tests.fuzz.drawn` hardly ever draws them together."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from prestep.sim.spec.sections import Scenario
from prestep.sim.tools import catalog
from tests.fuzz.drawn import EXPERTS, HYBRID, mended

Tables = dict[str, Any]
#: Bundled clusters of one shape each, and GPUs of a host.
CLUSTERS = {
    "dgx-a100": 8,
    "dgx-b300": 8,
    "dgx-2": 16,
    "gb200-nvl72": 8,
    "gb300-nvl72": 8,
    "gb200-nvl4": 4,
    "gh200-quad": 4,
    "l40s-host": 8,
    "mi300x": 8,
    "mi325x": 8,
    "rail-mi355x": 8,
    "rail-h200": 8,
    "rail-h100-500w": 8,
    "roce-h100": 8,
    "dgx-h100-superpod": 8,
    "aws-p5": 8,
    "azure-nd-h200-v5": 8,
    "h200-leafspine-2x2": 4,
    "h200-host-4": 4,
    "dgx-h100": 8,
}
GPUS = (1, 2, 4, 8, 8, 16)
#: Framework, what is on the host, and ways of sharding with which it is.
OFFLOADED = (
    ("deepspeed", "optimizer", ("zero1", "zero2", "zero3")),
    ("deepspeed-eager", "optimizer", ("zero1", "zero2", "zero3")),
    ("megatron", "optimizer", ("zero1",)),
    ("pytorch-eager", "parameters", ("fsdp",)),
    ("automodel", "parameters", ("fsdp",)),
)
SLOW_PARTS = (
    {"gpu[0].flops": "0.7x"},
    {"gpu[1].clock": "0.8x"},
    {"gpu[0].hbm_bandwidth": "0.5x", "gpu[1].flops": "2x"},
    {"gpu.power_limit": "0.8x"},
    {"nvlink.bandwidth": "0.3x", "nic.latency": "5 us"},
)


def featured(seed: int) -> tuple[Tables, Scenario] | None:
    """Tables of a scenario with one or two features, and the scenario; None where this seed gives none."""
    chance = random.Random(f"featured {seed}")
    tables = _plain(chance)
    for feature in chance.sample(FEATURES, chance.choice((1, 1, 2))):
        feature(chance, tables)
    if tables["parallel"]["pp"] > 1:
        tables["training"]["microbatches"] = tables["parallel"]["pp"] * chance.choice(
            (1, 2)
        )
    return mended(tables, chance)


def _plain(chance: random.Random) -> Tables:
    """A dense model on a cluster, with axes that fill its GPUs."""
    parallel = dict.fromkeys(("dp", "tp", "pp", "cp"), 1)
    return {
        "model": {
            "kind": "transformer",
            "hidden": chance.choice((512, 1024, 4096)),
            "heads": chance.choice((8, 16)),
            "kv_heads": 8,
            "ffn": chance.choice((1024, 4096, 14336)),
            "vocab": chance.choice((1000, 32000, 128256)),
            "layers": chance.choice((2, 4, 8)),
        },
        "training": {
            "framework": chance.choice(("megatron", "pytorch-eager", "automodel")),
            "seq_len": chance.choice((512, 2048, 4096)),
            "micro_batch": chance.choice((1, 2)),
        },
        "parallel": parallel,
        "cluster": _cluster(chance, parallel),
    }


def _cluster(chance: random.Random, parallel: dict[str, int]) -> Tables:
    name = chance.choice([*CLUSTERS])
    one = not name.startswith(("rail", "roce", "dgx-h100-superpod", "aws", "azure"))
    gpus = chance.choice([n for n in GPUS if n <= CLUSTERS[name] or not one])
    cluster: Tables = {"name": name, "gpus": gpus}
    if gpus > CLUSTERS[name]:
        cluster["hosts"] = gpus // CLUSTERS[name]
    while gpus > 1:
        parallel[chance.choice(("dp", "dp", "tp", "pp", "cp"))] *= 2
        gpus //= 2
    return cluster


def _exchange(chance: random.Random, tables: Tables) -> None:
    """Experts whose tokens DeepEP or HybridEP carries."""
    tables["model"] |= EXPERTS | {"moe_ffn": chance.choice((256, 1408))}
    tables["training"]["framework"] = chance.choice(("megatron", "automodel"))
    layout = tables["parallel"]
    layout["ep"] = chance.choice([n for n in (2, 4, 8) if n <= _spread(layout)] or [1])
    layout["sequence_parallel"] = layout["tp"] > 1
    layout["imbalance"] = chance.choice(("zipf", "gini 0.2", [3, 1, 1, 1, 1, 1, 1, 1]))
    tables["megatron"] = {
        "moe_token_dispatcher": chance.choice(("flex", "flex", "alltoall")),
        "moe_flex_dispatcher_backend": chance.choice(("deepep", "hybridep")),
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "overlap_moe_expert_parallel_comm": chance.random() < 0.3,
    }
    if chance.random() < 0.4:
        layout["etp"] = 1
    if chance.random() < 0.4:
        tables["megatron"]["moe_deepep_num_sms"] = chance.choice((8, 20, 64))


def _spread(layout: Tables) -> int:
    return int(layout["dp"] * layout["tp"] * layout["cp"])


def _compiled(chance: random.Random, tables: Tables) -> None:
    """Blocks that torch.compile makes."""
    tables["training"]["framework"] = chance.choice(("pytorch-compiled", "automodel"))
    tables["pytorch"] = {
        "compiled_layers": chance.random() < 0.7,
        "attention": chance.choice(("cudnn", "flash2")),
    }
    if chance.random() < 0.5:
        tables["training"]["recompute"] = "full"


def _adapter(chance: random.Random, tables: Tables) -> None:
    """An adapter on a frozen model, in any framework."""
    tables["training"]["framework"] = chance.choice(
        ("pytorch-eager", "automodel", "megatron")
    )
    tables["adapter"] = {"kind": "lora", "rank": chance.choice((8, 64))}
    for key, values in (
        ("base", ("nf4", "nf4-double", "bf16")),
        ("dropout", (0.05,)),
        ("experts", ("shared", "each", "frozen")),
        ("scaled", ("output", "inner")),
    ):
        if chance.random() < 0.4:
            tables["adapter"][key] = chance.choice(values)


def _offload(chance: random.Random, tables: Tables) -> None:
    """Parameters or the optimizer on the host."""
    framework, what, ways = chance.choice(OFFLOADED)
    tables["training"]["framework"] = framework
    tables["parallel"] |= {"offload": what, "data_parallel": chance.choice(ways)}
    if framework == "megatron" and chance.random() < 0.6:
        tables["parallel"]["offload_fraction"] = chance.choice((0.25, 0.5, 1.0))


def _sharded(chance: random.Random, tables: Tables) -> None:
    """FSDP2 under a pipeline, or in groups."""
    tables["training"]["framework"] = chance.choice(("pytorch-eager", "automodel"))
    layout, gpus = tables["parallel"], tables["cluster"]["gpus"]
    pp = min(gpus, 2)
    dp = max(1, gpus // pp)
    layout |= {"dp": dp, "tp": 1, "pp": pp, "cp": 1, "data_parallel": "fsdp"}
    layout["reshard_after_forward"] = chance.random() < 0.5
    if dp > 2 and chance.random() < 0.5:
        layout["fsdp_shards"] = 2
    if pp > 1:
        layout["schedule"] = chance.choice([*catalog.names("schedules")])
        layout["vpp"] = 1 if layout["schedule"] in ("1f1b", "gpipe") else 2


def _mixed(chance: random.Random, tables: Tables) -> None:
    """GPUs and links that are not all alike."""
    tables["cluster"]["set"] = chance.choice(SLOW_PARTS)


def _named(chance: random.Random, tables: Tables) -> None:
    """A bundled model, cut to a few layers where it has no pattern of its own."""
    names = [
        *("deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-2b", "llama4-scout"),
        *("bloom-176b", "phi-4", "kimi-k2", "glm-4.5-air", "mixtral-8x7b", "opt-1.3b"),
        *("qwen3-0.6b", "falcon3-7b", "nemotron4-15b", "deepseek-v2-lite", "llama3-8b"),
    ]
    tables["model"] = {"name": chance.choice(names), "layers": chance.choice((4, 8))}


def _hybrid(chance: random.Random, tables: Tables) -> None:
    """Layers of several kinds, in chunks of a pipeline too."""
    pattern = "".join(chance.choice("MGK*-") for _ in range(8))
    tables["model"].pop("layers", None)
    tables["model"] |= HYBRID | {"layer_pattern": pattern}


def _long(chance: random.Random, tables: Tables) -> None:
    """Long sequences over the context parallel axis."""
    layout = tables["parallel"]
    layout["cp"], layout["dp"] = layout["dp"] * layout["cp"], 1
    tables["training"]["seq_len"] = chance.choice((8192, 16384))
    if chance.random() < 0.5:
        layout["ring_degree"] = chance.choice((1, layout["cp"] // 2 or 1))


FEATURES: tuple[Callable[[random.Random, Tables], None], ...] = (
    *(_exchange, _compiled, _adapter, _offload, _sharded, _mixed),
    *(_named, _hybrid, _long),
)
