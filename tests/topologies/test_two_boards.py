"""Sixteen GPUs on two boards of NVSwitches."""

from __future__ import annotations

import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.two_boards import Params


def test_a_gpu_has_six_links_and_an_nvswitch_sixteen() -> None:
    """Eight GPUs below an NVSwitch, eight trunks beyond: two of its eighteen ports are spare."""
    links = load_cluster("dgx-2").links
    count = {}
    for row in links.of_kind("nvlink"):
        count[links.src[row]] = count.get(links.src[row], 0) + links.count[row]
    gpus = [n for name, n in count.items() if "gpu" in name]
    assert gpus == [6] * 16
    assert [n for name, n in count.items() if "nvswitch" in name] == [16] * 12


def test_boards_meet_over_trunks_alone() -> None:
    """GPU 0 reaches its own board over one NVSwitch, the other over two, by six paths alike."""
    fabric = load_cluster("dgx-2")
    for other, hops in ((1, 2), (8, 3)):
        routes = fabric.routes(fabric.gpus[0], fabric.gpus[other])
        assert [len(rows) for rows, _ in routes] == [hops] * 6


@pytest.mark.parametrize(
    "said", [{"gpus": 15}, {"peer_nvlinks": 1}, {"nvlinks": (1,)}, {"trunks": 0}]
)
def test_another_wiring_is_refused(said: dict[str, object]) -> None:
    """Boards are alike, and NVSwitches join them."""
    with pytest.raises(InputError, match=next(iter(said))):
        Params(**said)  # type: ignore[arg-type]
