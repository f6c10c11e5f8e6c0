"""nvidia-smi, Slurm and ibnetdiscover: structure from text, and errors by row and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.topologies.files import importers
from prestep.topologies.files.importers._text import Source
from prestep.topologies.foreign import ibnetdiscover, nvidia_smi, slurm
from tests.sample import together

SMI = """
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    PIX     0-31    0               N/A
GPU1    NV18     X      NV18    NV18    NODE    0-31    0               N/A
GPU2    NV18    NV18     X      NV18    SYS     32-63   1               N/A
GPU3    NV18    NV18    NV18     X      SYS     32-63   1               N/A
NIC0    PIX     NODE    SYS     SYS      X

Legend:
  X    = Self
"""
TREE = """# a comment
SwitchName=top Switches=s[1-2] LinkSpeed=100
SwitchName=s1 Nodes=n[01-02]
switchname=s2 nodes=n[03,05]
"""
YAML = """---
- topology: one
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[1-2]
      - switch: s1
        nodes: n[01-02]
      - switch: s2   # a comment
        nodes: "n[03,05]"
"""
IB = """vendid=0x2c9
Switch	64 "S-a"		# "MF0;leaf-1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-1"[1](1) 		# "node-1 mlx5_0" lid 5 4xNDR
[2]	"H-2"[1](2) 		# "node-1 mlx5_1" lid 6 4xNDR
[3]	"S-b"[1]		# "MF0;spine-1:MQM9700/U1" lid 3 4xNDR
[4]	"S-b"[2]		# "MF0;spine-1:MQM9700/U1" lid 3 4xNDR
[5]	"H-9"[1](9) 		# "Mellanox Technologies Aggregation Node" lid 9 4xNDR

Switch	64 "S-c"		# "MF0;leaf-2:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[1]	"H-3"[1](3) 		# "node-2 mlx5_0" lid 7 4xHDR
[3]	"S-b"[3]		# "MF0;spine-1:MQM9700/U1" lid 3 4xNDR

Switch	64 "S-b"		# "MF0;spine-1:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[1]	"S-a"[3]		# "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
[2]	"S-a"[4]		# "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
[3]	"S-c"[3]		# "MF0;leaf-2:MQM9700/U1" lid 2 4xNDR

Ca	1 "H-1"		# "node-1 mlx5_0"
[1](1) 	"S-a"[1]		# lid 5 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR

Ca	1 "H-2"		# "node-1 mlx5_1"
[1](2) 	"S-a"[2]		# lid 6 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR

Ca	1 "H-3"		# "node-2 mlx5_0"
[1](3) 	"S-c"[1]		# lid 7 lmc 0 "MF0;leaf-2:MQM9700/U1" lid 2 4xHDR

Ca	1 "H-9"		# "Mellanox Technologies Aggregation Node"
[1](9) 	"S-a"[5]		# lid 9 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
"""


def written(tmp_path: Path, text: str, name: str = "in.txt") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_nvidia_smi_matrix_becomes_a_host(tmp_path: Path) -> None:
    """More NVLinks than a GPU has means a switch; PIX is a PCIe switch; NUMA affinity gives the CPU."""
    fabric = importers.read(written(tmp_path, SMI))
    links = fabric.links
    assert fabric.family == "nvidia_smi"
    assert links.count[links.of_kind("nvlink")].tolist() == [18] * 8
    assert links.dst[fabric.route("gpu0", "nic0")].tolist() == ["pcieswitch0", "nic0"]
    assert links.dst[fabric.route("memory1", "gpu2")].tolist() == ["cpu1", "gpu2"]
    assert fabric.nearest("gpu1", "memory") == "memory0"


def test_nvidia_smi_few_links_are_direct(tmp_path: Path) -> None:
    """Two GPUs with NV4 have four cables between them and no switch; escape codes do not matter."""
    text = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t0-7\t0\n"
    links = nvidia_smi.read(written(tmp_path, text)).links
    assert links.count[links.index["gpu0", "gpu1"]] == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NODE", "NOD", r'row GPU1, column NIC0: found "NOD", expected NV#, X, SYS'),
        (
            "GPU3    NV18    NV18    NV18     X      SYS",
            "GPU3    NV18",
            "row GPU3: found 4 entries, expected 5",
        ),
        (
            "GPU2    NV18    NV18     X      NV18    SYS     32-63   1",
            "",
            "row GPU2: found no such row",
        ),
        (
            "GPU1    NV18",
            "GPU1    NV12",
            r'row GPU1, column GPU0: found "NV12", expected "NV18"',
        ),
    ],
)
def test_nvidia_smi_wrong_entries_are_told_by_row(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Row and column."""
    with pytest.raises(InputError, match=message):
        nvidia_smi.read(written(tmp_path, SMI.replace(old, new)))


@pytest.mark.parametrize("text", [TREE, YAML])
def test_slurm_tree_has_as_much_up_as_down(tmp_path: Path, text: str) -> None:
    """Four hosts of eight NICs, two leaves with 16 cables up each; conf and YAML say the same."""
    fabric = importers.read(written(tmp_path, text))
    links = fabric.links
    assert fabric.hosts == ("n01", "n02", "n03", "n05")
    assert len(fabric.gpus) == 32
    assert links.count[links.index["s1", "top"]] == 16
    assert fabric.nodes.of_kind("leaf") == ("s1", "s2")
    assert fabric.nodes.of_kind("spine") == ("top",)
    route = links.dst[fabric.route("n01/gpu0", "n05/gpu7")].tolist()
    assert route[2:5] == ["s1", "top", "s2"]
    assert any(note.startswith("assumed: hosts") for note in importers.notes(fabric))


def test_slurm_blocks_stand_under_one_switch(tmp_path: Path) -> None:
    """Blocks only say which nodes are close, so a switch over them is assumed."""
    fabric = slurm.read(
        written(
            tmp_path,
            "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n",
        ),
        gpus=1,
    )
    assert len(fabric.gpus) == 4
    assert any("over the blocks" in note for note in importers.notes(fabric))


def test_slurm_host_lists_expand_as_slurms_do() -> None:
    """Leading zeros stay, several brackets multiply."""
    source = Source("t.conf")
    assert slurm.expand(source, "", "tux[0-2,12]x,a") == [
        "tux0x",
        "tux1x",
        "tux2x",
        "tux12x",
        "a",
    ]
    assert slurm.expand(source, "", "r[1-2]n[08-09]") == [
        "r1n08",
        "r1n09",
        "r2n08",
        "r2n09",
    ]
    assert slurm.expand(source, "", "") == []
    for wrong in ("a[3-1]", "a[x]", "a[1", "a[]", f"a[1-{'9' * 5001}]"):
        with pytest.raises(InputError, match=r"t\.conf: line 1"):
            slurm.expand(source, "line 1", wrong)


@together(
    ("text", "message"),
    [
        (
            "SwitchName=a Switches=b",
            'line 1: a: found the switch "b", expected a switch of the file',
        ),
        (
            "SwitchName=a Switches=b\nSwitchName=b Switches=a",
            "found a > b > a, expected switches that do not contain",
        ),
        ("SwitchName=a", "line 1: a: found neither switches nor nodes"),
        ("SwitchName=a Nods=x", r'line 1: found "Nods=x".*did you mean "nodes"'),
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y", 'line 2: found a second "a"'),
        (
            "SwitchName=a Nodes=x\nSwitchName=b Nodes=y",
            "y/gpu0: found no path from x/gpu0",
        ),
        ("- topology: x\n  flat: true", "found no tree and no block"),
        (
            "- topology: x\n  tree:\n    switches:\n      - nodes: a",
            r'tree.switches\[0\]: found no "switch"',
        ),
    ],
)
def test_slurm_wrong_files_are_told_by_line(
    tmp_path: Path, text: str, message: str
) -> None:
    """Switches that are not there, circles, nodes that nothing joins."""
    with pytest.raises(InputError, match=message):
        slurm.read(written(tmp_path, text + "\n"), gpus=2)


def test_ibnetdiscover_finds_hosts_tiers_and_speeds(tmp_path: Path) -> None:
    """Adapters of one name are one host; parallel cables are one link; aggregation nodes are no hosts."""
    fabric = importers.read(written(tmp_path, IB))
    links = fabric.links
    assert fabric.hosts == ("node-1", "node-2")
    assert len(fabric.gpus) == 3
    assert fabric.nodes.of_kind("leaf") == ("leaf-1", "leaf-2")
    assert fabric.nodes.of_kind("spine") == ("spine-1",)
    row = links.index["leaf-1", "spine-1"]
    assert (links.count[row], links.bandwidth[row]) == (2, pytest.approx(100e9))
    assert links.bandwidth[links.index["node-2/nic0", "leaf-2"]] == pytest.approx(25e9)
    assert any(
        note.startswith("dropped: aggregation nodes")
        for note in importers.notes(fabric)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "4xHDR",
            "4xABC",
            r'line 10: found ".*4xABC", expected a width and a speed of SDR',
        ),
        (
            '"S-b"[3]',
            '"S-z"[3]',
            r'line 9: S-c\[3\]: found a cable to "S-z", expected a listed device',
        ),
        ('[1]\t"H-1"', '[1]\t"H-1', 'line 3: found "'),
        ('Ca\t1 "H-3"', "Ca\t1 H-3", 'line 24: found "Ca'),
    ],
)
def test_ibnetdiscover_wrong_lines_are_told(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """By number."""
    with pytest.raises(InputError, match=message):
        ibnetdiscover.read(written(tmp_path, IB.replace(old, new)))
