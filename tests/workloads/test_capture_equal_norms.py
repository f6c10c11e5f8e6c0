"""Blocks whose norms, biases, positions, keys or logits differ ask for the operations of their programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.workloads.test_capture_equal import (
    PROGRAM,
    TRANSFORMERS,
    plain,
)
from tests.workloads.test_capture_equal_blocks import Changes, agree, changed, model

pytestmark = pytest.mark.slow

OUTPUT = "        self.o, self.between = linear(HEADS * WIDTH, HIDDEN), "
NETWORK = "self.up, self.down = linear(HIDDEN, INNER), linear(INNER, HIDDEN)\n"
ATTENDED = "x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))"
FED = "return x + self.down(F.silu(self.gate(h)) * self.up(h) if GATED else F.gelu(self.up(h)))"


def normed(line: str, norm: str) -> tuple[str, str]:
    """A sum of the residual and a part, behind which a norm stands."""
    residual, part = line.split(" + ", 1)
    return line, f"{residual} + self.{norm}({part})"


#: OLMo 2's norms, and Gemma's of both sides.
BEHIND: Changes = (
    ("        self.before = NORM(HIDDEN)\n", ""),
    (
        OUTPUT + "NORM(HIDDEN)",
        "        self.o, self.before = linear(HEADS * WIDTH, HIDDEN), NORM(HIDDEN)",
    ),
    (NETWORK, NETWORK + "        self.between = NORM(HIDDEN)\n"),
    ("        h = self.before(x)", "        h = x"),
    ("        h = self.between(x)", "        h = x"),
    normed(ATTENDED, "before"),
    normed(FED, "between"),
)
AROUND: Changes = (
    (
        OUTPUT + "NORM(HIDDEN)",
        "        self.o, self.after = linear(HEADS * WIDTH, HIDDEN), NORM(HIDDEN)\n"
        "        self.between = NORM(HIDDEN)",
    ),
    (NETWORK, NETWORK + "        self.last = NORM(HIDDEN)\n"),
    normed(ATTENDED, "after"),
    normed(FED, "last"),
)
#: OLMo 2's norms of all queries' heads at once, and of all keys'.
WIDE: Changes = (
    (
        OUTPUT + "NORM(HIDDEN)",
        "        self.o, self.of_q = linear(HEADS * WIDTH, HIDDEN), NORM(HEADS * WIDTH)\n"
        "        self.of_k, self.between = NORM(GROUPS * WIDTH), NORM(HIDDEN)",
    ),
    (
        "(p(h).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in (self.q, self.k, self.v))",
        "(n(p(h)).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for n, p in"
        " ((self.of_q, self.q), (self.of_k, self.k), (lambda y: y, self.v)))",
    ),
)
CENTRED: Changes = (
    (
        "class Layer(nn.Module):",
        "from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm\n"
        "def Scaled():\n"
        "    return Gemma3RMSNorm(HIDDEN)\n"
        "class Layer(nn.Module):",
    ),
)
#: Qwen 3's norms of heads in transformers.
HEADS_NORMED: Changes = (
    ("def __init__(self):", "def __init__(self, width=256):"),
    ("torch.ones(HIDDEN)", "torch.ones(width)"),
    (
        OUTPUT + "Scaled()",
        "        self.o, self.of_q = linear(HEADS * WIDTH, HIDDEN), Scaled(WIDTH)\n"
        "        self.of_k, self.between = Scaled(WIDTH), Scaled()",
    ),
    (
        "        q, k = (x * cosines",
        "        q, k = self.of_q(q), self.of_k(k)\n        q, k = (x * cosines",
    ),
)
#: Falcon's attention with one key head, between the norms of another decoder.
FALCON: Changes = (
    (
        "class Layer(nn.Module):",
        "from transformers.models.falcon.modeling_falcon import FalconAttention, FalconConfig\n"
        "CONFIG = FalconConfig(hidden_size=HIDDEN, num_attention_heads=HEADS, multi_query=True, bias=False)\n"
        'CONFIG._attn_implementation = "sdpa"\n'
        "class Layer(nn.Module):",
    ),
    (
        "        self.q, self.k, self.v = (linear(HIDDEN, n * WIDTH) for n in (HEADS, GROUPS, GROUPS))\n",
        "",
    ),
    (
        "self.o, self.between = linear(HEADS * WIDTH, HIDDEN), Scaled()",
        "self.attention, self.between = FalconAttention(CONFIG, 0), Scaled()",
    ),
    (
        "        q, k, v = (p(h).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in (self.q, self.k, self.v))\n",
        "",
    ),
    ("        q, k = (x * cosines + turned(x) * sines for x in (q, k))\n", ""),
    (
        "        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)\n",
        "        tables = (cosines[0], sines[0])\n",
    ),
    (
        "self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))",
        "self.attention(h, alibi=None, attention_mask=None, position_embeddings=tables)[0]",
    ),
)
CAPPED: Changes = (
    (
        "self.head(self.last(x)).view",
        "(torch.tanh(self.head(self.last(x)) / 30.0) * 30.0).view",
    ),
)
UNPLACED: Changes = (
    ("        if ROTARY:\n            q, k", "        if False:\n            q, k"),
)
BIASED: Changes = (("(linear(HIDDEN, n * WIDTH)", "(nn.Linear(HIDDEN, n * WIDTH)"),)

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "norms behind": (changed(plain(), BEHIND), model(norms="behind")),
    "norms around": (changed(plain(), AROUND), model(norms="around")),
    "norms of all heads": (
        changed(plain(), WIDE),
        model(qk_norm=True, qk_norm_wide=True),
    ),
    "centred norms": (
        changed(PROGRAM, CENTRED),
        TRANSFORMERS | model(norm="rms-centred"),
    ),
    "norms of heads in transformers": (
        changed(PROGRAM, HEADS_NORMED),
        TRANSFORMERS | model(qk_norm=True),
    ),
    "layer norms without bias": (
        plain(NORM="(lambda n: nn.LayerNorm(n, bias=False))"),
        model(norm="layer", norm_bias=False),
    ),
    "one key head": (
        changed(PROGRAM, FALCON),
        {"pytorch": {"modules": "transformers", "joined_qkv": True}}
        | model(kv_heads=1),
    ),
    "capped logits": (changed(plain(), CAPPED), model(capped_logits=True)),
    "no positions": (changed(plain(), UNPLACED), model(positions="none")),
    "biases of queries, keys and values": (
        changed(plain(), BIASED),
        model(qkv_bias=True),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_block_asks_for_the_operations_of_its_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, backward and optimizer."""
    agree(*KINDS[name], tmp_path, monkeypatch)
