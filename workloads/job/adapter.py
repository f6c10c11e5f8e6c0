"""The section [adapter] of a scenario: low-rank adapters beside frozen weights (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

from prestep.sim.strict import key

#: A key of Megatron's adapters.
megatron = partial(key, parts="megatron")
Target = Literal[
    "qkv",
    "q_down",
    "q_up",
    "kv_down",
    "kv_up",
    "proj",
    "in_proj",
    "out_proj",
    "fc1",
    "fc2",
]
#: Where adapters are unless a scenario says it.
USUAL: tuple[Target, ...] = ("qkv", "proj", "fc1", "fc2")
#: Projections that may have an adapter, in a layer's order: of attention, of latent attention between them (queries
#: that are not compressed come from q_up), of scans (Mamba-2, linear attention), of feed-forward layers and experts.
TARGETS: tuple[Target, ...] = get_args(Target)
#: What recipes call them: Megatron's and NeMo's modules, NeMo 1's words, Hugging Face's projections.
ALIASES: dict[str, tuple[Target, ...]] = {
    **dict.fromkeys(("linear_qkv", "attention_qkv", "qkv_proj"), ("qkv",)),
    **dict.fromkeys(("linear_q", "linear_k", "linear_v"), ("qkv",)),
    **dict.fromkeys(("k_proj", "v_proj", "wq", "wk", "wv", "wkv", "wqkv"), ("qkv",)),
    "q_proj": ("qkv", "q_up"),
    **dict.fromkeys(("linear_q_down_proj", "q_a_proj"), ("q_down",)),
    **dict.fromkeys(("linear_q_up_proj", "linear_q_proj", "q_b_proj"), ("q_up",)),
    **dict.fromkeys(("linear_kv_down_proj", "kv_a_proj_with_mqa"), ("kv_down",)),
    **dict.fromkeys(("linear_kv_up_proj", "kv_b_proj"), ("kv_up",)),
    **dict.fromkeys(("linear_proj", "attention_dense", "o_proj", "wo"), ("proj",)),
    **dict.fromkeys(("linear_fc1", "mlp_fc1", "gate_proj", "up_proj"), ("fc1",)),
    **dict.fromkeys(("linear_fc1_up", "linear_fc1_gate", "gate_up_proj"), ("fc1",)),
    **dict.fromkeys(("linear_fc2", "mlp_fc2", "down_proj"), ("fc2",)),
    "attention": ("qkv", "q_down", "q_up", "kv_down", "kv_up", "proj"),
    "mlp": ("fc1", "fc2"),
    **dict.fromkeys(("all", "all-linear", "all_linear", "*_proj", "*"), TARGETS),
}


@dataclass(frozen=True)
class Adapter:
    """Which projections have an adapter beside their frozen weight; weights without one are frozen too."""

    WANTS: ClassVar = ("adapter.kind = lora",)

    kind: Literal["none", "lora"] = key(
        "none", "lora: frozen weights, and thin products beside the targets"
    )
    rank: int = key(16, "columns between the two matrices", low=1)
    targets: tuple[str, ...] = key(
        USUAL,
        "projections with an adapter: qkv, proj, fc1, fc2, q_down, q_up, kv_down, kv_up (MLA), "
        "in_proj, out_proj (Mamba-2, linear attention), or the trainer's names",
    )
    dropout: float = key(0.0, "share of an adapter's inputs dropped", low=0)
    dropout_position: Literal["pre", "post"] = key(
        "pre", "dropout on an adapter's input or on its output"
    )
    scaled: Literal["output", "inner"] = key(
        "output", "where alpha over rank is multiplied"
    )
    base: Literal["bf16", "nf4", "nf4-double"] = key(
        "bf16", "eager: frozen weights in four bits (QLoRA); nf4-double: scales in 8"
    )
    fp32: bool = key(False, "PyTorch: adapters in fp32 under autocast (PEFT)")
    experts: Literal["shared", "each", "frozen"] = megatron(
        "shared", "adapters in experts: one per rank, one per expert, or none"
    )
    expert_rank: int | None = megatron(None, "rank in experts, where another", low=1)
    fp8_weights: bool = megatron(
        False, "frozen weights in 8 bits, with fp8", wants="quantized"
    )
    all_to_all: bool = megatron(
        True,
        "outputs change from columns to tokens by an all-to-all (a2a_experimental)",
    )

    @property
    def on(self) -> bool:
        """Whether weights are frozen."""
        return self.kind != "none"

    @property
    def places(self) -> tuple[Target, ...]:
        """Projections with an adapter, in the layer's order; none where weights are not frozen."""
        return targets_of(self.targets)[0] if self.on else ()


def targets_of(names: tuple[str, ...]) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Targets that names of modules stand for (wildcards ahead of the last part are left out), and names unknown."""
    found: set[Target] = set()
    unknown = []
    for name in names:
        last = name.rpartition(".")[2]
        if last in TARGETS:
            found.add(last)
        elif last in ALIASES:
            found.update(ALIASES[last])
        else:
            unknown.append(name)
    return tuple(each for each in TARGETS if each in found), tuple(unknown)
