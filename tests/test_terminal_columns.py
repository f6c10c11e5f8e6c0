"""What commands print on a terminal fits 80 columns, with the figures of thousands of GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.commands import _shared

COLUMNS = 80
LARGE = """
[cluster]
name = "dgx-h100-superpod"
hosts = 512
[model]
name = "llama3-70b"
layers = 8
[training]
framework = "megatron"
seq_len = 8192
micro_batch = 1
microbatches = 4
[parallel]
tp = 8
pp = 4
dp = 128
"""
HOSTS = ("--cluster", "dgx-h100-superpod", "--hosts", "512")
BYTES = ("--min-bytes", "256M", "--max-bytes", "1G")
COMMANDS = [
    ("run", "large.toml"),
    ("run", "large.toml", "--set", "training.micro_batch=64"),
    ("run", "large.toml", "--replicas", "2"),
    ("run", "missing.toml"),
    ("run", "large.toml", "--set", "paralel.tp=4096", "--set", "nvlink.bandwith=2x"),
    ("whatif", "large.toml", "--set", "spine.bandwidth=2x"),
    ("whatif", "mlp-ddp4", "--each", "link-kind,gpu"),
    ("collective", *HOSTS),
    ("collective", *HOSTS, *BYTES, "--explain"),
    ("collective", *HOSTS, *BYTES, "--op", "all_gather"),
    ("collective", *HOSTS, "--op", "init", "--explain"),
    ("topology", "show", "dgx-h100-superpod", "--hosts", "64"),
    ("topology", "show", "gb200-nvl72"),
    ("topology", "show", "dgx-h100", "--rings"),
    ("topology", "check", "dgx-h100-superpod"),
    ("list",),
    *(("list", what) for what in ("models", "clusters", "sets", "gpus", "scenarios")),
    ("search", "mlp-ddp4", "--top", "2", "--over", "parallel.tp=1"),
    ("sweep", "mlp-ddp4", "--grid", "nvlink.bandwidth=1x,2x", "-o", "out"),
    ("explain", "result.json"),
    ("doctor",),
    ("goodput", "mlp-ddp4", "--days", "3"),
    ("storage", "lustre"),
    ("kernel", "gemm", "16384,8192,131072", "--gpu", "h100"),
    ("schema", "--list"),
    ("init", "llama3-8b", "--cluster", "dgx-h100-superpod", "--hosts", "32", "--seq-len", "8192", "--global-batch", "512"),
    ("import-recipe", "missing.yaml"),
    ("validate", "h101"),
    ("replay", "missing.json"),
    ("submit", "missing.jsonl"),
]  # fmt: skip
#: What prints an address, files that it wrote, or what a machine measures.
LEFT_OUT = {"calibrate", "capture", "convert", "explore", "mcp", "measure", "plot"}
# What cannot be folded: names of files, addresses, what is to be copied.
WHOLE = re.compile(r"\S{60,}")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A terminal of 80 columns, in a folder with a large scenario and what `run --json` said of it."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(
        _shared, "fitting", lambda text, stream: _shared.folded(text, COLUMNS)
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.toml").write_text(LARGE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_a_command_prints_fits_80_columns(
    terminal: Path, command: tuple[str, ...]
) -> None:
    """Pages, tables and mistakes alike."""
    if command[0] == "explain":
        said = CliRunner().invoke(cli.main, ["run", "large.toml", "--json"]).stdout
        assert json.loads(said)["step_time"] > 0
        (terminal / "result.json").write_text(said, encoding="utf-8")
    done = CliRunner().invoke(cli.main, list(command), terminal_width=COLUMNS)
    assert done.exit_code in (0, 1, 2) and done.output
    wide = [line for line in done.output.splitlines() if len(line) > COLUMNS]
    assert not [line for line in wide if not WHOLE.search(line)]


def test_every_command_is_looked_at() -> None:
    """Or is said to print nothing that could be wide."""
    names = set(cli.main.list_commands(click.Context(cli.main)))
    assert {command[0] for command in COMMANDS} | LEFT_OUT == names


@given(st.text("ab -/\n", max_size=400), st.integers(8, 100))
def test_folding_keeps_every_word_in_order(text: str, columns: int) -> None:
    """Lines are no longer than asked, but for a word that is; no word is lost, and a text that fits is left alone."""
    made = _shared.folded(text, columns)
    if not any(not line.strip("- .") for line in text.split("\n")):
        assert made.split() == text.split()
    for line in made.split("\n"):
        assert len(line) <= columns or max(map(len, line.split())) > columns - 2 - (
            len(line) - len(line.lstrip())
        )
    if all(len(line) <= columns for line in text.split("\n")):
        assert made == text
