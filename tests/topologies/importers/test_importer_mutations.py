"""Files of every format with something wrong in them: a cluster, or a mistake that names the file; never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.files import importers, interchange
from tests.topologies.importers.test_ec2_topology import instance
from tests.topologies.importers.test_graph_formats import CLOS
from tests.topologies.importers.test_nccl_xml import HOST
from tests.topologies.importers.test_text_formats import IB, SMI, TREE, YAML

#: What a value of somebody else's file may be instead.
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 5, 2**63, 10**400, 1e308, float("nan"), "", "0", "x", "\0", "é" * 300, [], [[]], {}, {"a": 1},
)  # fmt: skip
WORDS = (
    "",
    "-1",
    "0",
    "9" * 400,
    "nan",
    "inf",
    "1e999",
    "\0",
    "é",
    "[",
    "]",
    '"',
    "<",
    "#",
    ":",
)
ASTRA = {
    "topology": ["Ring", "Switch"],
    "npus_count": [2, 2],
    "bandwidth": [1, 1],
    "latency": [1, 1],
}
NS3 = "3 1 2\n2\n2 0 400Gbps 0.0005ms 0\n2 1 200Gbps 1us 0\n"
EC2 = {"Instances": [instance(at, "a", "b", f"c{at}") for at in range(2)]}


def exported(folder: Path, format: str) -> str:
    """A small cluster as prestep itself writes it."""
    path = folder / "seed"
    interchange.export_file(load_cluster("h200-leafspine-2x2"), path, format)
    return path.read_text()


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Good files by format."""
    folder = tmp_path_factory.mktemp("seeds")
    return {
        "astra_sim": [json.dumps(ASTRA), NS3],
        "ec2_topology": [json.dumps(EC2)],
        "graphml": [exported(folder, "graphml")],
        "ibnetdiscover": [IB],
        "infragraph": [json.dumps(CLOS), exported(folder, "infragraph")],
        "nccl_xml": [HOST],
        "node_link": [exported(folder, "json")],
        "nvidia_smi": [SMI],
        "slurm": [TREE, YAML],
    }


def odd_value(text: str, draw: random.Random) -> str:
    """The JSON with one value, anywhere in it, that is another; text that is no JSON as it is."""
    try:
        tree: Any = [json.loads(text)]
    except ValueError:
        return text
    above, key = tree, 0
    # Down from the top, and on with a chance that leaves every depth its share.
    while isinstance(above[key], dict | list) and above[key] and draw.random() < 0.85:
        above = above[key]
        key = draw.choice(list(above) if isinstance(above, dict) else range(len(above)))
    if draw.random() < 0.2:
        del above[key]
    else:
        above[key] = draw.choice(ODD)
    return json.dumps(tree[0]) if tree else ""


def odd_word(text: str, draw: random.Random) -> str:
    """The text with one word of it gone, twice, or another."""
    words = text.split(" ")
    at = draw.randrange(len(words))
    words[at : at + 1] = draw.choice(
        [
            [],
            [words[at]] * 2,
            [draw.choice(WORDS)],
            [draw.choice(words)],
            [words[at][:-1]],
        ]
    )
    return " ".join(words)


def odd_digit(text: str, draw: random.Random) -> str:
    """The text with one of its numbers another one."""
    places = [at for at, letter in enumerate(text) if letter.isdecimal()]
    if not places:
        return text
    at = draw.choice(places)
    return text[:at] + draw.choice(WORDS) + text[at + 1 :]


CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    odd_value,
    odd_word,
    odd_digit,
)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.parametrize("format", importers.formats())
@given(
    seed=st.integers(0, 2**32),
    changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3),
)
def test_a_wrong_file_is_a_cluster_or_a_mistake(
    format: str,
    seeds: dict[str, list[str]],
    tmp_path: Path,
    seed: int,
    changes: list[Any],
) -> None:
    """What `topology import` takes, `topology check` calls good and a group of all GPUs can be planned on."""
    draw = random.Random(seed)
    text = draw.choice(seeds[format])
    for change in changes:
        text = change(text, draw)
    path = tmp_path / f"mutant.{draw.choice(['json', 'xml', 'txt'])}"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    try:
        fabric, written, _ = interchange.import_file(
            path, tmp_path / "out.json", format
        )
    except InputError as error:
        assert all(mistake.where for mistake in error.mistakes)
        return
    again = load_cluster(written)
    assert len(again.gpus) == len(fabric.gpus)
    interchange.report_of(again, str(written))
