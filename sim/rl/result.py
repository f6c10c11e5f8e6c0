"""A predicted RL step for people and programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prestep.sim.costs.spreads import NOMINAL, quantile
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.rl import step as steps
from prestep.sim.rl.step import RlStep
from prestep.sim.spec.sections import Scenario
from prestep.sim.units import count, format_bytes, format_duration

#: What each phase rests on where nothing better is known of it.
EVIDENCE = {
    "rollout": "guess",  # an H100's kernels and the host's time are fitted; lengths and other GPUs' kernels are not
    "environment": "guess",
    "logprobs": "fitted",
    "training": "fitted",
    "refit": "guess",
    "driver": "fitted",
}
_WIDTH = 36  # columns of a bar
_REFIT = ("gather", "broadcast", "tensors", "copies")


def predict(scenario: Scenario) -> dict[str, Any]:
    """The RL step of a scenario as `prestep run --json` has it, SI units; see `prestep.sim.rl.step.predict`.

    Raises
    ------
    InputError
        If pools, lengths, or the training step do not fit the cluster and the model.
    """
    return SCHEMA.row(steps.predict(scenario))


SCHEMA = schemas_beside(
    __file__,
    interval_of=lambda step: interval_of(step),
    itself=lambda step: step,
    refit_parts=lambda refit: {name: getattr(refit, name) for name in _REFIT},
    grades=lambda _: EVIDENCE,
    training_gpus=lambda step: len(step.pools.training),
    generation_gpus=lambda step: sum(map(len, step.pools.engines)),
    engines=lambda step: len(step.pools.engines),
)["schema"]


def render(result: Mapping[str, Any]) -> str:
    """The page for people, from `predict`."""
    lines = [*_heading(result), "", *_phases(result), "", *_details(result)]
    grades = ", ".join(f"{name} {grade}" for name, grade in result["evidence"].items())
    return "\n".join([*lines, "", f"  rests on: {grades}"])


def _heading(result: Mapping[str, Any]) -> Iterator[str]:
    step, interval = result["step_time"], result["interval"]
    low, high = format_duration(interval["low"]), format_duration(interval["high"])
    off = result["off_policy_steps"]
    way = f"{off} {'step' if off == 1 else 'steps'} off" if off else "on-policy"
    name = result["algorithm"].upper()
    yield f"An RL step takes {format_duration(step)}, bound by {result['bound']}."
    yield f"{result['model']} on {result['cluster']}: {name}, {way}, {result['gpus']} GPUs"
    if off:
        trains, generates = result["training_gpus"], result["generation_gpus"]
        yield f"  {trains} GPUs train, {generates} generate"
    yield f"  step time      {format_duration(step)}"
    yield f"  {interval['nominal']:.0%} interval  {low} to {high}".replace("%", " %")
    rate = f"{count(result['tokens_per_second_per_gpu'])} tokens/s per GPU"
    told = f"{count(result['tokens'])} tokens in {count(result['rollouts'])} rollouts"
    yield f"  throughput     {rate}: {told}"


def _phases(result: Mapping[str, Any]) -> Iterator[str]:
    step, exposed = result["step_time"], result["breakdown"]
    yield "Where the step goes"
    for name, seconds in result["phases"].items():
        if seconds == 0:
            continue
        hidden = "" if name in exposed else "  hidden"
        share = seconds / step
        bar = "█" * min(_WIDTH, round(share * _WIDTH))
        yield f"  {name:12} {format_duration(seconds):>10} {100 * share:5.1f} %  {bar}{hidden}"
    for name, seconds in result["idle"].items():
        if seconds > 0:
            yield f"  {name} waits {format_duration(seconds)} for the other GPUs"


def _details(result: Mapping[str, Any]) -> Iterator[str]:
    rollout, training, refit = result["rollout"], result["training"], result["refit"]
    parts = sorted(rollout["parts"].items(), key=lambda item: -item[1])
    told = ", ".join(
        f"{name.replace('_', ' ')} {format_duration(value)}"
        for name, value in parts
        if value
    )
    batch = f"{rollout['batch']:.3g} rollouts at once on average"
    yield f"Rollout: {result['engines']} engines, {batch}, at most {rollout['most']}"
    yield f"  {count(rollout['steps'])} steps of decoding: {told}"
    tail = format_duration(rollout["tail"])
    yield f"  {tail} with a batch under half: the step waits for its longest rollouts"
    one, packs = format_duration(training["step_time"]), training["microbatches"]
    size = f"{packs} packs of {training['seq_len']} tokens each replica"
    yield f"Training: {training['steps']} optimizer steps of {one}, {size}"
    size = format_bytes(refit["bytes"])
    told = ", ".join(
        f"{name} {format_duration(value)}"
        for name, value in refit["parts"].items()
        if value
    )
    yield f"Refit: {size} in {refit['tensors']} tensors: {told}"


#: Relative standard deviations of what has no measurement of its own: guesses.
SPREADS = {"rollout": 0.25, "environment": 0.5, "refit": 0.35, "driver": 0.5}

#: No step is surer than one of a group that no constant was fitted to: relative error (root of the mean square) of rows
#: for fitting with constants of the other group alone. Evidence: fitted, python -m lab.fit.rl prints it.
UNSEEN = 0.22


@dataclass(frozen=True)
class Interval:
    """Between which times the measured step lies with the probability `nominal`, s."""

    low: float
    high: float
    spread: float
    nominal: float = NOMINAL


def interval_of(step: RlStep) -> Interval:
    """The interval; phases that another hides count by the share of the step that they pace.

    Training's own spread is that of training steps; what NeMo RL does between them nobody has measured. So a step that
    waits for training alone would be too sure, which `UNSEEN` forbids.
    """
    total, variance = step.step_time, 0.0
    spreads = _spreads(step)
    for name, seconds in step.exposed.items():
        variance += (seconds / total * spreads[name]) ** 2
    spread = max(UNSEEN, math.sqrt(variance))
    reach = math.exp(quantile(NOMINAL) * spread)
    return Interval(total / reach, total * reach, spread)


def _spreads(step: RlStep) -> Mapping[str, float]:
    known = step.trained.prediction.uncertainty
    of_training = known.spread if known is not None else SPREADS["rollout"]
    return {**SPREADS, "training": of_training, "logprobs": of_training}
