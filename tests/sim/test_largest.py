"""The largest micro batch that fits, and memory beside the allocator's."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.formats.published_setups import FOLDER
from lab.sets.published import run_of
from prestep import cli
from prestep.sim.analysis.memory import EVERY, fullest, outside
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric, predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.studies.largest import Limit, largest_micro_batch
from prestep.sim.studies.room import FEW, with_samples
from tests.executed import executed

MODEL = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 8,
    "heads": 16,
    "ffn": 5632,
    "vocab": 32000,
}
LAYOUTS = {
    "megatron": (
        {"framework": "megatron", "seq_len": 4096, "microbatches": 4},
        {"dp": 1, "tp": 2, "pp": 2},
    ),
    "pytorch": (
        {"seq_len": 4096, "grad_accumulation": 2},
        {"dp": 4, "data_parallel": "fsdp"},
    ),
    "recompute": ({"seq_len": 4096, "recompute": "full"}, {"dp": 4}),
}


def scenario(name: str, **training: Any) -> Any:
    said, parallel = LAYOUTS[name]
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 4},
        "model": MODEL,
        "training": {**said, **training},
        "parallel": parallel,
    }
    return parse_scenario(tables, name)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_limit_fits_and_the_next_does_not(name: str) -> None:
    """A prediction with the limit fits, one with a sample more does not, and both need what was said."""
    found = largest_micro_batch(scenario(name))
    assert found.at is not None and found.beyond is not None
    assert found.beyond.micro_batch == found.micro_batch + 1
    for need, fits in ((found.at, True), (found.beyond, False)):
        said = scenario(name, micro_batch=need.micro_batch)
        verdict = predict(
            replace(said, training=replace(said.training, warmup=10_000))
        ).out_of_memory
        assert verdict is not None
        assert verdict.fits == need.fits == fits
        assert verdict.largest_owner == need.largest_owner
        assert verdict.needed == pytest.approx(
            need.needed, rel=2e-3
        )  # NCCL chooses by size what it connects


def test_the_limit_never_grows_with_the_sequence_and_never_falls_with_recomputation() -> (
    None
):
    """Longer samples leave room for no more of them; recomputation for no fewer."""

    def limit(**keys: Any) -> int:
        return largest_micro_batch(scenario("pytorch", **keys)).micro_batch

    assert limit() >= limit(seq_len=8192) >= limit(seq_len=16384)
    assert limit(recompute="full") >= limit()


def test_a_few_microbatches_tell_the_memory_of_all() -> None:
    """Accumulation over more microbatches than are looked at does not need more memory."""
    base, fabric = scenario("pytorch"), load_fabric(scenario("pytorch"))
    few, many = (
        fullest(lowered_on(with_samples(base, 2, n), fabric)).total
        for n in (FEW, FEW + 5)
    )
    assert few == many


def test_usual_fragmentation_lowers_the_limit() -> None:
    """With what the allocator leaves unused there is room for no more, and the text says so."""
    found = largest_micro_batch(scenario("recompute"))
    assert 0 < found.usual < found.micro_batch
    assert (
        "usually leaves unused" in str(found)
        and found.to_dict()["max_micro_batch"] == found.micro_batch
    )


def test_the_batch_of_a_step_must_divide() -> None:
    """Of the micro batches that fit the largest that divides the samples of a replica is named."""
    found = largest_micro_batch(
        scenario("recompute", global_batch=4 * 7, micro_batch=1)
    )
    assert found.divides == 7 and "of 28 samples a step: 7" in str(found)


def test_communicators_take_memory_beside_the_allocator() -> None:
    """One GPU has a context alone; four that reduce gradients have NCCL's buffers too, in whole connections."""
    one = parse_scenario(
        {"cluster": {"name": "h200-host-4", "gpus": 1}, "model": MODEL}, "one"
    )
    four = parse_scenario(
        {"cluster": {"name": "h200-host-4"}, "model": MODEL, "parallel": {"dp": 4}},
        "four",
    )
    alone, together = (outside(executed(s).planned)[0] for s in (one, four))
    assert alone["communication"] == 0 < together["communication"]
    assert together["communication"] % EVERY == 0
    verdict = predict(four).out_of_memory
    assert verdict is not None and verdict.outside == sum(together.values())


def test_published_peaks_of_allocated_memory() -> None:
    """Megatron's peak on eight B200s as SimuMax prints it is met within 5 % by every row but those of DeepSeek-V3,
    whose table does not say how many of the four layers have experts."""
    rows = csv.DictReader((FOLDER / "rows.csv").open(encoding="utf-8", newline=""))
    errors = {}
    for row in rows:
        printed = re.search(r"mbc4_.*peak allocated ([\d.]+) GiB", row["notes"])
        if (
            printed is None
            or "simumax" not in row["id"]
            or "deepseekv3" in row["notes"]
        ):
            continue
        said = parse_scenario(run_of(row).scenario, row["id"])
        peak = fullest(lowered_on(said, load_fabric(said))).total
        errors[row["id"]] = peak / (float(printed[1]) * 2**30) - 1
    assert len(errors) >= 8
    assert max(map(abs, errors.values())) < 0.05, errors


def run(tmp_path: Path, *arguments: str) -> Any:
    path = tmp_path / "s.toml"
    path.write_text(
        '[cluster]\nname = "h200-host-4"\n[model]\nname = "llama3-1b-plain"\n[parallel]\ndp = 4\n'
    )
    return CliRunner().invoke(
        cli.main, ["run", str(path), "--max-micro-batch", *arguments]
    )


def test_the_command_prints_both_sides_of_the_limit(tmp_path: Path) -> None:
    """As text and as JSON; a limit that is there is exit code 0."""
    text = run(tmp_path)
    said = json.loads(run(tmp_path, "--json").stdout)
    assert text.exit_code == 0
    assert text.stdout.startswith(
        f"largest micro batch that fits: {said['max_micro_batch']}\n"
    )
    assert said["at"]["fits"] and not said["next"]["fits"]
    assert said["next"]["largest_owner"] == "activations"


def test_no_sample_fits(tmp_path: Path) -> None:
    """Not even one: exit code 1, and what one needs."""
    done = run(tmp_path, "--set", "model.layers=400")
    assert done.exit_code == 1
    assert (
        "largest micro batch that fits: none" in done.stdout
        and "too much" in done.stdout
    )


def test_files_of_a_step_are_refused(tmp_path: Path) -> None:
    """No step is predicted, so there is none to write."""
    done = run(tmp_path, "--trace", str(tmp_path / "t.json"))
    assert done.exit_code == 2 and "--max-micro-batch" in done.output


def test_a_limit_of_nothing_has_no_sides() -> None:
    """The type says what it has."""
    assert Limit(None, None, 0, None, None).to_dict()["max_micro_batch"] == 0
