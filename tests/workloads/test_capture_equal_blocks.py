"""Further kinds of blocks, written by hand and captured, ask for equal operations. Needs PyTorch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.workloads.test_capture_equal import (
    DEEPSEEK,
    EXPERTS,
    GPT,
    MODEL,
    PROGRAM,
    TRANSFORMERS,
    latent,
    plain,
    precise,
    recorded,
    routed,
    written,
)

pytestmark = pytest.mark.slow

Changes = tuple[tuple[str, str], ...]
#: Lines of the plain decoder, and what stands there in a decoder of another kind.
TIED: Changes = (
    (
        "model = Decoder()",
        "model = Decoder(); model.head.weight = model.words.weight; model = model",
    ),
)
HEADS_NORMED: Changes = (
    (
        "        self.o, self.between = linear(HEADS * WIDTH, HIDDEN), NORM(HIDDEN)",
        "        self.o, self.of_q = linear(HEADS * WIDTH, HIDDEN), NORM(WIDTH)\n"
        "        self.of_k, self.between = NORM(WIDTH), NORM(HIDDEN)",
    ),
    (
        "        if ROTARY:",
        "        q, k = self.of_q(q), self.of_k(k)\n        if ROTARY:",
    ),
)
JOINED: Changes = (
    (
        "        self.q, self.k, self.v = (linear(HIDDEN, n * WIDTH) for n in (HEADS, GROUPS, GROUPS))",
        "        self.qkv = linear(HIDDEN, (HEADS + 2 * GROUPS) * WIDTH)",
    ),
    (
        "(p(h).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in (self.q, self.k, self.v))",
        "(p.view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in self.qkv(h).split("
        "[HEADS * WIDTH, GROUPS * WIDTH, GROUPS * WIDTH], -1))",
    ),
)
GATED: Changes = (
    ("for n in (HEADS, GROUPS, GROUPS))", "for n in (2 * HEADS, GROUPS, GROUPS))"),
    (
        "        q, k, v = (p(h)",
        "        own, share = self.q(h).split([HEADS * WIDTH, HEADS * WIDTH], -1)\n        q, k, v = (p(h)",
    ),
    ("for p in (self.q, self.k, self.v))", "for p in (lambda _: own, self.k, self.v))"),
    (".reshape(BATCH, LENGTH, -1))", ".reshape(BATCH, LENGTH, -1) * share.sigmoid())"),
)
ACTIVATIONS = {
    "relu": ("F.gelu(self.up(h))", "F.relu(self.up(h))"),
    "relu2": ("F.gelu(self.up(h))", "F.relu(self.up(h)).square()"),
    "silu": ("F.gelu(self.up(h))", "F.silu(self.up(h))"),
}
GELU_GATED: Changes = (("F.silu(self.gate(h))", "F.gelu(self.gate(h))"),)
WIDE_LOSS: Changes = (
    ("self.head(self.last(x)).view", "self.head(self.last(x)).float().view"),
)
NORMED: Changes = (
    (
        "        self.places =",
        "        self.entry = NORM(HIDDEN)\n        self.places =",
    ),
    (
        "        for layer in self.layers:",
        "        x = self.entry(x)\n        for layer in self.layers:",
    ),
)
CHECKPOINTED: Changes = (
    ("import torch\n", "import torch\nfrom torch.utils.checkpoint import checkpoint\n"),
    (
        "x = layer(x, self.cosines, self.sines)",
        "x = checkpoint(layer, x, self.cosines, self.sines, use_reentrant=False)",
    ),
)
TWICE: Changes = (
    (
        "    model(words).backward()",
        "    for _ in range(2):\n        model(words).backward()",
    ),
)
#: Attention and a feed-forward network beside each other, behind one norm (Falcon) or one each (GPT-NeoX).
NORMED_APART: Changes = (
    ("        x = x + self.o(", "        y = self.o("),
    (
        "return x + self.down(F.silu(self.gate(h)) * self.up(h) if GATED else F.gelu(self.up(h)))",
        "return x + (y + self.down(F.gelu(self.up(h))))",
    ),
)
BESIDE: Changes = (
    *NORMED_APART,
    (
        ", self.between = linear(HEADS * WIDTH, HIDDEN), NORM(HIDDEN)",
        " = linear(HEADS * WIDTH, HIDDEN)",
    ),
    ("        h = self.between(x)\n", ""),
)
#: A mask of 16 tokens, which scaled_dot_product_attention takes in place of a window.
WINDOW: Changes = (
    ("is_causal=True", "attn_mask=self.seen"),
    (
        "        self.before = NORM(HIDDEN)",
        "        self.before, far = NORM(HIDDEN), torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)\n"
        '        self.register_buffer("seen", ((far >= 0) & (far < 16)).view(1, 1, LENGTH, LENGTH))',
    ),
)
#: LFM2's mixer in place of attention.
CONVOLUTION: Changes = (
    (
        "class Layer(nn.Module):",
        "from transformers import Lfm2Config\n"
        "from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv\n"
        'CONFIG = Lfm2Config(hidden_size=HIDDEN, layer_types=["conv"], num_hidden_layers=1, conv_bias=False)\n'
        "class Layer(nn.Module):",
    ),
    (
        "        self.q, self.k, self.v = (linear(HIDDEN, n * WIDTH) for n in (HEADS, GROUPS, GROUPS))\n",
        "",
    ),
    (
        "self.o, self.between = linear(HEADS * WIDTH, HIDDEN)",
        "self.mixer, self.between = Lfm2ShortConv(CONFIG, 0)",
    ),
    (
        "        q, k, v = (p(h).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in (self.q, self.k, self.v))\n",
        "",
    ),
    (
        "        if ROTARY:\n            q, k = turned(q, *tables), turned(k, *tables)\n",
        "",
    ),
    (
        "        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])\n",
        "",
    ),
    ("self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))", "self.mixer(h)"),
)
#: A gate of the expert that sees every token (Qwen3-Next).
SHARED_GATE: Changes = (
    (
        "linear(HIDDEN, INNER), linear(HIDDEN, INNER), linear(INNER, HIDDEN)",
        "linear(HIDDEN, INNER), linear(HIDDEN, INNER), linear(INNER, HIDDEN)\n        self.share = linear(HIDDEN, 1)",
    ),
    (
        "        y = y + self.w2(F.silu(self.w1(t)) * self.w3(t))",
        "        seen = self.w2(F.silu(self.w1(t)) * self.w3(t))\n        y = y + F.sigmoid(self.share(t)) * seen",
    ),
)
#: gpt-oss's attention in transformers, between the projections of another decoder.
SINKS: Changes = (
    (
        "class Layer(nn.Module):",
        "from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward\n"
        "class Sinks(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.zeros(HEADS))\n"
        "    def reshape(self, *shape):\n"
        "        return self.weight.reshape(*shape)\n"
        "class Layer(nn.Module):",
    ),
    (
        "        self.o, self.between = linear(HEADS * WIDTH, HIDDEN), Scaled()",
        "        self.o, self.sinks, self.between = linear(HEADS * WIDTH, HIDDEN), Sinks(), Scaled()\n"
        '        self.register_buffer("hidden", torch.zeros(1, 1, LENGTH, LENGTH))\n'
        "        self.num_key_value_groups = HEADS // GROUPS",
    ),
    (
        "        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
        "        a, _ = eager_attention_forward(self, q, k, v, self.hidden, WIDTH**-0.5)",
    ),
    ("a.transpose(1, 2).reshape(", "a.reshape("),
)
#: torchtitan's layer of experts with its arguments, whose buffers stay in fp32.
TITAN = """
from torchtitan.models.moe.moe import MoE, MoEArgs
def Experts(*_):
    return MoE(MoEArgs(num_experts=8, ARGUMENTS), HIDDEN, INNER)
"""
WIDE = """for each in model.layers:
    for name, buffer in each.experts.named_buffers():
        setattr(each.experts, name, buffer.float())
    if shared := each.experts.shared_experts:  # registered in another order
        shared._modules["w2"] = shared._modules.pop("w2")
optimizer ="""
#: A batch of one sample, whose dimension no stride counts in.
ONE: Changes = (("= 2, 64, 256", "= 1, 64, 256"),)
PERCEPTRON = """
import torch
from torch import nn
sizes = (64, 96, 32, 8)
layers = [nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 8)]
model = nn.Sequential(*layers).cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, y = (torch.zeros(2, n, device="cuda", dtype=torch.bfloat16) for n in (64, 8))
for _ in range(4):
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LORA = """
model = Decoder().cuda().to(torch.bfloat16)
from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, lora_dropout=DROPOUT), autocast_adapter_dtype=False)
"""


def changed(program: str, changes: Changes) -> str:
    for line, other in changes:
        assert line in program, line
        program = program.replace(line, other)
    return program


def routed_by(family: str, words: str, block: str = "SparseMoeBlock") -> str:
    """A decoder of transformers' modules with a family's layer of experts."""
    first = "[0]" if block == "MLP" else ""  # gpt-oss's gives scores, too
    module, name = family.lower(), family.replace("_", "")
    made = f"""from transformers.models.{module} import modeling_{module} as family
CONFIG = family.{name}Config(hidden_size=HIDDEN, {words}, num_experts_per_tok=2)
CONFIG._experts_implementation = "grouped_mm"
def routed():
    layer = family.{name}{block}(CONFIG)
    layer._modules["experts"] = layer._modules.pop("experts")  # registered behind the gate, as most are
    return layer
class Layer(nn.Module):"""
    changes = (
        ("class Layer(nn.Module):", made),
        (
            "        self.gate, self.up = linear(HIDDEN, INNER), linear(HIDDEN, INNER)\n",
            "        self.experts = routed()\n",
        ),
        ("        self.down = linear(INNER, HIDDEN)\n", ""),
        ("self.down(F.silu(self.gate(h)) * self.up(h))", f"self.experts(h){first}"),
    )
    return changed(PROGRAM, changes)


def model(**keys: Any) -> dict[str, Any]:
    return {"model": {k: v for k, v in (MODEL | keys).items() if v is not None}}


def single() -> dict[str, Any]:
    return {"training": {"micro_batch": 1, "global_batch": 1}}


def titan(arguments: str) -> str:
    """The decoder of PyTorch's modules with torchtitan's experts."""
    experts = TITAN.replace("ARGUMENTS", arguments)
    return changed(routed(), ((EXPERTS, experts), ("optimizer =", WIDE)))


def adapted(targets: list[str], dropout: float) -> str:
    head = LORA.replace("TARGETS", str(targets)).replace("DROPOUT", str(dropout))
    return changed(plain(), (("\nmodel = Decoder().cuda().to(DTYPE)\n", head),))


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied embeddings": (changed(plain(), TIED), model(tied_embeddings=True)),
    "tied embeddings, learned positions": (
        changed(
            plain(
                BIAS="True",
                ROTARY="False",
                GATED="False",
                GROUPS="4",
                NORM="nn.LayerNorm",
            ),
            TIED,
        ),
        {"model": GPT | {"tied_embeddings": True}},
    ),
    "norms of queries and keys": (changed(plain(), HEADS_NORMED), model(qk_norm=True)),
    "joined projections": (changed(plain(), JOINED), {"pytorch": {"joined_qkv": True}}),
    "gates of attention": (changed(plain(), GATED), model(attention_gate=True)),
    "gated GELU": (changed(plain(), GELU_GATED), model(activation="gelu")),
    "a loss in fp32": (changed(plain(), WIDE_LOSS), {"pytorch": {"loss": "fp32"}}),
    "a norm of the embedding": (changed(plain(), NORMED), model(embedding_norm=True)),
    "checkpoints": (
        changed(plain(), CHECKPOINTED),
        {"training": {"recompute": "full"}},
    ),
    "checkpoints of experts": (
        changed(routed(), CHECKPOINTED),
        {"training": {"recompute": "full"}}
        | model(kv_heads=4, experts=8, experts_per_token=2),
    ),
    "grouped experts": (
        titan(
            'top_k=2, score_func="softmax", route_norm=True, score_before_experts=False'
        ),
        {"pytorch": {"experts": "grouped"}}
        | model(kv_heads=4, experts=8, experts_per_token=2, shared_experts=1),
    ),
    "one grouped expert for a token": (
        titan("num_shared_experts=0"),
        {"pytorch": {"experts": "grouped"}}
        | model(kv_heads=4, experts=8, experts_per_token=1),
    ),
    **{
        f"grouped experts of {family}": (
            routed_by(family, f"{words}, num_{kind}experts=8"),
            {"pytorch": {"modules": "transformers", "experts": "grouped"}}
            | model(experts=8, experts_per_token=2, **keys),
        )
        for family, words, kind, keys in (
            ("Mixtral", "intermediate_size=INNER", "local_", {}),
            (
                "Qwen3_Moe",
                "moe_intermediate_size=INNER, norm_topk_prob=True",
                "",
                {"router_narrow": True},
            ),
            (
                "Olmoe",
                "intermediate_size=INNER",
                "",
                {"router_narrow": True, "norm_topk": False},
            ),
        )
    },
    "grouped experts of gpt-oss": (
        routed_by("Gpt_Oss", "intermediate_size=INNER, num_local_experts=8", "MLP"),
        {"pytorch": {"modules": "transformers", "experts": "grouped"}}
        | model(
            experts=8,
            experts_per_token=2,
            clamped=True,
            router_bias=True,
            bias=True,
            qkv_bias=False,
            out_bias=False,
        ),
    ),
    "two microbatches": (changed(plain(), TWICE), {"training": {"global_batch": 4}}),
    "a perceptron": (
        PERCEPTRON,
        {
            "model": {"kind": "mlp", "sizes": [64, 96, 32, 8]},
            "training": {"micro_batch": 2, "seq_len": 1},
        },
    ),
    "adapters": (
        adapted(["q", "k", "v", "o", "gate", "up", "down"], 0.0),
        {"adapter": {"kind": "lora", "rank": 8}},
    ),
    "parts beside each other": (
        changed(plain(GATED="False"), BESIDE),
        model(gated=False, activation="gelu", norms="shared", parallel_parts=True),
    ),
    "parts beside each other, a norm each": (
        changed(plain(GATED="False"), NORMED_APART),
        model(gated=False, activation="gelu", parallel_parts=True),
    ),
    "windows": (changed(plain(), WINDOW), model(window=16)),
    "windows in fp32": (
        changed(plain(DTYPE="torch.float32"), WINDOW),
        model(window=16) | precise("fp32"),
    ),
    "windows in fp32, a key for every head": (
        changed(plain(DTYPE="torch.float32", GROUPS="4"), WINDOW),
        model(window=16, kv_heads=4) | precise("fp32"),
    ),
    "gated convolutions": (
        changed(plain(), CONVOLUTION),
        model(layers=None, layer_pattern="C-C-"),
    ),
    "a gate of the shared expert": (
        changed(latent(), SHARED_GATE),
        {"model": DEEPSEEK | {"shared_gate": True}},
    ),
    "sinks": (changed(PROGRAM, SINKS), TRANSFORMERS | model(sinks=True)),
    "one sample": (changed(PROGRAM, ONE), TRANSFORMERS | single()),
    "gated convolutions of one sample": (
        changed(plain(), (*CONVOLUTION, *ONE)),
        model(layers=None, layer_pattern="C-C-") | single(),
    ),
} | {
    name: (
        changed(plain(GATED="False"), (change,)),
        model(gated=False, activation=name),
    )
    for name, change in ACTIVATIONS.items()
}


def agree(
    program: str, said: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """Operator, types, shapes, strides and order."""
    if "\nfrom torchtitan" in program and find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    program_of, model = recorded(program, folder), written(said, patch)
    for place, (one, other) in enumerate(zip(model, program_of, strict=False)):
        assert one == other, place
    assert len(model) == len(program_of)


@pytest.mark.parametrize("name", KINDS)
def test_a_block_asks_for_the_operations_of_its_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, backward and optimizer."""
    agree(*KINDS[name], tmp_path, monkeypatch)
