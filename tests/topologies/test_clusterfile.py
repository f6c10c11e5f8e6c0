"""Cluster files: strict, and every mistake at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.collectives.wires import transport
from prestep.sim.errors import InputError
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.files import interchange
from prestep.topologies.show.summary import oversubscription
from tests.sample import together

GOOD = """
extends = "dgx-h100"
gpus = { value = 4, evidence = "guess", source = "a test" }
[nvlink]
latency = { value = "1 us", evidence = "guess", source = "a test" }
"""

BAD = """
extends = "dgx-h100"
gpu = 7
gpus = { value = 4 }
nvlnks = { value = [9, 9], evidence = "guess", source = "a test" }
sockets = { value = "two", evidence = "guess", source = "a test" }
nics = { value = 8, evidence = "hearsay", source = "" }
[pcie]
bandwidth = { value = 50, evidence = "measured", source = "a test" }
latencey = { value = "1 us", evidence = "measured", source = "a test" }
upstream = { value = "50 GB", evidence = "measured", origin = "a test" }
"""


def written(tmp_path: Path, text: str, name: str = "mine.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_may_extend_a_bundled_cluster(tmp_path: Path) -> None:
    """Its keys win, key by key; the rest stays."""
    fabric = load_cluster(written(tmp_path, GOOD))
    links = fabric.links
    assert fabric.name == "mine"
    assert len(fabric.gpus) == 4
    assert fabric.gpu_model == "h100"
    rows = links.of_kind("nvlink")
    assert set(links.latency[rows]) == {1e-6}
    assert set(links.evidence[rows]) == {"measured"}


HALL = """
family = "fat_tree"
gpu = "h100"
hosts = 32
hosts_per_leaf = 8
spines = 8
oversubscription = 2
[nic]
bandwidth = "%s"
"""


@pytest.mark.parametrize(
    ("payload", "wire"),
    [("48 GB/s", 50e9), ("400 Gbit/s", 50e9), ("23 GB/s", 25e9), ("97 GB/s", 100e9)],
)
def test_bare_values_are_guesses_of_the_file(
    tmp_path: Path, payload: str, wire: float
) -> None:
    """What a link leaves out is the known host's; its wire is that of a generation of ports, also above."""
    fabric = load_cluster(written(tmp_path, HALL % payload))
    assert set(fabric.links.raw[fabric.links.of_kind("nic")]) == {wire}
    assert {fabric.facts[key].evidence for key in ("hosts", "nic.bandwidth")} == {
        "guess"
    }
    assert "mine.toml" in fabric.facts["nic.bandwidth"].source
    assert str(oversubscription(fabric)[0]) == "leaf 2:1"


FASTER_SLOT = """
extends = "dgx-h200"
[pcie]
bandwidth = { value = "110 GB/s", evidence = "guess", source = "a test" }
raw = { value = "126 GB/s", evidence = "guess", source = "a test" }
"""


def test_a_bandwidth_that_is_replaced_is_replaced_both_ways(tmp_path: Path) -> None:
    """`upstream` belongs to the bandwidth beside which it stands: a file that says one alone says both."""
    fabric = load_cluster(written(tmp_path, FASTER_SLOT))
    both = {
        fabric.links.index["gpu0", "pcieswitch0"],
        fabric.links.index["pcieswitch0", "gpu0"],
    }
    assert set(fabric.links.bandwidth[list(both)]) == {110e9}


@together("name", cluster_names())
def test_no_gpu_has_a_narrower_way_to_its_adapter_than_the_adapter(name: str) -> None:
    """The GPUs that share a NIC reach it, together and both ways, as fast as it sends."""
    fabric = load_cluster(name)
    if "nic" not in fabric.nodes.kinds:
        return
    ports, links = dict(fabric.ports), fabric.links
    for gpu in fabric.gpus_by_host[fabric.hosts[0]]:
        for nic in transport.own_nics(fabric, gpu):
            sharing = len(fabric.all_nearest(nic, "gpu"))
            wire = links.bandwidth[links.index[nic, ports[nic]]]
            for ends in ((gpu, nic), (nic, gpu)):
                rows, share = fabric.spread(*ends)
                assert sharing * min(links.bandwidth[rows] / share) >= 0.999 * wire


def test_every_mistake_of_a_file_is_reported(tmp_path: Path) -> None:
    """With file, key, what was found and what to write instead."""
    path = written(tmp_path, BAD)
    with pytest.raises(InputError) as caught:
        load_cluster(path, hosts=2)
    mistakes = caught.value.mistakes
    assert {mistake.where for mistake in mistakes} == {str(path)}
    assert {mistake.key for mistake in mistakes} == {
        "gpu",
        "gpus",
        "nvlnks",
        "sockets",
        "nics.evidence",
        "nics.source",
        "pcie.bandwidth",
        "pcie.latencey",
        "pcie.upstream",
        "hosts",
    }
    text = str(caught.value)
    assert 'did you mean "nvlinks"?' in text
    assert 'did you mean "latency"?' in text
    assert "{ value = ..., evidence = ..., source = ... }" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "family: found nothing, expected one of .*host"),
        ('family = "hots"', 'did you mean "host"?'),
        ('family = "fabric"', 'family: found "fabric"'),
        (
            'extends = "mine.toml"',
            "extends: .*expected a file that does not extend this one",
        ),
        ('extends = "dgx-h10"', 'did you mean "dgx-h100"?'),
        ("family = ", "expected a cluster file in TOML"),
        (
            'family = "host"\ngpus = { value = 0, evidence = "guess", source = "a test" }',
            "mine.toml: gpus: found 0",
        ),
    ],
)
def test_files_that_cannot_be_built(tmp_path: Path, text: str, message: str) -> None:
    """The first thing wrong about what the file is."""
    with pytest.raises(InputError, match=message):
        load_cluster(written(tmp_path, text))


def test_a_file_extends_what_another_tool_wrote(tmp_path: Path) -> None:
    """Its facts and links are laid over; a kind of link that is not there, and other hosts, are refused."""
    host = load_cluster("dgx-h100")
    interchange.export_file(host, tmp_path / "host.json")
    text = 'extends = "host.json"\nhost_factor = 1.5\n[nvlink]\nbandwidth = "10 GB/s"\n'
    made = load_cluster(written(tmp_path, text))
    links = made.links
    rows = links.of_kind("nvlink")
    assert set(links.bandwidth[rows] / links.count[rows]) == {10e9}
    assert made.facts["host_factor"].value == 1.5
    assert made.facts["nvlink_sharp"] == host.facts["nvlink_sharp"]
    with pytest.raises(InputError, match=r'did you mean "nvlink"'):
        load_cluster(written(tmp_path, text.replace("[nvlink]", "[nvlinks]")))
    with pytest.raises(InputError, match="hosts: found 2, expected 1"):
        load_cluster(tmp_path / "mine.toml", hosts=2)


def test_names_and_files_that_do_not_exist() -> None:
    """A close name is suggested; a file is named."""
    with pytest.raises(InputError, match=r'did you mean "h200-host-4"\?'):
        load_cluster("h200-hosts-4")
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        load_cluster("nowhere.toml")
    assert {"h200-host-4", "h200-host-2", "dgx-h100", "dgx-h200"} <= set(
        cluster_names()
    )


def test_one_host_is_one_host_and_overrides_are_passed_on() -> None:
    """`hosts = 1` is what it is; more needs another family."""
    assert load_cluster("dgx-h100", hosts=1).hosts == ("host0",)
    with pytest.raises(InputError, match=r"hosts: found 16.*dgx-h100-superpod"):
        load_cluster("dgx-h100", hosts=16)
    half = load_cluster("dgx-h100", overrides={"nvlink.bandwidth": "0.5x"})
    assert half.links.bandwidth[0] == load_cluster("dgx-h100").links.bandwidth[0] / 2
