"""What prestep writes and reads back takes as long as what it predicted: every bundled scenario, every format."""

from __future__ import annotations

from pathlib import Path

import pytest

import prestep
from prestep.sim import exporters
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.report import as_json, as_text
from prestep.sim.spec.load import load_scenario
from prestep.sim.tools.catalog import find_scenario
from prestep.sim.units import format_duration
from prestep.workloads import traces
from prestep.workloads.traces import convert

#: Scenarios with what makes them quick, and the ranks whose programs differ.
SCENARIOS = {
    "mlp-ddp4": ((), 1),
    "llama1b-ddp4": (("model.layers=2",), 1),
    "llama1b-tp4": (("model.layers=2",), 1),
    "llama8b-fsdp4": (("model.layers=2",), 1),
    "llama8b-pp4-1f1b": (("model.layers=4",), 4),
    "moe-ep4": (("model.layers=2",), 1),
    "resnet50-ddp4": ((), 1),
}


def written(name: str, folder: Path) -> tuple[float, Path]:
    """The predicted step, and its trace."""
    changes, _ = SCENARIOS[name]
    result = predict(load_scenario(find_scenario(name), changes))
    path = folder / "step.json"
    exporters.write(result, path, "chrome_trace")
    return result.step_time, path


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trace_replays_as_long_as_the_step_it_is_of(
    name: str, tmp_path: Path
) -> None:
    """Kineto to the nanosecond; Chakra has whole microseconds, and a step of it is one step."""
    step, path = written(name, tmp_path)
    outcome = replay_files([path], clock="gpu")
    assert outcome.step_time == pytest.approx(step, rel=1e-4)
    assert len({work.rank for work in outcome.replay.job.works}) == SCENARIOS[name][1]
    chakra = convert.convert(traces.read([path]), tmp_path / "step.et")
    again = replay_files([f for f in chakra if f.suffix == ".et"], clock="gpu")
    assert {one.step for one in again.steps} == {one.step for one in outcome.steps}
    assert again.step_time == pytest.approx(step, rel=3e-3)


def test_ranks_of_one_file_run_on_a_cluster(tmp_path: Path) -> None:
    """Four stages in one file are four ranks: they were one rank with every step four times."""
    _, path = written("llama8b-pp4-1f1b", tmp_path)
    outcome = replay_files([path], cluster="dgx-h100")
    assert [work.rank for work in outcome.replay.job.works] == [0, 1, 2, 3]


def test_every_door_has_the_same_step_time(tmp_path: Path) -> None:
    """Text, JSON and Python: seconds of the last step, not names, nor a mean over steps."""
    _, path = written("mlp-ddp4", tmp_path)
    outcome = replay_files([path])
    frame = prestep.replay([path])
    last = frame[frame.step == frame.step.iloc[-1]]
    assert as_json(outcome)["step_time"] == outcome.step_time == last.simulated.median()
    assert format_duration(outcome.step_time) in as_text(outcome).splitlines()[0]
    assert frame.measured.dtype == frame.simulated.dtype == float


@pytest.mark.parametrize(
    "change", ["gpu.flops=2x", "gpu.clock=0.8x", "kernels.gemm=0.5x"]
)
def test_a_change_that_no_kernel_follows_is_refused(
    change: str, tmp_path: Path
) -> None:
    """Megatron's layers are one kernel each in a trace that is not opened: "+0.0 %" was no answer."""
    scenario = load_scenario(
        find_scenario("llama1b-ddp4"),
        ("training.framework=megatron", "model.layers=2"),
    )
    path = tmp_path / "step.json"
    exporters.write(predict(scenario), path, "chrome_trace", kernels=0)
    with pytest.raises(InputError, match=r"no kernel that follows|no such kernel"):
        replay_files([path], changes=[change], cluster="h200-host-4")
