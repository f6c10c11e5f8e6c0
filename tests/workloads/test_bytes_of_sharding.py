"""Law: what a rank's collectives carry in a step is the bytes of parameters and gradients in the types they are sent in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.sample import together
from tests.workloads.test_model_states import (
    BF16,
    DEALT,
    FP32,
    HIDDEN,
    LAYERS,
    PARAMETERS,
    VOCAB,
    WAYS,
    lowered,
)

EMBEDDING = VOCAB * HIDDEN
OUTSIDE = 2 * EMBEDDING + HIDDEN  # with the head and the last norm
LAYER = (PARAMETERS - OUTSIDE) // LAYERS
EVERY = [*(row[:3] for row in WAYS), *((*each, {}) for each in sorted(DEALT))]
Sections = Mapping[str, Any]


def gathered(framework: str, way: str, microbatches: int) -> float:
    """Parameters that are gathered in a step, once or before each pass of a microbatch.

    FSDP frees layers behind their forward pass, and what is outside of them stays until its backward pass (ZeRO 2: all
    does). Automodel leaves the last layer, which is needed again at once. Megatron's frees layers alone, and gathers
    the rest once a step. DeepSpeed's stage 3 frees nothing that it needs within 10^9 parameters: in a model as small
    as this all is gathered once a microbatch, but the embedding, behind whose backward pass no hook is called.
    """
    layers = LAYERS * LAYER
    if way in ("ddp", "ddp-no-overlap"):
        return 0
    if way == "zero1" or (way == "zero2" and framework in DEEPSPEED):
        return PARAMETERS
    if way == "zero2":
        return microbatches * PARAMETERS
    if framework == "megatron":
        return microbatches * 2 * layers + OUTSIDE
    if framework in DEEPSPEED:
        return PARAMETERS + (microbatches - 1) * (PARAMETERS - EMBEDDING)
    kept = LAYER if framework == "automodel" else 0
    return microbatches * (2 * layers - kept + OUTSIDE)


#: DeepSpeed's stage 2, which Megatron's engine stands in for.
DEEPSPEED = ("deepspeed", "deepspeed-eager", "megatron")
PYTORCH = ("pytorch-eager", "pytorch-compiled", "cuda-graph", "automodel")


def reduced(
    framework: str, way: str, sections: Sections, microbatches: int
) -> tuple[str, float]:
    """The operation that reduces gradients, and its bytes: those of replicas in the type that they are stored in."""
    choices = sections.get("pytorch", {})
    main = BF16 if "main_grads" in sections.get("megatron", {}) else FP32
    sharded = way in ("fsdp", "zero2", "zero3")
    if framework in PYTORCH:
        key = "reduce_dtype" if sharded else "master_weights"
        wide = FP32 if choices.get(key) in ("fp32", True) else BF16
        return "reduce_scatter" if sharded else "all_reduce", wide * PARAMETERS
    times = microbatches if sharded else 1
    if framework == "deepspeed-eager" or (framework == "deepspeed" and sharded):
        op = "reduce_scatter" if way in ("fsdp", "zero3") else "all_reduce"
        return op, times * BF16 * PARAMETERS
    wide = BF16 if way == "zero2" else main
    scatters = framework == "megatron" and not way.startswith("ddp")
    return "reduce_scatter" if scatters else "all_reduce", times * wide * PARAMETERS


def expected(
    framework: str, way: str, sections: Sections, microbatches: int
) -> dict[str, float]:
    """Bytes by operation; shards are summed over their copies once a step."""
    op, size = reduced(framework, way, sections, microbatches)
    sent = {op: size}
    if shards := sections.get("parallel", {}).get("fsdp_shards"):
        times = microbatches if framework == "megatron" else 1
        sent["all_reduce"] = size / shards / times
    brought = "broadcast" if way == "zero1" and framework in PYTORCH else "all_gather"
    sent[brought] = BF16 * gathered(framework, way, microbatches)
    return {op: size for op, size in sent.items() if size}


@pytest.mark.parametrize("microbatches", [1, 3])
@together(("framework", "way", "sections"), EVERY)
def test_collectives_carry_the_bytes_of_what_is_sharded(
    framework: str, way: str, sections: Sections, microbatches: int
) -> None:
    """Each way of every framework: gathers by what is freed, reductions by their type, all of each microbatch or once."""
    graph = lowered(framework, way, sections, microbatches).graph
    program = graph.programs[0]
    sent: Counter[str] = Counter()
    for parts in program.parts:
        for part in parts:
            sent[graph.comms[part].op] += graph.comms[part].size
    # Norms and scales of the optimizer are numbers.
    large = {op: size for op, size in sent.items() if size > HIDDEN}
    assert large == pytest.approx(
        expected(framework, way, sections, microbatches), rel=1e-3
    )
