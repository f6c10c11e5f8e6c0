"""EC2's instance topology as a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.files import importers
from prestep.topologies.files.interchange import import_file


def instance(at: int, *nodes: str, kind: str = "p5.48xlarge") -> dict[str, Any]:
    return {"InstanceId": f"i-{at}", "InstanceType": kind, "NetworkNodes": list(nodes)}


def written(folder: Path, *instances: dict[str, Any]) -> Path:
    path = folder / "topology.json"
    path.write_text(json.dumps({"Instances": list(instances)}))
    return path


def test_sixteen_instances_under_twelve_switches(tmp_path: Path) -> None:
    """1 / 1 / 12 switches, as in the training playbook: all NICs' bandwidth goes up; neighbours meet in a leaf."""
    placed = [instance(at, "nn-a", "nn-b", f"nn-{at % 12:02}") for at in range(16)]
    fabric = importers.read(written(tmp_path, *placed))
    kinds = fabric.nodes.kinds
    assert [kinds.count(kind) for kind in ("core", "spine", "leaf")] == [1, 1, 12]
    up = np.flatnonzero((fabric.links.kind == "core") & (fabric.links.dst == "nn-a"))
    assert fabric.links.raw[up].sum() == pytest.approx(16 * 400e9)

    def passed(a: str, b: str) -> list[str]:
        links = fabric.route(f"{a}/gpu0", f"{b}/gpu0")
        ends = fabric.links.dst[links].tolist()
        return [name for name in ends if name.startswith("nn-")]

    assert passed("i-0", "i-12") == ["nn-00"]
    assert passed("i-0", "i-1") == ["nn-00", "nn-b", "nn-01"]
    assert fabric.hosts[:2] == ("i-0", "i-12")
    assert fabric.cluster_facts.nvlink_sharp and fabric.gpu_model == "h100"


def test_what_is_written_is_a_cluster(tmp_path: Path) -> None:
    """The JSON works wherever a cluster's name does; rates are said to be assumed."""
    path = written(tmp_path, *(instance(at, "a", "b", f"c{at}") for at in range(2)))
    _, made, notes = import_file(path, tmp_path / "mine.json")
    assert len(load_cluster(str(made)).gpus) == 16
    assert any(note.startswith("assumed: rates") for note in notes)


@pytest.mark.parametrize(
    ("instances", "words"),
    [
        ([], "a list of instances"),
        ([instance(0, "a", "b")], "3 different names"),
        ([instance(0, "a", "b", "b")], "3 different names"),
        ([instance(0, "a", "b", "c", kind="t3.nano")], "p5.48xlarge"),
        ([instance(0, "a", "b", "c"), instance(0, "a", "b", "c")], "twice"),
        ([instance(0, "a", "b", "c"), instance(1, "a", "d", "c")], "one place"),
        ([{"InstanceType": "p5.48xlarge"}], "an id"),
    ],
)
def test_mistakes_name_the_instance(
    tmp_path: Path, instances: list[dict[str, Any]], words: str
) -> None:
    """What is wrong with the file, and what was expected."""
    with pytest.raises(InputError, match=words):
        importers.read(written(tmp_path, *instances), "ec2_topology")
