"""Laws of samples that hold several documents, in PyTorch's own modules, eager and compiled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain
from prestep.workloads.frameworks import framework
from prestep.workloads.lowered import Lowered, Site
from prestep.workloads.models.model import load_model
from tests.workloads.small import SEQ, TRANSFORMER, ops, scenario

FLASH = {"attention": "flash2"}
LATENT = {"kv_heads": 8, "kv_lora_rank": 64, "q_lora_rank": 96, "v_head_dim": 16}


def lowered(name: str, packed: int | None, **training: Any) -> Lowered:
    said = {"framework": name, "packed": packed, **training}
    said = {key: value for key, value in said.items() if value is not None}
    s = scenario(training=said, pytorch=FLASH)
    return framework(name).lower(s, load_model(s.model), Site(1.0))


def attention(low: Lowered) -> float:
    """Floating-point operations of attention's kernels."""
    kernels = [op.kernel for op in ops(low) if isinstance(op.kernel, Kernel)]
    return sum(each.flops for each in kernels if "attention" in each.kind)


@pytest.mark.parametrize("name", ("pytorch-eager", "pytorch-compiled"))
@pytest.mark.parametrize("recompute", ("none", "full"))
def test_documents_see_themselves_alone(name: str, recompute: str) -> None:
    """Attention's work falls with their length; as many kernels run, and no other one changes.

    Tokens lie in documents that are twice as long as documents are in the mean.
    """
    whole = lowered(name, None, recompute=recompute)
    parts = lowered(name, SEQ // 8, recompute=recompute)
    assert attention(parts) == attention(whole) / 4
    assert Counter(op.name for op in ops(parts)) == Counter(
        op.name for op in ops(whole)
    )
    others = [
        [op.kernel for op in ops(low) if "attention" not in op.name]
        for low in (whole, parts)
    ]
    assert others[0] == others[1]


def test_a_document_as_long_as_a_sample_changes_nothing() -> None:
    whole, same = (lowered("pytorch-eager", packed) for packed in (None, SEQ))
    assert [op.kernel for op in ops(whole)] == [op.kernel for op in ops(same)]


@pytest.mark.parametrize("model", ({}, LATENT))
def test_megatrons_attention_sees_documents(model: dict[str, int]) -> None:
    """Plain heads and latent ones: as many kernels as of whole samples, each of four times as many short ones."""
    shapes = []
    for packed in (None, SEQ // 8):
        training = {"framework": "megatron", "packed": packed}
        s = scenario(TRANSFORMER | model, {k: v for k, v in training.items() if v})
        low = framework("megatron").lower(s, load_model(s.model), Site(1.0))
        chains = (each for each in low.graph.kernels if isinstance(each, Chain))
        shapes.append(
            [
                (kernel.kind, *kernel.shape)
                for chain in chains
                for kernel in chain.graph.kernels
                if isinstance(kernel, Kernel) and "attention" in kernel.kind
            ]
        )
    whole, parts = shapes
    assert whole
    assert parts == [
        (kind, 4 * samples, *heads, queries // 4, keys // 4, width)
        for kind, samples, *heads, queries, keys, width in whole
    ]


def test_attention_must_take_lengths() -> None:
    """PyTorch's own attention has no lengths of documents; parts of sequences do not hold whole ones."""
    with pytest.raises(InputError, match=r"training\.packed"):
        scenario(training={"packed": 32})
    with pytest.raises(InputError, match=r"parallel\.cp"):
        scenario(training={"packed": 32}, pytorch=FLASH, cp=2, data_parallel="fsdp")
