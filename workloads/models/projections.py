"""Which projections a model's layers have: where adapters can be."""

from __future__ import annotations

from typing import Protocol

from prestep.workloads.job.adapter import Adapter, Target, targets_of
from prestep.workloads.models import hybrid


class Projected(Protocol):
    """What decides on a model's projections (`prestep.workloads.models.model.ModelSpec` is one)."""

    @property
    def latent(self) -> bool: ...
    @property
    def q_lora_rank(self) -> int: ...
    @property
    def layer_pattern(self) -> str: ...
    @property
    def mtp_layers(self) -> int: ...


def projections_of(model: Projected) -> tuple[Target, ...]:
    """Those of a transformer's layers, in a layer's order."""
    pattern = model.layer_pattern
    # Layers of multi-token prediction have attention, whatever the others have.
    attends = not pattern or hybrid.ATTENTION in pattern or model.mtp_layers > 0
    scans = bool(set(pattern) & set(hybrid.SCANS))
    wide = {hybrid.FEED_FORWARD, hybrid.EXPERTS} & set(pattern)
    feeds = not pattern or bool(wide) or model.mtp_layers > 0
    return (
        *(_attention(model) if attends else ()),
        *(("in_proj", "out_proj") if scans else ()),
        *(("fc1", "fc2") if feeds else ()),
    )


def _attention(model: Projected) -> tuple[Target, ...]:
    if not model.latent:
        return ("qkv", "proj")
    down: tuple[Target, ...] = ("q_down",) if model.q_lora_rank else ()
    return (*down, "q_up", "kv_down", "kv_up", "proj")


def passed_over(adapter: Adapter, model: Projected) -> list[str]:
    """Targets that name no projection of the model, as they were written."""
    here = set(projections_of(model))
    return [name for name in adapter.targets if not here & set(targets_of((name,))[0])]
