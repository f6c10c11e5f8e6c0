"""Lowering consumes the scenario: what later stages are handed says what runs and on what, however a file said it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.errors import InputError
from prestep.sim.lowering import lower
from prestep.sim.planning.job import Job, Machine
from prestep.sim.predict import load_fabric, step_time
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.rules.idle import idle
from prestep.sim.strict import type_hints
from prestep.workloads.frameworks import framework, names, readers
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.models.model import load_model
from tests.sim.test_every_key import _values as values

MODEL = {"kind": "transformer", "hidden": 512, "layers": 4, "heads": 8, "ffn": 1024}
BASE: dict[str, Any] = {
    "cluster": {"name": "dgx-h100"},
    "model": MODEL | {"vocab": 1000},
    "training": {"seq_len": 256, "micro_batch": 2, "global_batch": 24},
    "parallel": {"dp": 4, "tp": 2},
}


def handed(**sections: dict[str, Any]) -> tuple[Job, Machine]:
    """What a scenario hands on, with some keys of its sections in the place of others."""
    scenario = parse_scenario({**BASE, **sections}, "job")
    step = lower(scenario, load_fabric(scenario))
    return step.job, step.machine


def test_a_job_has_the_ranks_and_samples_that_were_asked_for() -> None:
    """24 samples of 4 replicas in microbatches of 2 are 3 of them; 4 x 2 ranks; a document is what attention sees."""
    job, machine = handed()
    assert job.degrees.ranks == job.layout.world == len(machine.gpus) == 8
    assert (job.batch.samples, job.batch.microbatches) == (2, 3)
    packed = {"seq_len": 256, "packed": 64, "framework": "megatron"}
    assert handed(training=packed)[0].batch.attended == 64
    assert job.batch.attended == job.batch.tokens == 256


def test_a_batch_is_one_job_however_it_is_said() -> None:
    """As samples of all ranks, or as microbatches of each: the jobs are equal, and so are their steps."""
    other = {"seq_len": 256, "micro_batch": 2, "grad_accumulation": 3}
    assert handed()[0] == handed(training=other)[0]
    times = [
        step_time(parse_scenario(BASE | {"training": training}, "job"))
        for training in (BASE["training"], other)
    ]
    assert times[0] == times[1]


def test_a_machine_says_who_knows_its_host() -> None:
    """The scenario's own factor comes before the cluster's; the wrong socket is slower than what either says."""
    stated = handed(cluster={"name": "dgx-h100", "host_factor": 2.0})[1].host
    assert (stated.factor, stated.source, stated.is_known) == (2.0, "scenario", True)
    moved = replace(stated, numa="wrong")
    assert moved.factor > 2.0 and not moved.is_known and "cluster.numa" in moved.caveat


def test_keys_that_name_automodel_are_of_it_alone() -> None:
    """As their meaning says, which is written for people and not read by the program."""
    for key in fields(PyTorch):
        alone = key.metadata["doc"].startswith("automodel:")
        assert (readers(PyTorch, key) == ["automodel"]) == alone, key.name


@pytest.mark.parametrize("section", [PyTorch, Megatron])
@pytest.mark.parametrize("name", [one for one in names() if one != "captured"])
def test_a_key_of_another_framework_is_refused_or_named(
    name: str, section: type
) -> None:
    """Every key of both sections that the framework does not read, where it is not as it is by default."""
    table, hints, read = section.__name__.lower(), type_hints(section), framework(name)
    for key in fields(section):
        if key.name in read.reads(section):
            continue
        usual = list(key.default) if isinstance(key.default, tuple) else key.default
        others = (one for one in values(key, hints[key.name]) if one != usual)
        value = next(others, "a text")
        tables = BASE | {table: {key.name: value}}
        training = {"seq_len": 256, "framework": name, "optimizer": "adamw"}
        parallel = {
            "dp": 8,
            "data_parallel": "none" if name == "automodel" else "zero1",
        }
        try:
            scenario = parse_scenario(
                tables | {"training": training, "parallel": parallel}, "job"
            )
        except InputError as error:
            assert f"{table}.{key.name}" in str(error)
        else:
            lines = idle(scenario, load_model(scenario.model, "job"), hosts=1)
            assert any(f"{table}.{key.name}" in line for line in lines), key.name


@pytest.mark.parametrize(
    ("section", "name"),
    [("", "--max-micro-batch"), ("[rl]\nprompts = 8\n", "[rl]")],
)
def test_all_options_that_do_not_go_with_a_run_are_refused_together(
    tmp_path: Any, section: str, name: str
) -> None:
    """Each is named once, with what it does not go with; nothing is written."""
    path, trace = tmp_path / "job.toml", tmp_path / "t.json"
    path.write_text(
        '[cluster]\nname = "dgx-h100"\n[model]\nname = "llama3-8b"\n'
        f"[training]\nseq_len = 2048\nmicro_batch = 1\n[parallel]\ntp = 8\n{section}"
    )
    words = ["run", str(path), "--strict", "--energy", "--trace", str(trace)]
    largest = [] if section else ["--max-micro-batch"]
    done = CliRunner().invoke(cli.main, [*words, "--replicas", "2", *largest])
    assert done.exit_code == 2 and not trace.exists()
    for option in ("--strict", "--energy", "--trace", "--replicas"):
        assert f"found {option} with {name}" in done.output
