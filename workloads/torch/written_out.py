"""Layers as Hugging Face's transformers writes them, operator by operator: norms, rotations, heads and the loss.

Sources: `models/llama/modeling_llama.py` (LlamaRMSNorm, LlamaAttention, apply_rotary_pos_emb), `loss/loss_utils.py`
(ForCausalLMLoss). Held against a trace of an H100 (lab/cases/peft) and against captures of the same modules.
"""

from __future__ import annotations

from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import Tape, Tensor

WIDE = 4  # bytes of an element in fp32


def rms_norm(t: Tape, x: Tensor, weight: Tensor, centred: bool = False) -> Tensor:
    """LlamaRMSNorm: keeps its input in fp32, a statistic a row and, for the weight's gradient, the normed input.

    ``centred``: scaled by one plus the weight in fp32, and narrowed after that (Gemma3RMSNorm).
    """
    wide = widened(t, x)
    variance = aten.mean(t, aten.square(t, wide))
    scale = aten.rsqrt(t, aten.add_number(t, variance, 1e-6))
    del variance
    if centred:
        normed = aten.mul(t, wide, scale)
        del wide, scale
        factor = aten.add_number(t, widened(t, weight), 1.0)
        y = aten.mul(t, normed, factor)
        return aten.to(t, y, x.itemsize, layout="torch.strided")  # type_as
    normed = aten.to(t, aten.mul(t, wide, scale), x.itemsize)
    del wide, scale
    return aten.mul(t, weight, normed)


def rope(t: Tape, x: Tensor, heads_behind: bool = False) -> Tensor:
    """apply_rotary_pos_emb on (batch, heads, seq, head_dim): x * cos + rotate_half(x) * sin; keeps nothing of x.

    ``heads_behind``: on (batch, seq, heads, head_dim).
    """
    shape, width = (1, 1, *x.shape[-2:]), x.shape[-1]
    if heads_behind:
        shape = (1, x.shape[1], 1, width)
    cosines, sines = (t.table(n, shape, x.itemsize) for n in ("cosines", "sines"))
    plain = aten.mul(t, x, cosines)
    first, second = aten.part(t, x, 0, width // 2), aten.part(t, x, width // 2)
    turned = aten.cat(t, [aten.neg(t, second), first])
    del first, second
    return aten.add(t, plain, aten.mul(t, turned, sines))


def widened(t: Tape, x: Tensor) -> Tensor:
    """``x`` in fp32; its gradient is narrowed again."""
    return aten.to(t, x, WIDE)


def cross_entropy(t: Tape, logits: Tensor) -> Tensor:
    """ForCausalLMLoss: logits in fp32, then their cross entropy; keeps the log-probabilities in fp32."""
    return aten.cross_entropy(t, widened(t, logits))
