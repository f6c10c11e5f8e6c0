"""A host that prestep knows is the same host whichever file it comes in: rates, NVLink SHARP, times of collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.errors import InputError
from prestep.sim.exchanges.collective import collective
from prestep.topologies import load_cluster
from prestep.topologies.files import importers
from prestep.topologies.files.gpu_links import contradictions
from tests.topologies.importers.test_ec2_topology import instance

GPUS = 8


def nccl_xml(
    device: str = "0x2330", links: str = "nvlink", gpu: str = 'sm="90"'
) -> str:
    """A host of eight GPUs as NCCL (or RCCL, with `xgmi`) writes it, each beside a NIC of 400 Gbit/s."""
    slot = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    lines = ['<system version="1">']
    for cpu in range(2):
        lines.append(
            f'<cpu numaid="{cpu}" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
        )
        for at in range(4 * cpu, 4 * cpu + 4):
            if links == "nvlink":
                ends = [
                    (f"0000:f{switch}:00.0", count, "0x068000")
                    for switch, count in enumerate((5, 4, 4, 5))
                ]
            else:
                ends = [
                    (f"0000:{other}1:00.0", 1, "0x120000")
                    for other in range(GPUS)
                    if other != at
                ]
            inner = "".join(
                f'<{links} target="{end}" count="{count}" tclass="{kind}"/>'
                for end, count, kind in ends
            )
            lines += [
                f'<pci busid="0000:{at}0:00.0" class="0x060400" {slot}>',
                f'<pci busid="0000:{at}1:00.0" class="0x030200" {device and f"device={chr(34)}{device}{chr(34)}"} {slot}>',
                f'<gpu dev="{at}" {gpu} rank="{at}" gdr="1">{inner}</gpu></pci>',
                f'<pci busid="0000:{at}2:00.0" class="0x020000" {slot}>',
                f'<nic><net name="mlx5_{at}" dev="{at}" speed="400000" port="1"/></nic></pci></pci>',
            ]
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"])


def nvidia_smi() -> str:
    """The matrix of the same host."""
    names = [f"GPU{at}" for at in range(GPUS)] + [f"NIC{at}" for at in range(GPUS)]
    rows = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for row, name in enumerate(names):
        cells = []
        for column in range(2 * GPUS):
            apart = "NODE" if row % GPUS // 4 == column % GPUS // 4 else "SYS"
            near = "PIX" if row % GPUS == column % GPUS else apart
            both = row < GPUS and column < GPUS
            cells.append("X" if row == column else "NV18" if both else near)
        affinity = ["0-31", str(row // 4)] if row < GPUS else []
        rows.append("\t".join([name, *cells, *affinity]))
    return "\n".join(rows) + "\n"


def fat_tree(gpu: str) -> str:
    """A cluster file of three keys."""
    return f'family = "fat_tree"\ngpu = "{gpu}"\nhosts = {{ value = 4, evidence = "guess", source = "mine" }}\n'


def ec2(kind: str) -> str:
    """Two instances under one switch."""
    return json.dumps(
        {"Instances": [instance(at, "a", "b", "c", kind=kind) for at in range(2)]}
    )


def times(cluster: str) -> list[float]:
    """Seconds of all-reduces and sends of 8 B and 128 MiB among the GPUs of a host."""
    sizes = [("all_reduce", "8"), ("all_reduce", "128MiB"), ("sendrecv", "128MiB")]
    rows = [
        collective(cluster, op, min_bytes=size, max_bytes=size, ranks=GPUS)
        for op, size in sizes
    ]
    return [row.to_json()[0]["time"] for row in rows]


@pytest.mark.parametrize(
    ("file", "text", "bundled"),
    [
        ("topo.xml", nccl_xml(), "dgx-h100"),
        ("smi.txt", nvidia_smi(), "dgx-h100"),
        ("slurm.conf", "SwitchName=s1 Nodes=n[1-2]\n", "dgx-h100"),
        ("fat.toml", fat_tree("h100"), "dgx-h100"),
        ("fat.toml", fat_tree("b200"), "dgx-b200"),
        ("ec2.json", ec2("p5.48xlarge"), "aws-p5"),
        ("ec2.json", ec2("p4de.24xlarge"), "aws-p4de"),
        ("rccl.xml", nccl_xml("0x74a1", "xgmi", 'sm="304" gcn="gfx942"'), "mi300x"),
    ],
)
def test_a_known_host_is_the_bundled_one(
    tmp_path: Path, file: str, text: str, bundled: str
) -> None:
    """To 1e-9, where a file says the same of its GPUs, links and NICs; what was assumed names the bundled cluster."""
    path = tmp_path / file
    path.write_text(text)
    assert times(str(path)) == pytest.approx(times(bundled), rel=1e-9)
    fabric, known = load_cluster(path), load_cluster(bundled)
    assert fabric.gpu_model == known.gpu_model
    assert fabric.cluster_facts.nvlink_sharp == known.cluster_facts.nvlink_sharp
    assert fabric.cluster_facts.host_memory == known.cluster_facts.host_memory
    assert any(bundled in note for note in importers.notes(fabric))


@pytest.mark.parametrize("host", ["dgx-b200", "mi300x"])
def test_a_named_host_stands_in_a_file_that_only_names_hosts(
    tmp_path: Path, host: str
) -> None:
    """Its GPUs and links are those of the bundled host, imported or extended; a file with hosts of its own refuses it."""
    (tmp_path / "slurm.conf").write_text("SwitchName=s1 Nodes=n[1-2]\n")
    ours, imported = tmp_path / "ours.toml", tmp_path / "ours.json"
    ours.write_text(f'extends = "slurm.conf"\nhost = "{host}"\ndescription = "ours"\n')
    words = ["topology", "import", str(tmp_path / "slurm.conf"), "--host", host]
    made = CliRunner().invoke(main, [*words, "-o", str(imported)])
    assert made.exit_code == 0, made.output
    assert times(str(ours)) == pytest.approx(times(host), rel=1e-9)
    assert times(str(imported)) == pytest.approx(times(host), rel=1e-9)
    (tmp_path / "topo.xml").write_text(nccl_xml())
    with pytest.raises(InputError, match="says what its hosts are"):
        importers.read(tmp_path / "topo.xml", host=host)
    with pytest.raises(InputError, match="dgx-h100"):
        importers.read(tmp_path / "slurm.conf", host="dgx-h10")


def test_half_a_board_is_no_known_host(tmp_path: Path) -> None:
    """Four of eight GPUs may be a virtual machine's, without multicast: nothing is said of NVLink SHARP."""
    path = tmp_path / "topo.xml"
    whole = nccl_xml().splitlines()
    path.write_text("\n".join([*whole[: len(whole) // 2], "</system>"]))
    assert load_cluster(path).cluster_facts.nvlink_sharp is None


@pytest.mark.parametrize(
    ("device", "gpu", "model"),
    [
        ("0x74a5", 'sm="304" gcn="942"', "mi325x"),
        ("", 'sm="304" gcn="gfx942:sramecc+"', "mi300x"),
        ("", 'sm="256" gcn="gfx950"', "mi355x"),
        ("0x2335", 'sm="90"', "h200"),
    ],
)
def test_the_gpu_of_a_file_is_that_gpu(
    tmp_path: Path, device: str, gpu: str, model: str
) -> None:
    """AMD's by device or by architecture, whatever `sm` says: RCCL has compute units there."""
    path = tmp_path / "topo.xml"
    path.write_text(nccl_xml(device, "xgmi" if "gcn" in gpu else "nvlink", gpu))
    assert load_cluster(path).gpu_model == model


@pytest.mark.parametrize(
    "gpu", ['sm="61"', 'sm="304" gcn="gfx906"', 'sm="228" gcn="940"']
)
def test_an_unknown_gpu_is_refused(tmp_path: Path, gpu: str) -> None:
    """No other GPU's times are taken for it, and the error says how to name it."""
    path = tmp_path / "topo.xml"
    path.write_text(nccl_xml("", "xgmi", gpu))
    with pytest.raises(
        InputError, match=r"a GPU that is not known .*device=\"0x2330\""
    ):
        load_cluster(path)


@pytest.mark.parametrize(
    ("gpu", "extends", "words"),
    [
        ("b200", "dgx-h100", "NVLinks of 25 GB/s at a b200, whose have 50 GB/s"),
        ("h100", "dgx-b200", "NVLinks of 50 GB/s at a h100, whose have 25 GB/s"),
        ("a100", "dgx-h100", "18 NVLinks at a a100, which has 12"),
        ("l40s", "dgx-h100", "NVLinks of 25 GB/s at a l40s, which has none"),
        ("mi300x", "dgx-h100", "NVLinks of 25 GB/s at a mi300x"),
    ],
)
def test_links_that_a_gpu_does_not_have_are_named(
    tmp_path: Path, gpu: str, extends: str, words: str
) -> None:
    """By `topology check`, which calls no such cluster good; datasheets of the GPUs are what it goes by."""
    path = tmp_path / "hall.toml"
    path.write_text(f'extends = "{extends}"\ngpu = "{gpu}"\n')
    result = CliRunner().invoke(main, ["topology", "check", str(path)])
    assert words in result.output
    assert "good" not in result.output.splitlines()[0]


@pytest.mark.parametrize(
    "name",
    ["dgx-h100", "dgx-2", "dgx-1v", "hgx-h800", "gb200-nvl4", "mi355x", "l40s-host"],
)
def test_bundled_clusters_have_the_links_of_their_gpus(name: str) -> None:
    """Switches, meshes of cables, fewer links and none."""
    assert contradictions(load_cluster(name)) == []


def test_check_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    """A GPU without times is a mistake of both."""
    path = tmp_path / "topo.xml"
    path.write_text(nccl_xml("0x2204", gpu='sm="86"'))
    for command in (
        ["topology", "check", str(path)],
        ["collective", "--cluster", str(path), "--op", "all_reduce"],
    ):
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, "rtx3090" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        ("", "0", 12e9),
        ("Unknown speed", "16", 12e9),
        ("16.0 GT/s PCIe", "", 24e9),
        ("", "8", 6e9),
    ],
)
def test_empty_slots_of_virtual_machines_are_nccls_defaults(
    tmp_path: Path, speed: str, width: str, rate: float
) -> None:
    """topo.cc: lanes x 100 Mbit/s x 60 (8 GT/s) or 120 (16 GT/s) / 80, 16 lanes for none; and it is noted."""
    path = tmp_path / "topo.xml"
    slot = f'link_speed="{speed}" link_width="{width}"'
    path.write_text(
        f'<system><cpu numaid="0"><pci busid="1:0" class="0x030200" device="0x1db5" {slot}>'
        f'<gpu dev="0" sm="70" rank="0"/></pci></cpu></system>'
    )
    fabric = load_cluster(path)
    assert fabric.links.bandwidth[fabric.links.index["cpu0", "gpu0"]] == pytest.approx(
        rate
    )
    assert any("as NCCL does" in note for note in importers.notes(fabric))
