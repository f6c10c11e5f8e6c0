"""`prestep search` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli

TEXT = """[cluster]
name = "dgx-h100"
gpus = 2
[model]
kind = "transformer"
hidden = 1024
layers = 2
heads = 8
ffn = 2816
vocab = 32000
[training]
seq_len = 1024
global_batch = 4
framework = "megatron"
"""


def call(tmp_path: Path, *arguments: str, text: str = TEXT) -> Any:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return CliRunner().invoke(
        cli.main, ["search", str(path), "--jobs", "1", *arguments]
    )


def test_a_table_with_reasons(tmp_path: Path) -> None:
    """The layouts ranked, each with what bounds it and what the next one loses, then what became of the others."""
    done = call(tmp_path, "--top", "2", "--price", "2")
    assert done.exit_code == 0, done.output
    answer, _, head, *lines = done.stdout.splitlines()
    assert answer.startswith("The fastest layout that fits: ")
    assert head.split()[:3] == ["layout", "step", "time"] and "per 1M" in head
    two = next(at for at, line in enumerate(lines) if line.startswith("2  "))
    first, second = " ".join(lines[:two]), " ".join(lines[two:])
    assert first.startswith("1  ") and "compute" in first and "the next is" in first
    assert "the next" not in second
    assert max(map(len, lines)) <= 100
    assert "valid layouts of 4 samples a step" in done.stdout


def test_the_json_agrees_with_run(tmp_path: Path) -> None:
    """`--write` writes the best, and `prestep run` predicts for it what the search said."""
    best = tmp_path / "best.toml"
    done = call(
        tmp_path, "--json", "--top", "1", "--write", str(best), "--price", "3.6"
    )
    said = json.loads(done.stdout)["ranked"][0]
    run = json.loads(CliRunner().invoke(cli.main, ["run", str(best), "--json"]).stdout)
    for key in ("step_time", "mfu", "tokens_per_second_per_gpu", "out_of_memory"):
        assert run[key] == said[key], key
    assert said["cost_per_million_tokens"] == pytest.approx(
        1e3 / said["tokens_per_second_per_gpu"]
    )
    assert f"wrote {best}" in done.stderr


def test_what_is_pinned_is_kept(tmp_path: Path) -> None:
    """--set pins a key of the layout and --over restricts another."""
    done = call(
        tmp_path,
        "--json",
        "--set",
        "parallel.tp=2",
        "--over",
        "training.recompute=full,selective",
    )
    ranked = json.loads(done.stdout)["ranked"]
    assert ranked and {one["changes"]["parallel.tp"] for one in ranked} == {2}
    assert {one["changes"]["training.recompute"] for one in ranked} <= {
        "full",
        "selective",
    }


def test_other_keys_are_combined(tmp_path: Path) -> None:
    """A key that is no part of a layout is tried with all of them, and named."""
    done = call(
        tmp_path,
        "--top",
        "50",
        "--over",
        "cluster.gpus=1,2",
        "--over",
        "nvlink.bandwidth=1x,0.1x",
        "--over",
        "parallel.pp=1",
    )
    assert "cluster.gpus=1" in done.stdout and "nvlink.bandwidth=0.1x" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--over", "parallel.tpp=1"), 'did you mean "parallel.tp"|unknown key'),
        (("--over", "parallel.tp=x"), "parallel.tp"),
        (("--over", "training.microbatches=2"), "training.microbatches"),
        (("--set", "training.seq_len=-1"), "training.seq_len"),
        (("--write", "nowhere/best.toml"), "nowhere"),
        (("--set", "model.name=nothing"), "model"),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    """Exit code 2, a located message, nothing on stdout."""
    done = call(tmp_path, *arguments)
    assert done.exit_code == 2 and not done.stdout
    assert any(part in done.stderr for part in told.split("|")), done.stderr


def test_a_batch_that_nobody_says_is_told(tmp_path: Path) -> None:
    """Without a global batch that of the file's layout is taken, and said on stderr."""
    done = call(
        tmp_path, "--top", "1", text=TEXT.replace("global_batch = 4", "micro_batch = 2")
    )
    assert (
        done.exit_code == 0
        and "no training.global_batch: 2 samples a step" in done.stderr
    )
    assert "global_batch" not in call(tmp_path, "--top", "1").stderr


def test_the_scenario_itself_is_not_written_over(tmp_path: Path) -> None:
    """--write into the searched file is refused before the work."""
    done = call(tmp_path, "--write", str(tmp_path / "s.toml"))
    assert done.exit_code == 2 and (tmp_path / "s.toml").read_text() == TEXT


def test_nothing_is_possible(tmp_path: Path) -> None:
    """A sequence that the model cannot take leaves no layout: exit code 1, and why."""
    done = call(
        tmp_path, "--set", "model.positions=learned", "--set", "model.max_positions=512"
    )
    assert done.exit_code == 1
    assert "no layout is possible" in done.stdout and "max_positions" in done.stdout
