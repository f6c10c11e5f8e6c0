"""Training logs: the step times or tokens per second that they print, beside the scenario that they ran."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim import api
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.validation.doctor.sweep import Expected, Size, Sweep
from prestep.validation.formats.collective_rows import Row

STEP = "training step"
#: The first steps of a log, of which compilation and caches are slower: this share of them is left out.
WARMING = 0.2


_NUMBER = r"([\d.,]+(?:e[+-]?\d+)?)"
#: Patterns of lines that say how fast a step is, and what their number is. Steps and tokens are a second's; tokens are
#: those of all GPUs, where they are not of a GPU.
FORMS = {
    # Megatron-LM, Megatron-Bridge, Primus
    re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}"): "milliseconds",
    # torchtitan
    re.compile(rf"\btps: {_NUMBER}"): "tokens of a GPU",
    # NeMo and Lightning
    re.compile(rf"train_step_timing in s[:=]\s*{_NUMBER}"): "seconds",
    # transformers' Trainer, with include_num_input_tokens_seen or without
    re.compile(rf"['\"]train_tokens_per_second['\"]:\s*{_NUMBER}"): "tokens",
    re.compile(rf"['\"]train_steps_per_second['\"]:\s*{_NUMBER}"): "steps",
    # what people print themselves
    re.compile(rf"step[ _]time\s*[:=]\s*{_NUMBER}\s*ms\b"): "milliseconds",
    re.compile(rf"step[ _]time\s*[:=]\s*{_NUMBER}\s*s?\b"): "seconds",
    re.compile(rf"tokens?(?:[ _]per[ _]second|/s(?:ec)?)\s*[:=]\s*{_NUMBER}"): "tokens",
}


class Speed(NamedTuple):
    """The middle of what a log prints, what it is (`FORMS`), and of how many lines."""

    where: str
    value: float
    means: str
    lines: int


def is_log(text: str) -> bool:
    """Whether a text has a line that says how fast a step is.

    Examples
    --------
    >>> is_log("iteration 10/ 100 | elapsed time per iteration (ms): 612.5 |")
    True
    >>> is_log("hello")
    False
    """
    return any(form.search(text) for form in FORMS)


def read(text: str, where: str) -> Speed:
    """The speed of a training log, in the first form that it has.

    Raises
    ------
    InputError
        If its numbers are none.
    """
    form = next(form for form in FORMS if form.search(text))
    values = [_number(found) for found in form.findall(text)]
    steady = [value for value in values[int(WARMING * len(values)) :] if value > 0]
    if not steady:
        raise InputError.of(where, "", "no step that took time", "steps of a training")
    return Speed(where, statistics.median(steady), FORMS[form], len(values))


def _number(text: str) -> float:
    try:
        return float(text.rstrip(".,").replace(",", ""))
    except ValueError:
        return 0.0


@dataclass(frozen=True)
class Step:
    """A training step that was measured, and the scenario that says what ran."""

    speed: Speed
    scenario: Path

    def sweep(self, fabric: Any, nccl: Nccl) -> Sweep:
        """The step beside what the cluster should take for it."""
        result = self._predicted(fabric, nccl)
        spread = result.uncertainty.spread if result.uncertainty else 0.0
        expected = Expected(result.step_time, spread, STEP, STEP, "", "", 0)
        ranks = len(fabric.gpus)
        time = self._measured(result, ranks)
        row = Row(STEP, STEP, ranks, 0, time, time, where=self.speed.where)
        return Sweep(row, (Size(0, time, expected),))

    def time(self, fabric: Any, nccl: Nccl) -> float:
        """Seconds of the step on another cluster or with other settings."""
        return float(self._predicted(fabric, nccl).step_time)

    def _predicted(self, fabric: Any, nccl: Nccl) -> Any:
        usual = Nccl()
        changes = {
            f"nccl.{one.name}": value
            for one in fields(Nccl)
            if (value := getattr(nccl, one.name)) != getattr(usual, one.name)
        }
        return api.simulate(self.scenario, changes, cluster=fabric)

    def _measured(self, result: Any, ranks: int) -> float:
        """Seconds of the measured step, from tokens by the tokens of the predicted one."""
        tokens = result.tokens_per_second_per_gpu * result.step_time  # of a GPU
        seconds: dict[str, Callable[[float], float]] = {
            "seconds": lambda value: value,
            "milliseconds": lambda value: value / 1e3,
            "steps": lambda value: 1.0 / value,
            "tokens": lambda value: tokens * ranks / value,
            "tokens of a GPU": lambda value: tokens / value,
        }
        return seconds[self.speed.means](self.speed.value)
