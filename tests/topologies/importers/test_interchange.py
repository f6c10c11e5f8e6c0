"""Formats are found by content; import, export and check say what they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim import plugins
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.files import importers, interchange
from tests.sample import together

PACKAGE = "prestep.topologies.files.importers"


@together("name", importers.formats())
def test_every_importer_sniffs_and_reads(name: str, tmp_path: Path) -> None:
    """Both functions, no format takes an empty file for its own, and a missing file is an error that names it."""
    assert plugins.load_function(PACKAGE, name, "sniff")("") is False
    for wrong in ("", "{", "<x", "a: [", "1 2 3\n"):
        path = tmp_path / "wrong"
        path.write_text(wrong)
        with pytest.raises(InputError, match="wrong"):
            importers.read(path, name)
    with pytest.raises(InputError, match="missing: found No such file"):
        importers.read(tmp_path / "missing", name)


def test_an_unknown_file_lists_the_formats(tmp_path: Path) -> None:
    """And shows how the file starts."""
    path = tmp_path / "a.txt"
    path.write_text("hello  world")
    with pytest.raises(
        InputError,
        match='starts with "hello world", expected one of astra_sim, ec2_topology, graphml',
    ):
        importers.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="bytes that are no text"):
        importers.read(path)


def test_an_import_is_a_cluster_from_then_on(tmp_path: Path) -> None:
    """Written as JSON, with its notes; `check` prints them and the tiers."""
    given = tmp_path / "n.yml"
    given.write_text(
        "topology: [ Switch ]\nnpus_count: [ 4 ]\nbandwidth: [ 400.0 ]\nlatency: [ 900.0 ]\n"
    )
    fabric, written, notes = interchange.import_file(given, tmp_path / "mine.json")
    assert written.is_file()
    assert importers.notes(load_cluster(written)) == notes != []
    assert len(load_cluster(written).gpus) == len(fabric.gpus) == 4
    text = interchange.report_of(load_cluster(written), str(written))
    assert "good: 1 host, 4 GPUs, 4 links" in text
    assert "switch: joins 4" in text
    assert "assumed: GPU model" in text
    with pytest.raises(InputError, match="hosts: found 3, expected 1, as in the file"):
        load_cluster(written, hosts=3)
    with pytest.raises(InputError, match=r"gone\.json: found no such file"):
        load_cluster(tmp_path / "gone.json")


def test_gpus_that_only_gpus_join_are_unreachable(tmp_path: Path) -> None:
    """A chain of three GPUs hangs together, but no bytes pass through the middle one."""
    gpus = "".join(
        f'<pci busid="0:{at}" class="0x030200" link_speed="16.0 GT/s" link_width="16"/>'
        for at in range(3)
    )
    path = tmp_path / "x.xml"
    path.write_text(f'<system><cpu numaid="0">{gpus}</cpu></system>')
    good = importers.read(path)
    assert not interchange.unroutable(good, "x")
    graph = good.graph.copy()
    graph.remove_nodes_from(["cpu0", "memory0"])
    for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu2")):
        for ends in ((a, b), (b, a)):
            graph.add_edge(*ends, kind="nvlink", bandwidth=1e9, latency=1e-6)
    [mistake] = interchange.unroutable(type(good).from_graph(graph), "x")
    assert (mistake.key, mistake.found) == ("gpu2", "no path from gpu0")


def test_export_needs_a_format(tmp_path: Path) -> None:
    """By suffix or by name; a wrong one lists those there are; nothing replaces the input."""
    fabric = load_cluster("gh200")
    assert interchange.writers() == ["graphml", "infragraph", "node_link"]
    with pytest.raises(InputError, match="or --format"):
        interchange.export_file(fabric, tmp_path / "a.txt")
    with pytest.raises(InputError, match='did you mean "graphml"'):
        interchange.export_file(fabric, tmp_path / "a.txt", "graphm")
    with pytest.raises(InputError, match=r"no/where\.json"):
        interchange.export_file(fabric, tmp_path / "no" / "where.json")
    path = tmp_path / "a.json"
    interchange.export_file(fabric, path, "json")
    with pytest.raises(InputError, match="expected another file"):
        interchange.import_file(path, path)
