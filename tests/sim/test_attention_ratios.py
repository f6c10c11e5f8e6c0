"""Attention in fp8 and on GPUs beside which a library was measured: ratios of measured times."""

from __future__ import annotations

import pytest

from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.estimators.attention import fp8_share, widened
from prestep.sim.costs.sustained import toolkit
from prestep.sim.graph.kernel import ATTENTION, named
from tests.sample import together

TOKENS = (512, 2048, 4096, 6000, 8192, 16384, 65536)
FP8 = ("h100", "h200", "b200", "b300", "gb200", "gb300")


def attention(kind: str, tokens: int, dtype: str = "bf16") -> Kernel:
    return named(kind, (1, 64, 8, tokens, 128), dtype)


@together("kind", ATTENTION)
@together("gpu", FP8)
def test_fp8_follows_16_bits_by_what_was_measured(gpu: str, kind: str) -> None:
    """The ratio of both times is within those measured at any length, and the same whatever was asked before."""
    made = load_gpu(gpu)
    for tokens in TOKENS:
        kernel = attention(kind, tokens, "fp8")
        ratio = made.duration(kernel) / made.duration(widened(kernel))
        assert 0.6 <= ratio <= 1.6
        assert ratio == pytest.approx(fp8_share(made, kernel), rel=1e-9)


def test_forward_in_fp8_saves_time_for_long_sequences() -> None:
    """On every GPU that computes in fp8, attention of 8,192 tokens forward is faster in fp8."""
    for gpu in FP8:
        long = attention("attention_fwd", 8192, "fp8")
        assert load_gpu(gpu).duration(long) < load_gpu(gpu).duration(widened(long))


def test_backward_in_fp8_is_slower_on_hopper() -> None:
    """cuDNN's backward pass in fp8 takes longer than in bf16 on an H200, and less long on Blackwell."""
    kernel = attention("attention_bwd", 8192, "fp8")
    assert fp8_share(load_gpu("h200"), kernel) > 1.0
    assert fp8_share(load_gpu("b200"), kernel) < 1.0


def test_a_gpu_without_measurements_takes_those_of_the_one_it_is_like() -> None:
    """The H100's ratio is the H200's, and a guess there; where nobody measured, fp8 takes as long as 16 bits."""
    kernel = attention("attention_fwd", 8192, "fp8")
    h100, h200 = load_gpu("h100"), load_gpu("h200")
    assert fp8_share(h100, kernel) == fp8_share(h200, kernel)
    assert h100.evidence(kernel) == "guess"
    assert fp8_share(load_gpu("mi300x"), kernel) == 1.0


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("gpu", ("b300", "gb200", "gb300"))
def test_attention_on_both_gpus_stands_to_each_other_as_measured(
    gpu: str, kind: str
) -> None:
    """At a measured length a GPU's time is the H200's times the ratio of both, and the source is the library's."""
    made, h200 = load_gpu(gpu), load_gpu("h200")
    assert made.facts.attention_over is not None
    over = made.facts.attention_over
    for at, tokens in enumerate(over.tokens):
        kernel = attention(kind, int(tokens))
        ratio = made.duration(kernel) / h200.duration(kernel)
        assert ratio == pytest.approx(over.shares[kind][at], rel=0.02)
        assert made.basis(kernel).source == f"library {over.source}"


def test_a_ratio_between_two_lengths_lies_between_theirs() -> None:
    """Between measured lengths the ratio is between those of the two, beyond them that of the nearest."""
    over = load_gpu("gb200").facts.attention_over
    assert over is not None
    for kind in ATTENTION:
        first, second = over.shares[kind][:2]
        between = over.of(attention(kind, 3000))
        assert min(first, second) <= between <= max(first, second)
        assert over.of(attention(kind, 128)) == first
        assert over.of(attention(kind, 10**6)) == over.shares[kind][-1]


def test_other_kernels_are_as_they_were() -> None:
    """A product in fp8 is no attention: widening leaves it alone."""
    product = Kernel("aten mm", (4096, 4096, 4096), "fp8", "nt")
    assert widened(product) == product


#: Batch, heads, key and value heads, queries, keys, head dimension.
SIZES = ((4, 32, 8, 2048, 2048, 64), (2, 8, 8, 8192, 8192, 128))


@together("gpu", ("h100", "h200"))
@together("size", SIZES)
def test_a_step_slows_the_attention_of_every_library_alike(
    gpu: str, size: tuple[int, ...]
) -> None:
    """The clock falls for whoever runs: libraries stand to each other in a step as they do alone.

    In a step a kernel that resets a counter comes before cuDNN's: a launch, at most 2 us of 100 here.
    """
    made = load_gpu(gpu)
    batch, heads, kv_heads, queries, keys, dim = size
    moved = 2.0 * batch * dim * (2 * heads * queries + 2 * kv_heads * keys)
    flops = 2.0 * batch * heads * queries * keys * dim  # half of the square
    for way in ("", "_backward"):
        cudnn, flash, efficient = (
            Kernel(
                f"aten _scaled_dot_product_{library}_attention{way}",
                size,
                layout="causal",
                bytes=moved * (2 if way else 1),
                flops=flops * (2.5 if way else 1),
            )
            for library in ("cudnn", "flash", "efficient")
        )
        for other in (flash, efficient):
            alone = made.duration(other) / made.duration(cudnn)
            in_a_step = made.in_step(other) / made.in_step(cudnn)
            assert 0.98 * alone <= in_a_step <= alone * (1 + 1e-9)


#: NVIDIA's times of one causal sample of 64 and 8 heads, ms (cudnn-frontend, llama3.1): an H200's by cuDNN 9.19 in bf16,
#: a GB300's by 9.22 in bf16 and in fp8.
LATER = {
    ("attention_fwd", 4096): (0.465, 0.323 / 2, 0.217 / 2),
    ("attention_bwd", 4096): (1.450, 1.101 / 2, 0.985 / 2),
    ("attention_fwd", 8192): (1.708, 1.185 / 2, 0.759 / 2),
    ("attention_bwd", 8192): (5.083, 3.832 / 2, 3.087 / 2),
    ("attention_fwd", 16384): (6.531, 4.593 / 2, 2.880 / 2),
    ("attention_bwd", 16384): (19.002, 14.593 / 2, 10.805 / 2),
}


@together(("kind", "tokens"), LATER)
def test_a_later_release_stands_to_another_gpu_as_measured(
    kind: str, tokens: int
) -> None:
    """With the attention of CUDA 13's containers a GB300 is to an H200 what NVIDIA measured of both, in either format."""
    there, here, in_fp8 = LATER[kind, tokens]
    gb300, h200 = load_gpu("gb300"), load_gpu("h200")
    base = h200.duration(attention(kind, tokens))
    for dtype, time in (("bf16", here), ("fp8", in_fp8)):
        kernel = attention(kind, tokens, dtype)
        later = toolkit(gb300.facts, kernel, "13") * gb300.duration(kernel)
        assert later / base == pytest.approx(time / there, rel=0.03)


def test_releases_that_nobody_compared_change_nothing() -> None:
    """Attention of the default release, and of a GPU without later times, is that of the tables."""
    kernel = attention("attention_fwd", 8192)
    assert toolkit(load_gpu("gb300").facts, kernel, "12") == 1.0
    assert toolkit(load_gpu("h200").facts, kernel, "13") == 1.0
