"""GPUs that others measured: published times against bounds, tables, number formats and the load that lowers clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.fit.library_runs import lent_load
from lab.fit.published_gemm import fit, held_out
from lab.fit.published_tiles import STARTS, Times
from lab.formats.published_kernels import published, rows_of
from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.changed import Speed, changed
from prestep.sim.costs.gemm import TileModel
from prestep.sim.costs.gpu import load, names
from prestep.sim.costs.spreads import widths
from prestep.sim.graph.kernel import named

ROWS = published()
BLACKWELL = ("b200", "b300", "gb200", "gb300")
FORMATS = ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4")
LARGE = Kernel("aten mm", (8192, 8192, 8192), layout="nt")
sizes = st.integers(1, 2**11).map(lambda n: 16 * n)


def test_the_gpus_of_the_published_runs_are_there() -> None:
    """Every GPU of which steps or kernels were published has a file."""
    wanted = "v100 a100 a100-40gb a100-pcie h100 h100-pcie h100-500w h800 h200 gh200 b200 b300 gb200 gb300"
    assert set(wanted.split()) <= set(names())


def test_no_published_time_undercuts_the_datasheet() -> None:
    """Arithmetic at peak bounds every published kernel, so their work is read rightly (attention counts half a square)."""
    for row in ROWS:
        gpu = load_gpu(row.gpu)
        assert (
            row.seconds > 0.97 * gpu.roofline.bound(row.kernel)
            or not row.kernel.is_product
        ), row
        if row.kernel.kind.startswith("attention"):
            assert row.seconds > gpu.roofline.bound(row.kernel), row


@pytest.mark.parametrize("gpu", BLACKWELL)
def test_narrower_numbers_make_faster_products(gpu: str) -> None:
    """A large product is faster in fp8 than in bf16, and faster still in NVFP4; each format's limit holds."""
    machine = load_gpu(gpu)
    times = {
        dtype: machine.duration(Kernel("aten mm", LARGE.shape, dtype, "nt"))
        for dtype in FORMATS
    }
    assert (
        times["nvfp4"] < times["fp8"] < times["bf16"] and times["mxfp8"] == times["fp8"]
    )
    for dtype, time in times.items():
        assert time >= 2 * 8192**3 / machine.peak[dtype]


@pytest.mark.parametrize("gpu", ["a100", "h100", *BLACKWELL])
def test_published_products_are_predicted(gpu: str) -> None:
    """Shapes held out of the fit of a GPU's tile model: within 10 % in the mean, in every format."""
    for dtype, rows in rows_of(gpu, "gemm", "aiconfigurator", ROWS).items():
        made = fit(rows, load(gpu))
        assert made.held_out[0] >= 15 and made.held_out[1] < 0.10, (
            dtype,
            made.held_out,
        )
        assert sum(held_out(row.kernel) for row in rows) == made.held_out[0]


def test_an_h100_stands_on_the_h200s_steps() -> None:
    """Published bf16 products of an H100, used in no fit, agree with the H200's tables within 5 % in the median."""
    rows = rows_of("h100", "gemm", "aiconfigurator", ROWS)["bf16"]
    h100 = load_gpu("h100")
    errors = [h100.duration(row.kernel) / row.seconds - 1 for row in rows]
    assert abs(np.median(errors)) < 0.05 and np.mean(np.abs(errors)) < 0.08


def test_the_best_products_anyone_found_are_near() -> None:
    """Best of many shapes on eight GPUs, in no fit: bf16 within an eighth, fp8 within a quarter.

    But for bf16 on GPUs whose own products were measured, whatever others found.
    """
    best = [row for row in ROWS if row.source == "stas00"]
    assert len({row.gpu for row in best}) == 8
    for row in best:
        if row.kernel.dtype == "bf16" and load_gpu(row.gpu).aten_tables:
            continue
        error = row.seconds / load_gpu(row.gpu).duration(row.kernel) - 1
        assert abs(error) < (0.125 if row.kernel.dtype == "bf16" else 0.25), (
            row,
            error,
        )


def test_the_files_are_what_the_fit_writes() -> None:
    """The constants beside the facts come from the command and nowhere else."""
    made = fit(rows_of("b200", "gemm", "aiconfigurator", ROWS)["nvfp4"], load("b200"))
    product = Kernel("aten mm", (4096, 7168, 2048), "nvfp4", "nt")
    own = TileModel(**made.constants).time(product.shape, 148, 9000e12, 8e12, 0.0)  # type: ignore[arg-type]
    assert load_gpu("b200").duration(product) == pytest.approx(own, rel=1e-3)


@given(m=sizes, n=sizes, k=sizes)
@settings(max_examples=30, deadline=None)
def test_the_fits_arithmetic_is_the_models(m: int, n: int, k: int) -> None:
    """What is fitted in bulk is the tile model itself."""
    gpu, kernel = load_gpu("b200"), Kernel("aten mm", (m, n, k), "bf16", "nt")
    size = 2.0 * (m * k + k * n + m * n)
    one = TileModel(**STARTS).time(
        (m, n, k), gpu.sms, gpu.peak["bf16"], gpu.bandwidth, size
    )
    assert Times([kernel], gpu)(STARTS)[0] == pytest.approx(one)


@given(
    experts=st.integers(1, 256),
    m=sizes,
    n=sizes,
    k=sizes,
    way=st.sampled_from(("nt", "nn", "tn")),
)
def test_grouped_products_grow_with_experts(
    experts: int, m: int, n: int, k: int, way: str
) -> None:
    """Twice the experts take no less time by their tiles, and no limit of the GPU is undercut."""
    for name in ("mi300x", "mi355x", "rtxpro6000"):
        gpu = load_gpu(name)
        some, more = (
            Kernel("aten _grouped_mm", _of_all(e, m, n, k, way), layout=way)
            for e in (experts, 2 * experts)
        )
        assert (
            gpu.roofline.bound(some)
            <= gpu.duration(some)
            <= gpu.duration(more) * (1 + 1e-12)
        )


@pytest.mark.parametrize("name", ["h200", "h100", "h800"])
@pytest.mark.parametrize("way", ["nt", "nn", "tn"])
def test_measured_groups_grow_with_experts(name: str, way: str) -> None:
    """From two experts to 128, of sizes that models have."""
    gpu = load_gpu(name)
    times = [
        gpu.duration(Kernel("aten _grouped_mm", _of_all(e, *sizes, way), layout=way))
        for sizes in ((512, 2048, 1408), (4096, 4096, 7168))
        for e in (2, 8, 32, 128)
    ]
    assert times[:4] == sorted(times[:4])
    assert times[4:] == sorted(times[4:])


def _of_all(experts: int, m: int, n: int, k: int, way: str) -> tuple[int, ...]:
    """Rows of all experts lie behind each other; weights' gradients sum over them."""
    if way == "tn":
        return experts, m, n, experts * k
    return experts, experts * m, n, k


def test_many_small_experts_are_slower_than_few_large_ones() -> None:
    """The same arithmetic over 256 experts takes longer than over 32, as published of a B200."""
    b200 = load_gpu("b200")
    few, many = (
        Kernel("aten _grouped_mm", (e, 32768, 4096, 7168), layout="nt")
        for e in (32, 256)
    )
    assert 2.0 < b200.duration(many) / b200.duration(few) < 2.5
    assert b200.evidence(few) == "measured"
    between = Kernel("aten _grouped_mm", (48, 48 * 700, 4096, 7168), layout="nt")
    assert b200.evidence(between) == "fitted"


def test_long_load_slows_what_arithmetic_bounds() -> None:
    """Bursts were published of large products: under load they take longer; products bound by memory do not."""
    b200, thin = load_gpu("b200"), Kernel("aten mm", (16, 8192, 8192), layout="nt")
    assert b200.sustained(LARGE) > 1.3 and b200.sustained(thin) == 1.0
    assert b200.sustained(Kernel("aten add", (2**28,), bytes=6.0 * 2**28)) == 1.0
    assert (
        load_gpu("h100-500w").sustained(named("attention_fwd", (1, 64, 8, 4096, 128)))
        > 1.0
    )


def test_the_h200s_own_tables_have_the_load_in_them() -> None:
    """Its bf16 products, attention and streams come from whole steps: nothing is added."""
    h200 = load_gpu("h200")
    for kernel in (
        LARGE,
        named("attention_fwd", (1, 64, 8, 4096, 128)),
        Kernel("aten add", (2**28,), bytes=6.0 * 2**28),
    ):
        assert h200.sustained(kernel) == 1.0


def test_fp8_products_of_the_h200_were_short_runs() -> None:
    """They are as fast as those of the H100, which has the same SMs; both draw beyond the limit under load."""
    product = Kernel("aten mm", (16384, 16384, 16384), "fp8", "nt")
    h100, h200 = map(load_gpu, ("h100", "h200"))
    assert h100.load(product) == h200.load(product)
    assert h100.load(product).slowest > 1.05
    assert h200.duration(product) == pytest.approx(h100.duration(product), rel=0.03)


def test_attention_of_blackwell_ultra_has_faster_exponentials() -> None:
    """Attention gains more than its products' peak says, the forward pass most; other kernels do not.

    A serving library measured the forward pass on both: 0.85 of the time for this shape (0.78 was the median of whole
    calls). cuDNN's times in training say the same.
    """

    def gain(kind: str, *shape: int) -> float:
        one, other = (
            load_gpu(name).duration(named(kind, shape)) for name in ("gb300", "gb200")
        )
        return one / other

    heads = (1, 32, 8, 8192, 128)
    forward, backward = gain("attention_fwd", *heads), gain("attention_bwd", *heads)
    assert forward == pytest.approx(0.85, rel=0.02)
    assert forward < backward < 1.0
    assert gain("aten add", 2**28) == pytest.approx(1.0, rel=0.02)


def test_attention_of_one_chip_is_one() -> None:
    """A B300's attention is a GB300's: one chip, measured once."""
    for kind in ("attention_fwd", "attention_bwd"):
        kernel = named(kind, (1, 32, 8, 8192, 128))
        times = [load_gpu(name).duration(kernel) for name in ("b300", "gb300")]
        assert times[0] == times[1]


def test_a_time_is_worth_no_more_than_its_load() -> None:
    """A measured burst times a fitted factor is fitted, times a guessed one a guess; thin products keep their grade."""
    assert load_gpu("b200").evidence(LARGE) == "fitted"
    assert load_gpu("gb200").evidence(LARGE) == "fitted"  # watts at the limit
    assert load_gpu("gb300").evidence(replace(LARGE, dtype="fp8_block")) == "guess"
    assert (
        load_gpu("gb300").evidence(Kernel("aten mm", (16, 8192, 8192), layout="nt"))
        == "fitted"
    )
    assert (
        load_gpu("h200").evidence(Kernel("aten mm", (8192, 8192, 8192), layout="nt"))
        == "measured"
    )


def test_a_lent_load_is_near_every_measured_one() -> None:
    """The median of equal loads misses none of them; of two far apart each misses the other, so nothing is lent."""
    assert lent_load([1.1, 1.1, 1.1]) == (pytest.approx(1.1), 0.0)
    median, error = lent_load([1.0, 1.5])
    assert 1.0 < median < 1.5 and error > widths()["lent"]["fitted"]


@pytest.mark.parametrize("name", ["b200", "b300", "gb200", "gb300"])
def test_a_stream_lent_by_measured_bandwidths_is_no_better_than_the_lenders(
    name: str,
) -> None:
    """A sum of many bytes is fitted, as measured on an H200; norms, additions by index and short streams stay guesses."""
    gpu, h200, size = load_gpu(name), load_gpu("h200"), 2**27
    assert gpu.evidence(Kernel("sum", (size,))) == "fitted"
    here, there = gpu.facts.stream, h200.facts.stream
    assert here is not None and there is not None
    times = [one.duration(Kernel("sum", (size,))) - one.floor for one in (gpu, h200)]
    assert times[0] / times[1] == pytest.approx(there / here)
    fused = Kernel("fused", (size,), bytes=4.0 * size)
    assert gpu.evidence(fused) == h200.evidence(fused) == "datasheet"
    for kind in ("fused_norm", "index_add", "scatter_add"):
        assert gpu.evidence(Kernel(kind, (size,))) == "guess"
    assert gpu.evidence(Kernel("sum", (2**20,))) == "guess"


def test_a_short_stream_does_not_take_the_ratio_of_memories() -> None:
    """A sum of 2 MB starts and ends rather than streams: an A100's is nearer an H200's than their HBM is."""
    a100, h200, short = load_gpu("a100"), load_gpu("h200"), Kernel("sum", (2**20,))
    here, there = a100.facts.stream, h200.facts.stream
    assert here is not None and there is not None
    assert a100.duration(short) / h200.duration(short) < 0.75 * there / here


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "gb200"])
@settings(max_examples=10, deadline=None)
@given(sizes, sizes, sizes, st.floats(0.05, 4.0), st.floats(1.0, 4.0))
@example(320, 5616, 11056, 0.05078125, 2.0)  # its start does not slow down with memory
def test_a_slower_memory_makes_no_product_under_load_faster(
    name: str, m: int, n: int, k: int, bandwidth: float, more: float
) -> None:
    """Also where memory takes over from arithmetic: what long load costs does not go away with it."""
    kernel = Kernel("aten mm", (m, n, k), layout="nt")
    slow, fast = (
        changed(load_gpu(name), Speed(hbm_bandwidth=factor))
        for factor in (bandwidth, more * bandwidth)
    )
    times = [gpu.duration(kernel) * gpu.sustained(kernel) for gpu in (slow, fast)]
    assert times[1] <= times[0] * (1 + 1e-9)
