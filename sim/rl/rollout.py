"""Rollouts on one engine: continuous batching of lengths that differ, until the longest has ended.

Time goes in stretches: until the next rollout ends, or for `STRETCH` tokens. In a stretch the batch is the same; its
context grows by a token a step, and so does the time that reading it takes. Those that came first run, at most
`max_num_seqs` at once and no more than the KV cache holds; others wait. One that has to leave because the cache is
full comes back as soon as there is room (vLLM's preemption); making its keys and values again costs nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prestep.sim.errors import InputError
from prestep.sim.rl.decode import Engine
from prestep.sim.rl.lengths import generated

STRETCH = 32  # tokens


@dataclass(frozen=True)
class Rollout:
    """What an engine does for one RL step.

    Attributes
    ----------
    seconds
        From the first prompt to the end of the longest rollout; a step's share, where several steps' are under way.
    prefill
        Of them, seconds of the prompts.
    parts
        Seconds of decoding by what they are for; with `prefill` they are all.
    tokens, steps
        Tokens that are generated, and steps of the engine.
    batch
        Rollouts at once, on average over the steps; `most`: at most.
    tail
        Seconds after the batch has fallen under half of that.
    """

    seconds: float
    prefill: float
    parts: Mapping[str, float]
    tokens: float
    steps: float
    batch: float
    most: int
    tail: float


def rollout_of(engine: Engine) -> Rollout:
    """What the engine does for one step of the scenario.

    One step off, the next step's rollouts begin when this step's have ended: a prompt's place is free when the longest
    of its rollouts has (NeMo RL, nemo_rl/algorithms/async_utils.py). With k steps off those of k steps are under way
    together and never run out: a step's share is a k-th of what k more steps take.

    Raises
    ------
    InputError
        If weights and one rollout do not fit the engine.
    """
    rl = engine.pools.rl
    ahead = max(1, rl.off_policy_steps)
    lengths = _lengths(engine, ahead)
    _check_room(engine)
    decoded = _decode(engine, lengths, len(lengths))
    if ahead > 1:
        places = _places(engine, lengths)
        first = _decode(engine, lengths, places)
        decoded = _decode(engine, _lengths(engine, 2 * ahead), places).less(first)
    prompts = math.ceil(len(lengths) / rl.generations)
    prefill = engine.prefill(prompts, rl.prompt_length)
    parts = {name: seconds / ahead for name, seconds in decoded.parts.items()}
    return Rollout(
        (sum(decoded.parts.values()) + prefill) / ahead,
        prefill / ahead,
        parts,
        sum(lengths) / ahead,
        decoded.steps / ahead,
        min(decoded.most, sum(lengths) / decoded.steps),
        decoded.most,
        decoded.tail / ahead,
    )


def _lengths(engine: Engine, steps: int) -> list[int]:
    """What the engine generates for so many steps of training."""
    rl = engine.pools.rl
    asked = rl.rollouts * steps
    if rl.algorithm == "dapo":
        asked = round(asked * rl.batch_multiplier)
    return of_engine(generated(rl, asked), len(engine.pools.engines))


def _places(engine: Engine, lengths: Sequence[int]) -> int:
    """How many of an engine's rollouts are not done yet, on average, where prompts hold places until all are."""
    each = engine.pools.rl.generations
    longest = float(np.quantile(lengths, each / (each + 1)))
    return max(1, round(len(lengths) * float(np.mean(lengths)) / longest))


def of_engine(lengths: Sequence[int], engines: int) -> list[int]:
    """Every so many-th of all lengths, counted from the longest: the engine that the step waits for."""
    return list(reversed(lengths))[::engines]


def _check_room(engine: Engine) -> None:
    """The longest rollout must fit an engine beside its weights."""
    rl, where = engine.pools.rl, engine.pools.scenario.where
    if engine.room >= rl.max_length:
        return
    found = f"{max(0, math.floor(engine.room))} tokens beside the weights of an engine"
    expected = f"at least the longest rollout's {rl.max_length}"
    hint = "a larger generation_tp or generation_memory"
    raise InputError.of(where, "rl.generation_memory", found, expected, hint)


@dataclass(frozen=True)
class _Decoded:
    parts: Mapping[str, float]
    steps: int
    tail: float
    most: int

    def less(self, first: _Decoded) -> _Decoded:
        """What comes after the first part: the batch runs empty in both, so not in this."""
        parts = {name: one - first.parts[name] for name, one in self.parts.items()}
        return _Decoded(parts, self.steps - first.steps, 0.0, self.most)


def _decode(engine: Engine, lengths: Sequence[int], places: int) -> _Decoded:
    """Decodes all lengths, in an order that has nothing to do with them: nobody knows lengths before."""
    stretches = list(_stretches(engine, lengths, places))
    parts: dict[str, float] = {}
    for stretch in stretches:
        for name, seconds in stretch.parts.items():
            parts[name] = parts.get(name, 0.0) + stretch.steps * seconds
    most = max(stretch.batch for stretch in stretches)
    tail = math.fsum(s.steps * s.step for s in stretches if 2 * s.batch < most)
    return _Decoded(parts, sum(stretch.steps for stretch in stretches), tail, most)


class _Stretch(NamedTuple):
    """Steps in which the same batch runs, and the seconds of one of them by part."""

    steps: int
    batch: int
    parts: Mapping[str, float]

    @property
    def step(self) -> float:
        """Seconds of one step."""
        return sum(self.parts.values())


def _stretches(
    engine: Engine, lengths: Sequence[int], places: int
) -> Iterator[_Stretch]:
    """Decodes until the first of the running ones ends, then with the next in its place."""
    prompt = engine.pools.rl.prompt_length
    left = np.array(_dealt(lengths))
    done = np.zeros_like(left)
    while len(left):
        batch = _running(engine, prompt + done[:places])
        steps = int(min(left[:batch].min(), STRETCH))
        context = prompt + float(done[:batch].mean()) + steps / 2
        yield _Stretch(steps, batch, engine.parts(batch, context))
        left[:batch] -= steps
        done[:batch] += steps
        left, done = left[left > 0], done[left > 0]


def _running(engine: Engine, contexts: np.ndarray) -> int:
    """How many of those that are left run for a stretch: the first that fit, one at least."""
    held = np.cumsum(contexts + STRETCH)
    fits = int(np.searchsorted(held, engine.room, side="right"))
    return max(1, min(fits, engine.pools.rl.max_num_seqs, len(contexts)))


def _dealt(lengths: Sequence[int]) -> list[int]:
    """Lengths in an order that has nothing to do with them, the same every time (steps of the golden ratio)."""
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(len(lengths)), key=lambda at: (at * golden) % 1.0)
    return [lengths[at] for at in order]
