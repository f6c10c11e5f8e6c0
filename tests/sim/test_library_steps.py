"""Kernels of steps by libraries' tables: what is taken off, what stays, and what such a time rests on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fit.library_steps import (
    PARTS,
    TAKE,
    constants_of,
    errors,
    measured_pairs,
)
from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.estimators.library import rows_of_library
from prestep.sim.costs.library_families import PRODUCTS
from prestep.sim.costs.library_table import Library

sizes = st.integers(8, 64).map(lambda n: 256 * n)  # shorter ones are starts


@pytest.mark.parametrize("name", TAKE)
def test_a_gpus_file_has_the_families_that_are_taken(name: str) -> None:
    """What the fit writes is what the GPU reads, from one stack."""
    libraries = load_gpu(name).facts.libraries
    assert {*libraries} == {*TAKE[name]}
    assert len({(stack.source, stack.kernel) for stack in libraries.values()}) == 1


@pytest.mark.parametrize("name", ["b300", "gb200", "gb300"])
@settings(max_examples=25, deadline=None)
@given(m=sizes, n=sizes, k=sizes)
def test_a_product_is_near_its_tile_model(name: str, m: int, n: int, k: int) -> None:
    """A table corrects the model of tiles, by less than half, and nothing undercuts the datasheet."""
    gpu = load_gpu(name)
    kernel = Kernel("aten mm", (m, n, k), "fp8", "nt")
    time = gpu.duration(kernel)
    assert abs(math.log(time / gpu.tile_time(kernel))) < math.log(1.5)
    assert time >= gpu.roofline.bound(kernel)


def test_a_call_and_its_quantizing_are_no_part_of_a_product() -> None:
    """A step's product in fp8 is shorter than the library's call of that very shape, by about what is taken off."""
    gpu, stack = load_gpu("gb300"), load_gpu("gb300").facts.libraries["products_fp8"]
    who = Library("gb300", "fp8", stack.source, stack.kernel)
    shapes, seconds = rows_of_library(PRODUCTS, who)
    typical = (shapes.min(axis=1) >= 1024) & (seconds < 1e-3)
    picked = np.flatnonzero(typical)[::200]
    ratios = []
    for row in picked:
        kernel = Kernel("aten mm", tuple(map(int, shapes[row])), "fp8", "nt")
        read = kernel.shape[0] * kernel.shape[2]
        around = stack.call + stack.moved * read / gpu.bandwidth
        ratios.append(gpu.duration(kernel) / ((seconds[row] - around) * stack.share))
        assert gpu.duration(kernel) < seconds[row]
    assert len(ratios) > 5 and np.median(ratios) == pytest.approx(1.0, abs=0.05)


def test_gradients_take_longer_as_an_h200s_do() -> None:
    """Layouts differ by one factor each, weight gradients most."""
    gpu = load_gpu("gb300")
    stack = gpu.facts.libraries["products_bf16"]
    forward, data, weight = (
        gpu.duration(Kernel("aten mm", (8192, 4096, 4096), "bf16", layout))
        for layout in ("nt", "nn", "tn")
    )
    assert data / forward == pytest.approx(stack.nn / stack.share)
    assert weight / forward == pytest.approx(stack.tn / stack.share)
    assert max(data, forward) < weight


def test_what_a_library_measured_is_no_guess() -> None:
    """Grades of short products, which no load slows: measured at a row's shape, fitted between rows."""
    gpu = load_gpu("gb300")
    stack = gpu.facts.libraries["products_bf16"]
    who = Library("gb300", "bf16", stack.source, stack.kernel)
    shapes, _ = rows_of_library(PRODUCTS, who)
    wide = shapes[shapes[:, 1] >= 4096]
    thin = wide[wide[:, 0].argmin()]
    row = Kernel("aten mm", tuple(map(int, thin)), "bf16", "nt")
    between = replace(row, shape=(row.shape[0] + 1, row.shape[1] + 24, row.shape[2]))
    assert gpu.evidence(row) == "measured" and gpu.basis(row).reason == ""
    assert gpu.evidence(between) == gpu.evidence(replace(row, layout="tn")) == "fitted"
    assert gpu.basis(row).source == "library trtllm/1.3.0rc20"
    assert (
        "library"
        not in gpu.basis(Kernel("aten add", (2**20,), bytes=6.0 * 2**20)).source
    )


def test_what_is_taken_off_is_right_where_both_are_known() -> None:
    """Kernels of an H200's and an H100's steps that no constant was fitted to: no bias, and the error that files state."""
    stated = load_gpu("gb300").facts.libraries
    for name, known in measured_pairs().items():
        by_gpu, error = constants_of(name, known)
        out = [pair for pair in known if pair.held_out]
        assert len(out) > len(known) / PARTS / 2
        assert abs(errors(by_gpu, out).mean()) < 0.05
        assert error == pytest.approx(stated[name].error, abs=0.001)
