"""The routes that a family's docstring spells out are the routes of the cluster that it builds."""

from __future__ import annotations

import importlib
import re
from typing import Any

from prestep.sim.plugins import providers
from prestep.topologies.fabric.compile import compile_graph
from tests.sample import together

# What the picture in the docstring shows, where it is not the family's default; how many routes are spelled out.
SHOWN: dict[str, dict[str, Any]] = {
    "ethernet_clos": {"racks_per_pod": 4},
    "leaf_spine": {"gpus_per_pcie_switch": 0},
    "superpod": {"hosts": 64},
    "torus": {"shape": (3, 3)},
}
ROUTES = {"aws_p5": 2, "grace": 2, "host": 2, "nvl72": 2}


@together("family", sorted(providers("prestep.topologies", "build")))
def test_the_routes_in_the_docstring_are_the_routes(family: str) -> None:
    """The picture and the code say the same."""
    module = importlib.import_module(f"topologies.{family}")
    fabric = compile_graph(module.build(module.Params(**SHOWN.get(family, {}))))
    spelled = re.findall(r"``([\w/]+(?:\s+>\s+[\w/]+)+)``", module.build.__doc__ or "")
    assert len(spelled) == ROUTES.get(family, 1)
    for text in spelled:
        stops = re.split(r"\s+>\s+", text)
        assert [
            stops[0],
            *fabric.links.dst[fabric.route(stops[0], stops[-1])].tolist(),
        ] == stops
