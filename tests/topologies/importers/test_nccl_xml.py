"""NCCL's topology XML: structure, rates, and errors that name the element."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl.system import of_parts, parts_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation
from prestep.sim.errors import InputError
from prestep.topologies.files import importers
from prestep.topologies.foreign import nccl_xml
from tests.sample import together

HOST = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:08:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0f:00.0" class="0x030200" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:aa:00.0" count="10" tclass="0x068000"/>
          <nvlink target="0000:bb:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:10:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:8f:00.0" class="0x030200" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:aa:00.0" count="10" tclass="0x068000"/>
        <nvlink target="0000:bb:00.0" count="8" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "host.xml"
    path.write_text(text)
    return path


def test_a_dump_becomes_a_host(tmp_path: Path) -> None:
    """GPUs in rank order, NVSwitches by their bus ids, NICs with the speed of their port."""
    fabric = importers.read(written(tmp_path, HOST))
    links = fabric.links
    assert (fabric.name, fabric.family, fabric.gpu_model) == (
        "host",
        "nccl_xml",
        "h100",
    )
    assert fabric.gpus == ("gpu0", "gpu1")
    assert [path[1] for path in fabric.routes("gpu0", "gpu1")] == pytest.approx(
        [10 / 18, 8 / 18]
    )
    assert links.bandwidth[links.index["gpu0", "nvswitch0"]] == pytest.approx(
        10 * 20.6e9
    )
    assert links.raw[links.index["gpu0", "nvswitch0"]] == pytest.approx(250e9)
    assert links.bandwidth[links.index["nic0", "network"]] == pytest.approx(50e9)
    stops = links.dst[fabric.route("memory1", "gpu0")].tolist()
    assert stops == ["cpu1", "cpu0", "pcieswitch0", "gpu0"]
    assert links.bandwidth[links.index["cpu1", "gpu1"]] == pytest.approx(48e9)


def test_what_the_file_does_not_say_is_noted(tmp_path: Path) -> None:
    """Widths of 0, memories, latencies and links between sockets are assumptions."""
    notes = importers.notes(importers.read(written(tmp_path, HOST)))
    for word in (
        "width of a PCIe slot",
        "memory",
        "latencies",
        "links between sockets",
    ):
        assert any(note.startswith(f"assumed: {word}") for note in notes), word


def test_links_between_gpus_count_once(tmp_path: Path) -> None:
    """Both ends list the NVLinks to each other."""
    gpu = '<pci busid="{a}" class="0x030200" link_speed="16.0 GT/s" link_width="16"><gpu dev="{n}" sm="80"><nvlink target="{b}" count="4" tclass="0x030200"/></gpu></pci>'
    pair = gpu.format(a="0:1", b="0:2", n=0) + gpu.format(a="0:2", b="0:1", n=1)
    links = nccl_xml.read(
        written(tmp_path, f'<system><cpu numaid="0">{pair}</cpu></system>')
    ).links
    rows = links.of_kind("nvlink")
    assert links.count[rows].tolist() == [4, 4]
    assert links.bandwidth[rows[0]] == pytest.approx(80e9)


def test_grace_joins_its_gpu_by_c2c_only(tmp_path: Path) -> None:
    """A <c2c> takes the place of the PCIe slot."""
    text = '<system><cpu numaid="0" arch="arm64"><pci busid="9:1" class="0x030200" link_speed="32.0 GT/s" link_width="16"><gpu dev="0" sm="90"><c2c bw="44700" count="10"/></gpu></pci></cpu></system>'
    links = nccl_xml.read(written(tmp_path, text)).links
    row = links.index["cpu0", "gpu0"]
    assert (links.kind[row], links.bandwidth[row]) == ("c2c", pytest.approx(447e9))


@pytest.mark.parametrize(
    ("vendor", "amd"),
    [('vendor="AuthenticAMD"', True), ('vendor="GenuineIntel"', False), ("", None)],
)
def test_hosts_of_amd_are_searched_as_such(
    tmp_path: Path, vendor: str, amd: bool | None
) -> None:
    """Whose the CPUs are is a fact with the file as its source; NCCL searches AMD's ways differently from Intel's."""
    text = HOST.replace('vendor="GenuineIntel"', vendor)
    fabric = importers.read(written(tmp_path, text))
    assert fabric.cluster_facts.amd_cpu is amd
    if amd is not None:
        assert vendor.split('"')[1] in fabric.facts["amd_cpu"].source
    group = group_of(fabric, fabric.gpus, Nccl())
    system = of_parts(
        parts_of(fabric, group, group.hosts[0], generation.load("hopper").at((2, 20)))
    )
    assert system.amd is bool(amd)


def test_hosts_of_two_vendors_are_noted(tmp_path: Path) -> None:
    """One fact holds for the whole cluster: where only some CPUs are AMD's, it is not so, and a note says it."""
    text = HOST.replace("GenuineIntel", "AuthenticAMD", 1)
    fabric = importers.read(written(tmp_path, text))
    assert fabric.cluster_facts.amd_cpu is False
    assert any("one vendor of CPUs" in note for note in importers.notes(fabric))


@together(
    ("old", "new", "message"),
    [
        ('busid="0000:0f:00.0" ', "", r'<pci>: found no attribute "busid"'),
        ('busid="0000:0f:00.0" ', 'bussid="0000:0f:00.0" ', 'did you mean "bussid"'),
        (
            ' link_width="0"',
            "",
            r'<pci busid=0000:8f:00.0>: found no attribute "link_width"',
        ),
        (
            "32.0 GT/s",
            "33.0 GT/s",
            r'link_speed: found "33.0 GT/s PCIe", expected one of',
        ),
        ("32.0 GT/s", "-8 GT/s", "link_speed: found '-8'"),
        (
            'count="10"',
            'count="0"',
            r"<nvlink target=0000:aa:00.0> of gpu0.count: found '0'",
        ),
        ('sm="90"', "", r'<gpu dev=0>: found no attribute "sm"'),
        (
            'speed="400000"',
            'speed="-1"',
            r"<net name=mlx5_0>.speed: found '-1', expected a number above 0",
        ),
        ('speed="400000"', 'speed="fast"', r"<net name=mlx5_0>.speed: found 'fast'"),
        ("<nic>", "<nick>", "XML that does not parse .*mismatched tag: line 11"),
        ("<system", "<graphs", "XML that does not parse"),
        ("cpu", "cpux", "found no <cpu>"),
    ],
)
def test_wrong_files_are_told_by_element(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """File, element, what was found, what was expected; no traceback."""
    with pytest.raises(InputError, match=message) as caught:
        nccl_xml.read(written(tmp_path, HOST.replace(old, new)))
    assert all(mistake.where.endswith("host.xml") for mistake in caught.value.mistakes)


def test_a_dump_of_rings_is_not_a_topology(tmp_path: Path) -> None:
    """NCCL_GRAPH_DUMP_FILE is told apart."""
    with pytest.raises(InputError, match="NCCL_GRAPH_DUMP_FILE"):
        importers.read(written(tmp_path, '<graphs version="1"/>'))
