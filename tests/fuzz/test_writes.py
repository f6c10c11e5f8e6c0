"""What a command writes takes the place of the old file at the end, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster

TRACE = "lab/cases/traces/125m-ddp4-b4.default.rank0.pt.trace.json.gz"
ROOT = Path(cli.__file__).parent
COMMANDS = {
    "trace.json": ("run", "--trace", "OUT"),
    "trace.json.gz": ("run", "--trace", "OUT"),
    "step.html": ("run", "--report", "OUT"),
    "step.parquet": ("run", "--timeline", "OUT"),
    "bars.html": (
        "whatif",
        "llama1b-ddp4",
        "--each",
        "gpu",
        "--factors",
        "2",
        "--report",
        "OUT",
    ),
    "cluster.graphml": ("topology", "export", "h200-host-4", "-o", "OUT"),
    "cluster.json": ("topology", "export", "h200-host-4", "-o", "OUT"),
    "cluster.svg": ("topology", "show", "h200-host-4", "--svg", "OUT"),
    "copy.json.gz": ("convert", str(ROOT / TRACE), "-o", "OUT"),
    "copy.et": ("convert", str(ROOT / TRACE), "-o", "OUT"),
    "set.md": ("validate", "h200-straggler", "--jobs", "1", "--markdown", "OUT"),
}


@pytest.mark.usefixtures("known_reports")
@pytest.mark.parametrize("name", COMMANDS)
def test_an_old_file_survives_a_write_that_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full as the new file is to take its place: exit 2, the old one whole, nothing else in the folder."""
    out = tmp_path / name
    out.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = CliRunner().invoke(
        cli.main, [str(out) if word == "OUT" else word for word in COMMANDS[name]]
    )
    assert done.exit_code == 2, done.output
    assert "No space left" in done.stderr
    written = [path for path in tmp_path.iterdir() if path.name != name]
    assert out.read_text() == "old" or written == []
    assert not [path for path in written if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("cluster", "hosts"),
    [("rail-h100", 999_999_999), ("rail-h100", 40_000), ("dgx-h100-superpod", 2**40)],
)
def test_more_hosts_than_any_machine_are_refused(cluster: str, hosts: int) -> None:
    """By rule, before memory is taken for them."""
    with pytest.raises(InputError, match=r"hosts: found .*, expected at most"):
        load_cluster(cluster, hosts=hosts)
    done = CliRunner().invoke(
        cli.main,
        ["run", "--set", f"cluster.name={cluster}", "--set", f"cluster.hosts={hosts}"],
    )
    assert done.exit_code == 2
