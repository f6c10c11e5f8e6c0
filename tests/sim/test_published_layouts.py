"""Layouts that two technical reports print, whose runs are known to have fitted.

Llama 3 405B (arXiv 2407.21783, 3.3.2): 16,384 H100 of 80 GB, TP 8, PP 16, FSDP that shards gradients and optimizer
states and keeps parameters gathered after the forward pass, a layer less in the first and in the last stage, 8,192
tokens, and no activation checkpointing. DeepSeek-V3 (arXiv 2412.19437, 3.2 and 3.3): 2,048 H800, PP 16 by DualPipe,
EP 64, ZeRO-1, fp8; norms, the up-projections of latent attention and SwiGLU outputs run again in backward, Adam's
moments are in bf16.
"""

from __future__ import annotations

from typing import Any

import pytest

from lab.bench.large import DEEPSEEK, LLAMA
from prestep.sim.analysis.memory import outside, peaks
from prestep.sim.predict import plan
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import room

LLAMA_AS_PUBLISHED = {
    "parallel": {"data_parallel": "fsdp", "uneven_stages": False},
    "megatron": {"pipeline_layout": "Et*3|(t*4|)*30t*3L"},
}
DEEPSEEK_AS_PUBLISHED = {
    "megatron": {
        "recompute_modules": ["layernorm", "mla_up_proj", "moe_act"],
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "bf16",
        "exp_avg_sq_dtype": "bf16",
    }
}


def scenario(tables: dict[str, Any], changes: dict[str, Any] | None = None) -> Scenario:
    """The scenario with what is published of it."""
    changes = changes or {}
    merged = {name: {**tables[name], **changes.get(name, {})} for name in tables}
    return parse_scenario(merged, "published")


def most(step: Any) -> float:
    """Bytes that the fullest rank needs, of its allocator and beside it."""
    alive, beside = peaks(step.lowered), outside(step)
    return max(alive[rank].total + sum(beside[rank].values()) for rank in alive)


@pytest.mark.parametrize(
    ("tables", "published"),
    [(LLAMA, LLAMA_AS_PUBLISHED), (DEEPSEEK, DEEPSEEK_AS_PUBLISHED)],
    ids=["llama3-405b", "deepseek-v3"],
)
def test_a_published_layout_fits(
    tables: dict[str, Any], published: dict[str, Any]
) -> None:
    """With what the report says of recomputation, stages and shards."""
    step = plan(scenario(tables, published))
    assert most(step) <= step.gpu.memory


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables", [LLAMA, DEEPSEEK], ids=["llama3-405b", "deepseek-v3"]
)
def test_without_a_word_about_recomputation_the_verdict_depends_on_it(
    tables: dict[str, Any],
) -> None:
    """Too large by the defaults, and small enough with recomputation: both figures are in the verdict."""
    asked = scenario(tables)
    step = plan(asked)
    again = room.recomputed(asked, step, outside(step))
    assert most(step) > step.gpu.memory
    assert again is not None and again.fits
    assert again.ways[again.way] == again.needed <= step.gpu.memory
    assert set(again.ways) == {"selective", "full"}
    assert again.ways["selective"] > step.gpu.memory
