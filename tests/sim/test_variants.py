"""Variants of a run: their figures are those that `prestep run` gives each, and all of a page is what it should be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab import CASES
from prestep.cli import main
from prestep.sim.exporters import html, markdown
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.variants import (
    Variant,
    parse_against,
    variant_scenario,
    variants_of,
)
from prestep.sim.tools.catalog import find_scenario
from prestep.topologies.files.bundled import place_of

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = "mlp-ddp4"
TRACE = str(CASES / "traces" / "125m-ddp4-b4.default.rank0.pt.trace.json.gz")
BASE = "training.micro_batch=64"
AGAINST = (
    "nvlink.bandwidth=0.5x",
    "dgx-h100",
    "training.micro_batch=32,gpu[0].clock=0.8x",
)


def printed(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def variants() -> list[Variant]:
    """A base with a change of its own, and three variants of it."""
    path = find_scenario(JOB)
    asked = [parse_against(text, path) for text in AGAINST]
    return variants_of(load_scenario(path, [BASE]), asked, [BASE])


def test_figures_are_those_of_run(variants: list[Variant]) -> None:
    """Of the base with its change, and of each variant with both."""
    for row in (variant.to_dict() for variant in variants):
        changes = [word for item in (BASE, *row["changes"]) for word in ("--set", item)]
        run = printed("run", JOB, *changes)
        assert row["step_time"] == run["step_time"]
        speed = run["tokens_per_second_per_gpu"] * run["scenario"]["gpus"]
        assert row["tokens_per_second"] == pytest.approx(speed)
        assert row["energy"] == run["energy"]["step_energy"]
        assert row["memory"] == run["out_of_memory"]["needed"]
        for end in ("low", "high"):
            assert row[end] == run["uncertainty"][end]
        near = run.get("expected_error") or {}
        assert row["expected_error"] == near.get("error")


def test_page_and_notes_have_every_variant(variants: list[Variant]) -> None:
    """With its name; the page refers to nothing outside, is small, and says what was run."""
    page = html.render(variants[0].result, variants=variants)
    notes = markdown.render(variants[0].result, variants)
    assert not re.search(r"(src|href)=\"(?!#|data:)", page) and len(page) < 3e6
    for name in AGAINST:
        assert name in page and name in notes
    assert "4 H200 on 1 host" in page and "4 H200 on 1 host" in notes


def test_a_cluster_takes_the_place_of_the_bases() -> None:
    """Named against a file, with as many GPUs; all other changes of the base stay."""
    path = EXAMPLES / "pretrain_llama3_70b.sh"
    hall = place_of(str(EXAMPLES / "clusters" / "hall.toml"))
    common = (hall, "cluster.hosts=32", "placement.by=scattered")
    asked, found = variant_scenario(parse_against("rail-h200", path), common, 256)
    assert (found.cluster.name, found.cluster.file) == ("rail-h200", None)
    assert "cluster.gpus=256" in asked.changes and found.placement.by == "scattered"
    elsewhere, _ = variant_scenario(parse_against("dgx-b200", path), common, 256)
    assert elsewhere.changes[-1] == "cluster.hosts=32"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--against", "no-such"], "KEY=VALUE, a cluster, or a file"),
        (
            ["--against", "nvlink.bandwith=2x", "--against", "parallel.dp=3"],
            "--against parallel.dp=3",
        ),
        (["--against", "dgx-h100", "--each", "gpu"], "one of them"),
        (["--set", "nvlink.bandwidth=2x", "--report", "page.pdf"], ".html"),
    ],
)
def test_mistakes_say_which_variant(
    words: list[str], told: str, tmp_path: Path
) -> None:
    """All at once, on stderr, with code 2."""
    done = CliRunner().invoke(main, ["whatif", JOB, *words])
    assert done.exit_code == 2 and not done.stdout
    assert told in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", JOB, "--grid", "nvlink.bandwidth=1x,2x", "-o", "out"],
        ["search", JOB, "--over", "parallel.tp=1", "--top", "2"],
        ["replay", TRACE],
        ["run", JOB],
    ],
)
def test_other_commands_write_reports(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a page and as Markdown, which begin with the same answer; another ending is refused before the work."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.html", "a.md"):
        done = CliRunner().invoke(main, [*words, "--report", name])
        assert done.exit_code == 0, done.output
    page, notes = (Path(name).read_text("utf-8") for name in ("a.html", "a.md"))
    assert "<table" in page and notes.startswith("# ")
    done = CliRunner().invoke(main, [*words, "--report", "a.docx"])
    assert done.exit_code == 2 and ".html" in done.stderr
