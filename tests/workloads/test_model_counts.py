"""Named models have the parameters and the work that their makers publish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.formats.model_flops import flops_per_token, layer_flops
from prestep.workloads.job.model import Model
from prestep.workloads.models.counts import (
    active_parameters,
    idle_parameters,
    stage_parameters,
    total_parameters,
)
from prestep.workloads.models.model import ModelSpec, load_model, model_names
from tests.sample import together

# Elements of the published checkpoints (Hugging Face, "model size" of the safetensors or sum over the index's tensors).
CHECKPOINTS = {
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mpt-7b": 6_649_286_656,
    "bloom-176b": 176_247_271_424,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "smollm3-3b": 3_075_098_624,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "phi-4": 14_659_507_200,
    "phi-3-mini": 3_821_079_552,
    "falcon3-7b": 7_455_550_464,
    "seed-coder-8b": 8_250_462_208,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
    "baichuan2-7b": 7_505_973_248,
    "starcoder2-15b": 15_957_889_024,
}
# Sizes printed in papers, in units of 1e9, with the last digit that is printed.
PRINTED = {
    # Names and model cards of Qwen3.5, Nemotron Nano 2, GLM-4.5 and MiniMax-M2, without vision and further layers.
    "qwen3.5-0.8b": (0.8, 0.05),
    "qwen3.5-2b": (1.9, 0.05),
    "qwen3.5-4b": (4.2, 0.05),
    "qwen3.5-9b": (9.0, 0.05),
    "qwen3.5-27b": (27, 0.5),
    "qwen3.5-35b-a3b": (35, 0.5),
    "qwen3.5-122b-a10b": (122, 0.5),
    "qwen3.5-397b-a17b": (396, 0.5),
    "nemotron-nano-9b-v2": (8.89, 0.005),
    "nemotron-nano-12b-v2": (12.31, 0.005),
    "glm-4.5": (353, 0.5),
    "minimax-m2": (229, 0.5),
    "gpt3-6.7b": (6.7, 0.05),
    "gpt3-13b": (13.0, 0.5),
    "gpt3-175b": (175, 0.5),  # Brown et al. 2020, table 2.1
    "mt-nlg-530b": (529.6, 0.05),
    "gpt-1t": (1008.0, 0.05),  # Narayanan et al. 2021, table 1
    "mpt-30b": (29.95, 0.01),  # its model card
    "nemotron4-15b": (
        15.6,
        0.05,
    ),  # arXiv:2402.16819: 3.2 embedding, 12.5 other (of 15.6)
    "nemotron4-340b": (341.0, 0.1),  # arXiv:2406.11704: 9.4 embedding, 331.6 other
    "grok-1": (314, 5),
    "kimi-k2": (1030, 15),
    "deepseek-v4-flash": (284, 0.5),  # model cards, without further layers
    "deepseek-v4-pro": (1600, 50),
    "llama4-scout": (109, 1.5),
    "llama4-maverick": (400, 1.0),  # model cards
}
# Active parameters, 1e9, as printed; gpt-oss counts no embedding (model card, table 1), Qwen, DeepSeek and Kimi do.
ACTIVE = {
    "mixtral-8x7b": (12.9, 0.05),
    "mixtral-8x22b": (39, 0.5),
    "qwen3-30b-a3b": (3.3, 0.06),
    "qwen3-235b-a22b": (22, 0.5),
    "deepseek-v2": (21, 0.5),
    "deepseek-v3": (37, 0.6),
    "deepseek-v2-lite": (2.4, 0.3),
    "kimi-k2": (32.6, 0.3),
    "llama4-scout": (17, 0.5),
    "llama4-maverick": (17, 0.5),
    "grok-1": (86, 3),
}


def named(name: str, **changes: object) -> ModelSpec:
    return load_model(Model(name=name, **changes))  # type: ignore[arg-type]


@together(("name", "count"), CHECKPOINTS.items())
def test_parameters_are_those_of_the_checkpoint(name: str, count: int) -> None:
    """To the last one."""
    assert total_parameters(named(name)) == count


@together(("name", "printed"), PRINTED.items())
def test_parameters_are_those_printed(name: str, printed: tuple[float, float]) -> None:
    """To the digit printed."""
    assert total_parameters(named(name)) / 1e9 == pytest.approx(
        printed[0], abs=printed[1]
    )


@pytest.mark.parametrize(
    ("name", "printed"), [("deepseek-v4-flash", 13), ("deepseek-v4-pro", 49)]
)
def test_active_parameters_without_the_embedding(name: str, printed: int) -> None:
    """As the model cards round them."""
    m = named(name)
    assert round((active_parameters(m) - m.vocab * m.hidden) / 1e9) == printed


@pytest.mark.parametrize(("tflops", "tokens"), [(748, 8224), (706, 7776)])
def test_flops_of_compressed_attention_are_those_published(
    tflops: int, tokens: int
) -> None:
    """Megatron-Bridge prints both for DeepSeek-V4-Flash, 4,096 tokens: their ratio is its count (flop_utils.py)."""
    m = named("deepseek-v4-flash", mtp_layers=1)
    published = tflops * 1e12 / tokens
    for causal in (True, False):
        counted = flops_per_token(m, 4096, causal=causal)
        assert counted == pytest.approx(published, rel=0.01)


@together(("name", "printed"), ACTIVE.items())
def test_active_parameters_are_those_printed(
    name: str, printed: tuple[float, float]
) -> None:
    """A token meets as many parameters as the makers say."""
    assert active_parameters(named(name)) / 1e9 == pytest.approx(
        printed[0], abs=printed[1]
    )


@pytest.mark.parametrize(
    ("name", "active"), [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)]
)
def test_gpt_oss_counts_no_embedding(name: str, active: float) -> None:
    """Active parameters of gpt-oss without its embedding, as its model card's table 1 counts them."""
    m = named(name)
    assert (active_parameters(m) - m.vocab * m.hidden) / 1e9 == pytest.approx(
        active, abs=0.006
    )


@pytest.mark.parametrize(
    ("name", "gflops"), [("deepseek-v2", 155), ("deepseek-v3", 250)]
)
def test_training_flops_are_those_printed(name: str, gflops: float) -> None:
    """Flops of training a token at 4,096 (arXiv:2505.09343, table 2, causal attention)."""
    assert flops_per_token(named(name), 4096) / 1e9 == pytest.approx(gflops, abs=0.6)


def test_gpt3_training_flops() -> None:
    """3.14e23 flops for 300e9 tokens (Brown et al. 2020, table D.1: 6 for each parameter)."""
    assert flops_per_token(named("gpt3-175b"), 2048) * 300e9 == pytest.approx(
        3.14e23, rel=0.03
    )


def test_narayanan_formula() -> None:
    """96 B s l h^2 (1 + s / 6h + V / 16lh) with recomputation (Narayanan et al. 2021, equation 3)."""
    m, s = named("gpt-1t"), 2048
    printed = (
        96
        * s
        * m.layers
        * m.hidden**2
        * (1 + s / (6 * m.hidden) + m.vocab / (16 * m.layers * m.hidden))
    )
    assert s * flops_per_token(m, s, causal=False, recomputed=True) == pytest.approx(
        printed, rel=0.005
    )


def test_multi_token_prediction_adds_a_layer() -> None:
    """DeepSeek-V3's module of one later token is 14e9 parameters with the embedding and head that it shares (README)."""
    m, more = named("deepseek-v3"), named("deepseek-v3", mtp_layers=1)
    added = total_parameters(more) - total_parameters(m) + 2 * m.vocab * m.hidden
    assert added / 1e9 == pytest.approx(14, abs=0.6)
    assert flops_per_token(more, 4096) > flops_per_token(m, 4096)


@together(
    "name",
    [n for n in model_names() if load_model(Model(name=n)).kind == "transformer"],
)
def test_stages_add_up(name: str) -> None:
    """Parameters of stages, however cut, are those of the model."""
    m = named(name)
    cut = m.layers // 3
    parts = [
        stage_parameters(m, range(cut), True, False),
        stage_parameters(m, range(cut, m.layers), False, True),
    ]
    assert sum(parts) == total_parameters(m)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_more_experts_are_idle(chosen: int, more: int, every: int) -> None:
    """Experts beyond those chosen add parameters and, but for the router's row, no work."""
    keys = {
        "kind": "transformer",
        "hidden": 64,
        "layers": 8,
        "heads": 4,
        "ffn": 128,
        "vocab": 100,
        "experts_per_token": chosen,
        "moe_every": every,
    }
    few = load_model(Model(**keys, experts=chosen))  # type: ignore[arg-type]
    many = load_model(Model(**keys, experts=chosen + more))  # type: ignore[arg-type]
    layers = sum(map(few.has_experts, range(8)))
    assert idle_parameters(few) == 0
    assert (
        total_parameters(many) - total_parameters(few)
        == idle_parameters(many) + layers * more * 64
    )
    assert layer_flops(many, 7, 64) - layer_flops(
        few, 7, 64
    ) == 2 * 64 * more * few.has_experts(7)


def test_a_window_bounds_attention() -> None:
    """Scores grow with the window up to the whole causal triangle, and not with the sequence beyond it."""
    flops = [
        flops_per_token(named("llama3-8b", window=w), 8192)
        for w in (128, 1024, 8192, 100_000)
    ]
    assert flops == sorted(flops) and flops[2] == flops[3] == flops_per_token(
        named("llama3-8b"), 8192
    )
