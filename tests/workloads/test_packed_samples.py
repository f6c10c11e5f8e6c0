"""Laws of samples that hold several documents, in PyTorch's own modules, eager and compiled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.frameworks import framework
from prestep.workloads.lowered import Lowered, Site
from prestep.workloads.models.model import load_model
from tests.workloads.small import SEQ, ops, scenario

FLASH = {"attention": "flash2"}


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
    """Attention's work falls with their length; as many kernels run, and no other one changes."""
    whole = lowered(name, None, recompute=recompute)
    parts = lowered(name, SEQ // 4, recompute=recompute)
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


def test_attention_must_take_lengths() -> None:
    """PyTorch's own attention has no lengths of documents; parts of sequences do not hold whole ones."""
    with pytest.raises(InputError, match=r"training\.packed"):
        scenario(training={"packed": 32})
    with pytest.raises(InputError, match=r"parallel\.cp"):
        scenario(training={"packed": 32}, pytorch=FLASH, cp=2, data_parallel="fsdp")
