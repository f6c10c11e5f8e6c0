"""Kernels of decoding: what every law keeps, how well it has what was measured, and what engines exchange."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fit.decode import FAMILIES, errors, fitted, measured
from prestep.sim.costs import load_gpu
from prestep.sim.rl.decode import MEASURED_ON, MOST, Exchanges, laws
from prestep.sim.rl.pools import pools_of
from prestep.sim.rl.training import batch_of
from tests.sim.test_rl import SCENARIO, engine, path  # noqa: F401 (a fixture)

H100, GB200 = load_gpu("h100"), load_gpu("gb200")
BYTES = st.floats(0, 1e10)
DEPTH = st.floats(0, 1e5)
BUSY = st.floats(0, 1e-2)
#: Median and 90th percentile of the error at held-out shapes, in hundredths: what was reached and a little.
REACHED = {
    "product": (8, 17),
    "experts": (2, 6),
    "attention": (3, 10),
    "latent_attention": (6, 13),
    "product_fp8": (9, 15),
    "sampling": (5, 15),
}


@pytest.mark.parametrize("name", sorted(FAMILIES))
@given(BYTES, DEPTH, BUSY)
@settings(deadline=None, max_examples=30)
def test_a_law_is_bounded_by_each_of_its_limits(
    name: str, moved: float, depth: float, busy: float
) -> None:
    law = laws()[name]
    time = law.seconds(H100, moved, depth, busy)
    parts = moved / (law.share * H100.bandwidth), depth * law.step, busy
    slack = 1 + 1e-9
    assert law.start + max(parts) <= time * slack
    assert time <= (law.start + sum(parts)) * slack


@pytest.mark.parametrize("name", sorted(FAMILIES))
@given(BYTES, BYTES, DEPTH)
@settings(deadline=None, max_examples=30)
def test_more_bytes_take_no_less_and_more_bandwidth_no_more(
    name: str, some: float, others: float, depth: float
) -> None:
    law, (few, many) = laws()[name], sorted((some, others))
    assert law.seconds(H100, few, depth) <= law.seconds(H100, many, depth)
    assert law.seconds(GB200, many, depth) <= law.seconds(H100, many, depth)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_law_reads_faster_than_the_memory(name: str) -> None:
    law = laws()[name]
    assert 0 < law.share <= 1
    assert law.start > 0 and law.step >= 0


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_file_has_what_the_fit_finds(name: str) -> None:
    rows, _ = measured(FAMILIES[name])
    found, known = fitted(FAMILIES[name], rows, H100), laws()[name]
    assert known.start == pytest.approx(found.start, rel=0.02)
    assert known.share == pytest.approx(found.share, rel=0.02)
    if known.step:
        assert known.step == pytest.approx(found.step, rel=0.02)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_shapes_that_were_held_out_are_predicted(name: str) -> None:
    rows, held = measured(FAMILIES[name])
    assert len(held) >= 4 and len(rows) > len(held)
    sizes = 100 * np.abs(errors(laws()[name], FAMILIES[name], held, H100))
    median, ninetieth = REACHED[name]
    assert np.median(sizes) <= median
    assert np.quantile(sizes, 0.9) <= ninetieth
    assert H100.name == MEASURED_ON


def test_a_larger_batch_is_no_faster_and_no_slower_for_each(path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    one = engine(path, "rl.async_scheduling=false")
    batches = (1, 2, 8, 64, 128, 256, 257, 512)
    times = [one.step(batch, 500.0) for batch in batches]
    assert times == sorted(times)
    each = [time / batch for time, batch in zip(times, batches, strict=True)]
    # tables begin at 257 rows, within a few per cent of the laws
    assert all(after <= 1.05 * before for before, after in pairwise(each))


@given(st.floats(1, MOST), st.sampled_from([2, 4, 8]))
@settings(deadline=None, max_examples=20)
def test_an_engine_reduces_no_slower_than_nccl(size: float, ranks: int) -> None:
    made = exchanges()
    group = made.gpus[:ranks]
    assert made.reduced(size, group) <= made._nccl("all_reduce", size, group)
    assert made.reduced(size, group) <= made.reduced(2 * size, group)


def test_hosts_are_joined_by_nccl_alone() -> None:
    made = exchanges("cluster.name=dgx-h100-superpod", "cluster.hosts=2")
    group = made.gpus[:16]
    assert made.reduced(4096, group) == made._nccl("all_reduce", 4096, group)
    large = 2.0 * MOST
    here = made.gpus[:8]
    assert made.reduced(large, here) == made._nccl("all_reduce", large, here)


def test_hosts_of_one_rack_are_joined_by_nccl_too() -> None:
    """vLLM's kernels reduce between processes that share a host's memory: four GPUs of an NVL72 rack, not eight."""
    made = exchanges("cluster.name=gb200-nvl72", "cluster.hosts=2")
    here, both = made.gpus[:4], made.gpus[:8]
    assert made.reduced(4096, both) == made._nccl("all_reduce", 4096, both)
    assert made.reduced(4096, here) < made._nccl("all_reduce", 4096, here)


def test_a_small_reduction_by_hand() -> None:
    """What others printed: 0.5 MiB between two H100 in 7 us, between eight in 11."""
    made = exchanges()
    half = 2.0**19
    assert made.reduced(half, made.gpus[:2]) == pytest.approx(7e-6, rel=0.05)
    assert made.reduced(half, made.gpus[:8]) == pytest.approx(11e-6, rel=0.1)


def test_a_slow_host_slows_decoding_down_by_its_own_time(path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    change = "rl.async_scheduling=false"
    known = engine(path, change, "cluster.host_factor=1").parts(8, 300.0)
    slow = engine(path, change, "cluster.host_factor=2").parts(8, 300.0)
    assert slow["host"] == pytest.approx(2 * known["host"])
    assert {**slow, "host": 0} == {**known, "host": 0}


def test_padded_microbatches_by_hand(path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """64 rollouts on four replicas: 16 microbatches of one, 8 of two; each as long as the longest of all."""
    pools = engine(path, "rl.packing=false").pools
    one, two = batch_of(pools, 64, 1), batch_of(pools, 64, 2)
    assert (one.packs, one.microbatches) == (64, 16)
    assert (two.packs, two.microbatches) == (32, 8)
    assert one.seq_len == 1024 and two.seq_len == 2048
    packed = batch_of(engine(path).pools, 64, 1)
    tokens = packed.microbatches * packed.seq_len
    assert tokens < one.microbatches * one.seq_len


def exchanges(*changes: str) -> Exchanges:
    """The exchanges between the GPUs of a DGX H100."""
    import tempfile
    from pathlib import Path

    from prestep.sim.spec.load import load_scenario

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rl.toml"
        file.write_text(SCENARIO)
        pools = pools_of(load_scenario(file, changes))
    return Exchanges(pools, pools.fabric.gpus)
