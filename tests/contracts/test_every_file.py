"""What bundled scenarios, models, GPUs and frameworks keep to: they load, predict, and say what their numbers rest on."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest

import prestep.sim.costs
from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.gpu import names as gpus
from prestep.sim.predict import predict
from prestep.sim.record.measured_runs import measured_runs
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.tools.catalog import names
from prestep.topologies.core.quantity import GRADES
from prestep.workloads import host_costs
from prestep.workloads.job.model import Model
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import load_model
from tests.sample import sample, together

COSTS = Path(prestep.sim.costs.__file__).parent
SCENARIOS = Path(__file__).parents[2] / "workloads" / "scenarios"
HARDWARE = sorted(COSTS.glob("hardware/*.toml"))
GPUS = gpus()
FRAMEWORKS = sorted(host_costs.FOLDER.glob("*.toml"))
GRADE = re.compile("|".join(GRADES))
INLINE = re.compile(rf'evidence = "({GRADE.pattern})", source = "[^"]+"')


@pytest.mark.parametrize("name", names("scenarios"))
def test_a_scenario_predicts(name: str) -> None:
    """A finite step and memory that fits; where a measurement is named, its source is."""
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    result = predict(scenario)
    assert math.isfinite(result.step_time) and result.step_time > 0
    assert result.out_of_memory is not None and result.out_of_memory.fits
    assert sum(result.evidence.values()) == pytest.approx(1) and set(
        result.evidence
    ) <= set(GRADES)
    assert scenario.measured.step_time is None or scenario.measured.source


@together("name", names("scenarios"))
def test_a_scenario_says_whether_its_measured_run_was_fitted_to(name: str) -> None:
    """As the list of measured runs has it."""
    measured = load_scenario(SCENARIOS / f"{name}.toml").measured
    case = str(measured.source).partition("case ")[2].partition(" ")[0]
    assert [known.fitted for known in measured_runs() if known.row == case] == [
        measured.fitted
    ]


def test_a_scenario_says_what_its_measured_run_took() -> None:
    """To its last digit, as the list of measured runs has it."""
    taken = {
        known.row: known.measured for known in measured_runs() if known.set == "h200"
    }
    for name in names("scenarios"):
        measured = load_scenario(SCENARIOS / f"{name}.toml").measured
        case = str(measured.source).partition("case ")[2].partition(" ")[0]
        assert measured.step_time == pytest.approx(taken[case], rel=1e-4), name


@pytest.mark.parametrize("name", sample(names("models")))
def test_a_model_predicts_on_one_gpu(name: str) -> None:
    """It loads under its name, has the parameters its shape says, and makes a step (large ones as Megatron's units)."""
    spec = load_model(Model(name=name))
    assert spec.name == name
    megatron = spec.kind == "transformer" and (spec.layers > 16 or spec.experts > 8)
    tokens = spec.tokens if spec.patch else min(512, spec.max_positions or 512)
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": 1},
        "model": {"name": name},
        "training": {"seq_len": tokens}
        | ({"framework": "megatron"} if megatron else {}),
    }
    result = predict(parse_scenario(tables, name))
    assert result.step_time > 0 and 0 < result.mfu < 1
    if spec.kind == "transformer":
        assert result.scenario["parameters"] == stage_parameters(
            spec, spec.layers, True, True
        )


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_has_its_limits(name: str) -> None:
    """Peaks, bandwidth and memory in SI units, and a time for a product and for a copy that no limit undercuts."""
    gpu = load_gpu(name)
    assert (
        gpu.peak["bf16"] > 1e13
        and gpu.bandwidth > 1e11
        and gpu.memory > 1e10
        and gpu.sms > 50
    )
    assert 0 < gpu.floor < 1e-5 and 0 < gpu.gap < 1e-5
    for kernel in (
        Kernel("aten mm", (4096, 4096, 4096), layout="nt"),
        Kernel("aten add", (2**28,), bytes=6.0 * 2**28),
    ):
        assert gpu.duration(kernel) >= gpu.roofline.bound(kernel) > 0
        assert gpu.evidence(kernel) in GRADES


@together("path", [*HARDWARE, *FRAMEWORKS])
def test_every_constant_says_what_it_rests_on(path: Path) -> None:
    """A grade beside the number, or on its table, or for the whole file in the lines before the first number or beside each."""
    text = path.read_text(encoding="utf-8")
    tomllib.loads(text)
    preamble = "\n".join(
        line for line in text.split("\n[")[0].splitlines() if line.startswith("#")
    )
    if re.search(r"([Gg]rade|[Ee]vidence): *(" + GRADE.pattern + ")", preamble):
        return
    graded = False
    for line in filter(None, map(str.strip, text.splitlines())):
        comment = line.partition("#")[2]
        if line.startswith("["):
            graded = bool(GRADE.search(comment))
        elif not line.startswith("#") and not graded:
            assert GRADE.search(comment) or INLINE.search(line), f"{path.name}: {line}"


@together("path", HARDWARE)
def test_every_hardware_file_names_a_source(path: Path) -> None:
    """A datasheet, a measurement, or the program that wrote it, before the first number or beside each."""
    text = path.read_text(encoding="utf-8")
    preamble = text.split("\n[")[0]
    if all(
        INLINE.search(line)
        for line in text.splitlines()
        if " = " in line and not line.startswith("#")
    ):
        return  # each number says it itself
    assert re.search(
        r"[Ss]ource|[Dd]atasheet|(validation|lab)[/.](calibrate|fit)", preamble
    )


@pytest.mark.parametrize("path", FRAMEWORKS, ids=lambda path: path.name)
def test_a_framework_costs_every_host_operation(path: Path) -> None:
    """Seconds of every operation of PyTorch, none negative; a whole step's graph and layers take above a millisecond."""
    costs = {**host_costs.host_costs(path.stem)}
    assert costs.keys() >= host_costs.host_costs("pytorch-eager").keys()
    whole = [name for name in costs if name == "graph_launch" or "layer" in name]
    assert all(0 <= costs.pop(name) < 1e-2 for name in whole)
    assert all(0 <= seconds < 1e-3 for seconds in costs.values())
