"""A predicted RL step for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prestep.sim.rl import step as steps
from prestep.sim.rl.interval import interval_of
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


def predict(scenario: Scenario) -> dict[str, Any]:
    """The RL step of a scenario as `prestep run --json` has it, SI units; see `prestep.sim.rl.step.predict`.

    Raises
    ------
    InputError
        If pools, lengths, or the training step do not fit the cluster and the model.
    """
    return to_dict(steps.predict(scenario))


def to_dict(step: RlStep) -> dict[str, Any]:
    """The keys of `prestep.sim.outputs._rl`."""
    pools, rl = step.pools, step.pools.rl
    engines = pools.engines
    return {
        "step_time": step.step_time,
        "interval": asdict(interval_of(step)),
        "tokens_per_second_per_gpu": step.tokens_per_second_per_gpu,
        "tokens": step.tokens,
        "rollouts": rl.rollouts,
        "bound": step.bound,
        "phases": dict(step.phases),
        "breakdown": dict(step.exposed),
        "idle": dict(step.idle),
        "rollout": _rollout(step),
        "training": _training(step),
        "refit": _refit(step),
        "evidence": dict(EVIDENCE),
        "constants": dict(pools.constants.grades),
        "algorithm": rl.algorithm,
        "off_policy_steps": rl.off_policy_steps,
        "gpus": pools.gpus,
        "training_gpus": len(pools.training),
        "generation_gpus": sum(map(len, engines)),
        "engines": len(engines),
        "model": pools.model.name,
        "cluster": pools.fabric.name,
        "gpu": pools.gpu.name,
    }


def _rollout(step: RlStep) -> dict[str, Any]:
    rollout = step.rollout
    return {
        "prefill": rollout.prefill,
        "parts": dict(rollout.parts),
        "tokens": rollout.tokens,
        "steps": rollout.steps,
        "batch": rollout.batch,
        "most": rollout.most,
        "tail": rollout.tail,
        "kv_room": step.engine.room,
    }


def _training(step: RlStep) -> dict[str, Any]:
    trained = step.trained
    return {
        "step_time": trained.prediction.step_time,
        "steps": trained.steps,
        "microbatches": trained.batch.microbatches,
        "seq_len": trained.batch.seq_len,
        "forward": trained.pass_,
        "breakdown": dict(trained.prediction.breakdown),
    }


def _refit(step: RlStep) -> dict[str, Any]:
    refit = step.refit
    parts = {
        "gather": refit.gather,
        "broadcast": refit.broadcast,
        "tensors": refit.tensors,
        "copies": refit.copies,
    }
    return {"bytes": refit.bytes, "tensors": refit.count, "parts": parts}


def render(result: Mapping[str, Any]) -> str:
    """The page for people, from `to_dict`."""
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
