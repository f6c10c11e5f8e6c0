"""Attention with other heads than tables have: ratios of measured times, and laws of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lab.fit import attention_widths as fit
from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.estimators.attention import (
    REFERENCE,
    WideHeads,
    fp8_share,
    widths_of,
)
from prestep.sim.costs.sustained import toolkit
from prestep.sim.graph.kernel import ATTENTION, LATENT, named
from tests.sample import together

HOPPERS = ("h100", "h200", "h800", "gh200")
LENT = HOPPERS[2:]  # the others have rows of many widths
OTHERS = ("a100", "b200", "gb200", "gb300", "mi300x")


def attention(kind: str, width: int, tokens: int = 4096, layout: str = "") -> Kernel:
    return named(kind, (1, 16, 16, tokens, width), layout=layout)


@together("kind", ATTENTION)
@together("gpu", (*HOPPERS, *OTHERS))
def test_wider_heads_are_never_faster(gpu: str, kind: str) -> None:
    made = load_gpu(gpu)
    for tokens in (512, 4096, 30000):
        times = [
            made.duration(attention(kind, width, tokens))
            for width in (64, 96, 128, 160, 192, 224, 256, 320, 512)
        ]
        assert all(narrow <= wide for narrow, wide in pairwise(times))


@together("kind", ATTENTION)
@together("gpu", LENT)
def test_a_hopper_computes_tiles_as_wide_as_the_next(gpu: str, kind: str) -> None:
    """Heads of 80 take what heads of 128 take, those of 160 what those of 192 take."""
    made = load_gpu(gpu)
    for narrow, tile in ((80, 128), (112, 128), (160, 192), (224, 256)):
        narrow_time = made.duration(attention(kind, narrow))
        assert narrow_time == made.duration(attention(kind, tile))


@together("kind", ATTENTION)
@together("gpu", OTHERS)
def test_elsewhere_wide_heads_take_time_as_their_products_do(
    gpu: str, kind: str
) -> None:
    """Nobody measured them there: a guess, and said to be one."""
    made = load_gpu(gpu)
    wide = attention(kind, 256)
    reference = made.duration(attention(kind, REFERENCE))
    assert made.duration(wide) == pytest.approx(2 * reference, rel=1e-9)
    assert made.evidence(wide) == "guess"
    assert made.basis(wide).reason


@together("kind", ATTENTION)
@together("gpu", (*HOPPERS, *OTHERS))
def test_latent_attention_lies_between_its_widths(gpu: str, kind: str) -> None:
    """With queries of 192 and values of 128 it takes longer than heads of 128 and less than heads of 192."""
    made = load_gpu(gpu)
    latent = made.duration(attention(kind, 160, layout=LATENT))
    assert made.duration(attention(kind, 128)) < latent
    assert latent <= made.duration(attention(kind, 192))


def test_latent_attention_in_fp8_follows_that_in_16_bits() -> None:
    made = load_gpu("gb200")
    wide = attention("attention_fwd", 160, layout=LATENT)
    narrow = replace(wide, dtype="fp8")
    ratio = made.duration(narrow) / made.duration(wide)
    assert ratio == pytest.approx(fp8_share(made, narrow))


def test_a_table_of_its_own_comes_first() -> None:
    """Where a GPU's own rows have such heads, they are read, not the ratio; of latent attention there are none."""
    made = WideHeads(load_gpu("h200"))
    for width in (32, 64, 96, 128):
        assert made.stand(attention("attention_fwd", width)) is None
    assert made.stand(attention("attention_fwd", 160, layout=LATENT)) is not None


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
def test_a_width_that_nobody_measured_stays_a_guess(gpu: str) -> None:
    """Blackwells have ratios of latent attention alone: heads of 256 take time as their products do."""
    made = load_gpu(gpu)
    latent, wide = (
        attention("attention_fwd", 160, layout=LATENT),
        attention("attention_fwd", 256),
    )
    assert widths_of(made, latent) is not None and made.evidence(latent) == "fitted"
    assert widths_of(made, wide) is None and made.evidence(wide) == "guess"


def test_latent_attention_in_fp8_goes_by_its_own_ratio() -> None:
    """Published bursts of a GB300, 128 heads of 4,096 tokens, by cuDNN 9.22: none of the four is 10 % off."""
    made = load_gpu("gb300")
    bursts = {("fwd", "bf16"): 0.864, ("bwd", "bf16"): 3.127}
    bursts |= {("fwd", "fp8"): 0.493, ("bwd", "fp8"): 1.803}
    for (way, dtype), milliseconds in bursts.items():
        shape = (2, 128, 128, 4096, 160)
        kernel = named(f"attention_{way}", shape, dtype, LATENT)
        time = made.duration(kernel) * toolkit(made.facts, kernel, "13")
        assert time == pytest.approx(milliseconds * 1e-3, rel=0.10)


def test_the_ratios_are_those_of_the_rows_for_fitting() -> None:
    """What the file states is what the command prints, to its two digits."""
    widths = load_gpu("h200").facts.attention_widths
    assert widths is not None
    found = fit.ratios(fit.rows())
    for (over, kind, tokens), ratio in found.items():
        at = widths.tokens.index(tokens)
        assert widths.over[over][kind][at] == pytest.approx(ratio, abs=0.0051)


def test_judged_rows_are_borne_out() -> None:
    """Rows that nothing was fitted to, of heads beyond 128: within 11 % in the mean; they were up to 51 % off."""
    for (_, width, _), off in fit.errors(fit.rows()).items():
        if width in ("160", "192", "224", "256", "192/128"):
            assert sum(map(abs, off)) / len(off) < 0.11
