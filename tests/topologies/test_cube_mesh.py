"""Eight GPUs in a cube mesh of NVLinks."""

from __future__ import annotations

import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.cube_mesh import Params, build
from prestep.topologies.fabric.compile import compile_graph


def test_every_gpu_has_six_links_to_four_others() -> None:
    """A V100 has six NVLinks: three neighbours of its face and one of the other."""
    fabric = load_cluster("dgx-1v")
    for gpu in fabric.gpus:
        rows = [
            row
            for row in fabric.links.of_kind("nvlink")
            if fabric.links.src[row] == gpu
        ]
        assert len(rows) == 4
        assert fabric.links.count[rows].sum() == 6
        assert fabric.links.raw[rows].sum() == pytest.approx(150e9)


def test_gpus_across_the_cube_have_no_link() -> None:
    """Gpu0 and gpu5 are joined by no NVLink of their own."""
    fabric = compile_graph(build(Params()))
    ends = {
        (fabric.links.src[row], fabric.links.dst[row])
        for row in fabric.links.of_kind("nvlink")
    }
    assert ("gpu0", "gpu4") in ends
    assert ("gpu0", "gpu5") not in ends


@pytest.mark.parametrize(
    "said", [{"gpus": 4}, {"peer_nvlinks": 1}, {"nvlinks": (1, 1)}]
)
def test_another_wiring_is_refused(said: dict[str, object]) -> None:
    """The mesh is of eight GPUs, and says who is joined."""
    with pytest.raises(InputError, match=next(iter(said))):
        Params(**said)  # type: ignore[arg-type]
