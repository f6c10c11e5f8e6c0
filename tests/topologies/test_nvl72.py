"""NVL72 racks and the 576-GPU SuperPOD: published rates from the graph."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.nvl72 import Params
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers

RACK, POD = load_cluster("gb200-nvl72"), load_cluster("gb200-superpod-576")


def test_a_rack_is_72_gpus_in_18_trays_around_18_nvswitches() -> None:
    """One NVLink from every GPU to every NVSwitch; a tray is a host with two CPUs."""
    assert (len(RACK.gpus), len(RACK.hosts), len(RACK.nodes.of_kind("nvswitch"))) == (
        72,
        18,
        18,
    )
    rows = RACK.links.of_kind("nvlink")
    assert len(rows) == 2 * 72 * 18
    assert set(RACK.links.count[rows].tolist()) == {1}
    assert len(RACK.nodes.of_kind("cpu")) == 36


@pytest.mark.parametrize("fabric", [RACK, POD])
def test_a_rack_sends_3_6_tb_per_second(fabric: object) -> None:
    """72 NICs of 400 Gbit/s (How to Scale Your Model, chapter 12: node egress of a GB200 NVL72)."""
    links = fabric.links  # type: ignore[attr-defined]
    out = (links.kind == "nic") & np.char.startswith(
        links.dst.astype(str), "rack0/leaf"
    )
    assert links.raw[out].sum() == pytest.approx(3.6e12)


def test_nvlink_reaches_900_gb_per_second_and_130_tb_per_second_in_all() -> None:
    """Datasheet: 130 TB/s of NVLink in both directions; half of the GPUs against the other is 64.8 TB/s."""
    assert tiers(RACK)[0].egress == pytest.approx(900e9)
    assert RACK.links.raw[RACK.links.of_kind("nvlink")].sum() == pytest.approx(129.6e12)
    assert bisection(RACK, ["nvlink"]) == pytest.approx(64.8e12)
    rows, share = RACK.spread("host0/gpu0", "host17/gpu3")
    assert (RACK.links.bandwidth[rows] / share).min() == pytest.approx(746e9, rel=0.002)


def test_the_superpod_is_eight_racks_with_full_bisection() -> None:
    """576 GPUs; racks join at 3.6 TB/s each, and what goes into the spines is what comes out of the hosts."""
    assert (len(POD.gpus), len(POD.hosts)) == (576, 144)
    assert [
        (tier.kind, tier.children, round(tier.egress / 1e9)) for tier in tiers(POD)
    ] == [
        ("nvswitch", 72, 900),
        ("spine", 8, 3600),
    ]
    # min(900 * 72 / 71, 3,600 * 8 / 7): a ring over the racks is not the bottleneck.
    slowest = min(tier.all_gather for tier in tiers(POD))
    assert slowest == pytest.approx(912.7e9, rel=0.001)
    links = POD.links
    assert links.raw[links.of_kind("spine")].sum() == pytest.approx(
        links.raw[links.of_kind("nic")].sum()
    )


def test_racks_fill_one_after_the_other() -> None:
    """20 trays are one rack and two trays of the next; a rack of its own has no spine."""
    fabric = load_cluster("gb200-nvl72", hosts=20)
    assert (
        len(fabric.gpus),
        len(fabric.nodes.of_kind("nvswitch")),
        len(fabric.nodes.of_kind("leaf")),
    ) == (80, 36, 8)
    assert "spine" not in RACK.nodes.kinds
    stops = fabric.links.dst[fabric.route("host0/gpu0", "host19/gpu3")].tolist()
    assert [stop.partition("/")[0] for stop in stops[2:5]] == [
        "rack0",
        "spine0",
        "rack1",
    ]


def test_wrong_parameters_are_reported() -> None:
    """Counts that are too small; cables that do not divide over the spines."""
    with pytest.raises(InputError) as caught:
        Params(hosts=0, nics=0, nvlinks=())
    assert {mistake.key for mistake in caught.value.mistakes} == {
        "hosts",
        "nics",
        "nvlinks",
    }
    with pytest.raises(
        InputError, match="spines: found 7 for leaves with 18 ports down"
    ):
        Params(hosts=36, spines=7)
