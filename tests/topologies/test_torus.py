"""Tori: degree, distance as a formula, and bisection."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.show.summary import bisection
from prestep.topologies.torus import Params, build

HOST: dict[str, Any] = {"gpus": 1, "nics": 1, "nvmes": 0, "nvlinks": (), "sockets": 1}


@settings(max_examples=15, deadline=None)
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_counts_and_distances_by_formula(shape: list[int]) -> None:
    """Two cables per switch and dimension above one; the way is the sum over dimensions of the shorter way round."""
    fabric = compile_graph(build(Params(shape=tuple(shape), **HOST)))
    hosts, rows = math.prod(shape), fabric.links.of_kind("torus")
    assert len(fabric.gpus) == hosts
    assert fabric.links.count[rows].sum() == 2 * hosts * sum(size > 1 for size in shape)
    places = list(itertools.product(*(range(size) for size in shape)))
    for at, place in enumerate(places):
        away = sum(min(one, size - one) for one, size in zip(place, shape, strict=True))
        kinds = fabric.links.kind[fabric.route("host0/gpu0", f"host{at}/gpu0")].tolist()
        assert kinds.count("torus") == away


@pytest.mark.parametrize("shape", [(2,), (8,), (4, 3), (4, 4)])
def test_a_cut_through_the_first_dimension_crosses_two_rings(
    shape: tuple[int, ...],
) -> None:
    """Twice the hosts of a slice, in both directions, unless the hosts' own ports are narrower."""
    crossing = 2 * math.prod(shape[1:])
    sending = math.prod(shape) // 2
    assert bisection(
        compile_graph(build(Params(shape=shape, **HOST)))
    ) == pytest.approx(2 * 50e9 * min(crossing, sending))


def test_farther_hosts_are_reached_by_all_shortest_ways() -> None:
    """Two steps in each of two dimensions of five: six ways with one sixth of the bytes each."""
    fabric = compile_graph(build(Params(shape=(5, 5), **HOST)))
    assert [
        share for _, share in fabric.routes("host0/gpu0", "host12/gpu0")
    ] == pytest.approx([1 / 6] * 6)


def test_a_shape_without_hosts_is_refused() -> None:
    """No dimension, one of size zero, or hosts without NICs."""
    for wrong, key in (
        ({"shape": ()}, "shape"),
        ({"shape": (4, 0)}, "shape"),
        ({"nics": 0}, "nics"),
    ):
        with pytest.raises(InputError, match=f"torus: {key}"):
            compile_graph(build(Params(**wrong)))  # type: ignore[arg-type]
