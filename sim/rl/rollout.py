"""Rollouts on one engine: continuous batching of lengths that differ, until the longest has ended.

Time goes from one rollout's end to the next. Between two ends the batch is the same; its context grows by a token a
step, and so does the time that reading it takes. Waiting rollouts come in as soon as others leave: at most
`max_num_seqs` at once, and no more than the KV cache holds when all are as long as the average.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sim.errors import InputError, Mistake
from sim.rl.decode import Engine
from sim.rl.lengths import generated


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
    parts: dict[str, float]
    tokens: float
    steps: float
    batch: float
    most: int
    tail: float


def rollout_of(engine: Engine) -> Rollout:
    """What the engine does for one step of the scenario.

    With k steps off, rollouts of k steps are under way together, and one step's share of the time is a k-th.

    Raises
    ------
    InputError
        If weights and one rollout do not fit the engine.
    """
    pools, rl = engine.pools, engine.pools.rl
    ahead = max(1, rl.off_policy_steps)
    asked = rl.rollouts * ahead
    if rl.algorithm == "dapo":
        asked = round(asked * rl.batch_multiplier)
    lengths = of_engine(generated(rl, asked), len(pools.engines))
    most = _at_once(engine)
    decoded = _decode(engine, lengths, most)
    prompts = math.ceil(len(lengths) / rl.generations)
    prefill = engine.prefill(prompts, rl.prompt_length)
    parts = {name: seconds / ahead for name, seconds in decoded.parts.items()}
    return Rollout(
        (sum(decoded.parts.values()) + prefill) / ahead,
        prefill / ahead,
        parts,
        sum(lengths) / ahead,
        decoded.steps / ahead,
        sum(lengths) / decoded.steps,
        most,
        decoded.tail / ahead,
    )


def of_engine(lengths: Sequence[int], engines: int) -> list[int]:
    """Every so many-th of all lengths, counted from the longest: the engine that the step waits for."""
    return list(reversed(lengths))[::engines]


def _at_once(engine: Engine) -> int:
    """Rollouts that the engine decodes at once, at most."""
    rl, where = engine.pools.rl, engine.pools.scenario.where
    fits = math.floor(engine.room / rl.mean_length)
    if engine.room < rl.max_length:
        found = f"{max(0, math.floor(engine.room))} tokens beside the weights of an engine"
        expected = f"at least the longest rollout's {rl.max_length}"
        hint = "a larger generation_tp or generation_memory"
        raise InputError(
            Mistake(where, "rl.generation_memory", found, expected, hint)
        )
    return max(1, min(rl.max_num_seqs, fits))


@dataclass(frozen=True)
class _Decoded:
    parts: Counter[str]
    steps: int
    tail: float


def _decode(engine: Engine, lengths: Sequence[int], most: int) -> _Decoded:
    """Decodes all lengths, at most `most` at once; shuffled by a fixed rule, since nobody knows lengths before."""
    prompt = engine.pools.rl.prompt_length
    waiting = _dealt(lengths)
    running: list[int] = []  # the steps at which rollouts end
    entered = 0.0  # sum of the steps at which those that run began
    began: dict[int, list[int]] = {}
    parts: Counter[str] = Counter()
    now, at, tail, full = 0, 0, 0.0, min(most, len(lengths))
    while running or at < len(waiting):
        while at < len(waiting) and len(running) < most:
            heapq.heappush(running, now + waiting[at])
            began.setdefault(now + waiting[at], []).append(now)
            entered += now
            at += 1
        end, batch = running[0], len(running)
        steps = end - now
        context = prompt + (now + end) / 2 - entered / batch
        taken = engine.parts(batch, context)
        for name, seconds in taken.items():
            parts[name] += steps * seconds
        tail += steps * sum(taken.values()) if 2 * batch < full else 0.0
        now = end
        while running and running[0] == now:
            entered -= began[heapq.heappop(running)].pop()
    return _Decoded(parts, now, tail)


def _dealt(lengths: Sequence[int]) -> list[int]:
    """Lengths in an order that has nothing to do with them, the same every time (steps of the golden ratio)."""
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(len(lengths)), key=lambda at: (at * golden) % 1.0)
    return [lengths[at] for at in order]
