"""The training steps of a measurement beside what the known cluster makes of them: what the GPU, what the host takes.

Three things are read off them: how fast this machine's GPUs are in a step that nobody traces, how fast its host is, and
in the end how well the calibrated cluster predicts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from prestep.sim.errors import PrestepError
from prestep.sim.predict import predict
from prestep.validation.fit.measurement import Measured
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.formats.scenarios import scenario_of

TINY = ("h4", "h16")  # their GPUs wait for the host throughout
MOST = 40  # rows; a few seconds each at worst
HOST_BOUND = 1.05  # measured over the GPU's time from which on the host decided
#: Host factors at which the host alone bounds a step, and at which it bounds none.
SLOWER, NONE = 40.0, 0.05
SURE = 2.0  # host factor at which a step is still the GPU's: kernels are read off such steps
# Standard deviation of the logarithm of a step's time about what the known GPU's tables say, beyond that of the
# machine (fitted: 12 such steps of an H200 and an H100 scatter by 1.1 %).
OF_A_STEP = 0.01


@dataclass(frozen=True)
class Step:
    """A measured step on the known cluster.

    Attributes
    ----------
    traced : bool
        Kernels of this very step were traced.
    cluster : mapping
        Keys of [cluster] for the known one.
    kernels : float
        Seconds of the GPU by this machine's own kernels, where the known GPU's times are lent by another; 0: not known.
    """

    row: Row
    traced: bool
    cluster: Mapping[str, str]
    kernels: float = 0.0

    @property
    def tiny(self) -> bool:
        return self.row.case.get("model") in TINY

    @property
    def experts(self) -> bool:
        return self.row.family == "moe"

    @cached_property
    def below(self) -> float:
        """Seconds as the known cluster predicts it."""
        return predicted(self.row, self.cluster)

    @cached_property
    def gpu(self) -> float:
        """Seconds with a host that takes next to no time; 0 where the GPU has next to nothing to do."""
        if self.tiny:
            return 0.0
        return predicted(self.row, {**self.cluster, "host_factor": NONE})

    @cached_property
    def host(self) -> float:
        """Seconds of the host at factor 1."""
        slow = {**self.cluster, "host_factor": SLOWER}
        return predicted(self.row, slow) / SLOWER

    @property
    def factor(self) -> float:
        """How slow the host was if it decided; else it was no slower than this."""
        return self.row.measured / self.host

    @property
    def host_bound(self) -> bool:
        return self.row.measured > HOST_BOUND * (self.kernels or self.gpu)

    @property
    def levels(self) -> bool:
        """Whether the time of kernels can be read off it: nothing but them decided."""
        alone = self.row.case.get("mode") == "single"
        return alone and not self.tiny and not self.host_bound and self.factor > SURE


def with_kernels(steps: Sequence[Step], cluster: Path) -> list[Step]:
    """The steps with what a first calibration says of their kernels.

    A GPU whose times are lent may be a third faster or slower than that: its steps would seem to wait for the host.
    """
    mine = {"file": str(cluster), "host_factor": NONE}
    return [
        step
        if step.tiny
        else Step(step.row, step.traced, step.cluster, predicted(step.row, mine))
        for step in steps
    ]


def steps_of(measured: Measured, base: str) -> tuple[list[Step], list[str]]:
    """Steps of a measurement that can be predicted over the cluster `base`, and why others cannot."""
    path, cluster = measured.file("training.jsonl"), keys_of(base)
    traced = {path.name.partition(".")[0] for path in measured.traces()}
    steps: list[Step] = []
    reasons: list[str] = []
    for row in read_rows(path) if path else []:
        if row.error or row.case.get("compile"):
            continue
        step = Step(row, row.id in traced, cluster)
        try:
            _ = step.host
        except PrestepError as error:
            reasons.append(f"{row.name}: {error}")
            continue
        if len(steps) < MOST:
            steps.append(step)
    return steps, reasons


def level(steps: Sequence[Step], between: float) -> float | None:
    """Time of this machine's kernels over the known GPU's, by steps that the GPU alone decides; None without any.

    Parameters
    ----------
    between
        Standard deviation of the logarithm between machines: what a few steps say counts as far as it is likely.
    """
    logs = [math.log(step.row.measured / step.gpu) for step in steps if step.levels]
    if not logs:
        return None
    sure = between**2 / (between**2 + OF_A_STEP**2 / len(logs))
    return math.exp(sure * statistics.mean(logs))


def missed(steps: Sequence[Step], wanted: float, cluster: Path) -> float:
    """Wanted over predicted time of these steps on a cluster whose kernels were brought to a level.

    A step has kernels that no trace shows as the model has them, so the first fit can be a percent off.
    """
    mine = {"file": str(cluster), "host_factor": NONE}
    return statistics.geometric_mean(
        wanted * step.gpu / predicted(step.row, mine) for step in steps if step.levels
    )


def keys_of(base: str) -> dict[str, str]:
    """The keys of [cluster] for a name or a file."""
    if base.endswith(".toml"):
        return {"file": str(Path(base).resolve())}
    return {"name": base}


def predicted(row: Row, cluster: Mapping[str, object]) -> float:
    """Seconds of a step on a cluster.

    Raises
    ------
    PrestepError
        If it cannot be predicted there.
    """
    return float(predict(scenario_of(replace(row, cluster=cluster))).step_time)


@dataclass(frozen=True)
class Judged:
    """A measured step, s, and what the calibrated cluster predicts of it."""

    step: Step
    here: float

    @property
    def errors(self) -> tuple[float, float]:
        """Of the calibrated cluster, and of the known one."""
        measured = self.step.row.measured
        return self.here / measured - 1, self.step.below / measured - 1

    @property
    def fitted(self) -> str:
        """What of the calibration this step had a part in."""
        step = self.step
        if step.tiny or step.host_bound or step.experts:
            return "host"
        parts = ("kernels" if step.traced else "", "level" if step.levels else "")
        return ", ".join(filter(None, parts))

    @property
    def judges_kernels(self) -> bool:
        """Whether it says how good the kernels are: the GPU alone decides it, and their level was not read off it."""
        step = self.step
        alone = not step.host_bound and step.factor > SURE
        return alone and not step.tiny and not step.levels


def better_before(judged: Sequence[Judged], between: float) -> float:
    """Times by which steps of the GPU are likelier with the known kernels than with this machine's; 0 without any.

    Parameters
    ----------
    between
        Standard deviation of the logarithm between machines.
    """
    errors = [one.errors for one in judged if one.judges_kernels]
    if not errors:
        return 0.0
    lost = sum(math.log1p(here) ** 2 - math.log1p(known) ** 2 for here, known in errors)
    return math.exp(lost / (2 * (between**2 + OF_A_STEP**2)))


def judge(steps: Sequence[Step], cluster: Path) -> list[Judged]:
    """Every step on the calibrated cluster, but the tiny ones, which are the host's alone."""
    mine, large = {"file": str(cluster)}, [step for step in steps if not step.tiny]
    return [Judged(step, predicted(step.row, mine)) for step in large]


def table(judged: list[Judged], reasons: list[str]) -> str:
    """Every row, and mean absolute errors of those that nothing was fitted to and of all."""
    if not judged and not reasons:
        return "none measured"
    lines = [f"{'step':32} {'measured':>11} {'error':>8} {'before':>8}  fitted to it"]
    for one in judged:
        here, below = one.errors
        row = one.step.row
        lines.append(
            f"{row.name:32} {row.measured * 1e3:8.2f} ms {here:+8.1%} {below:+8.1%}  {one.fitted or 'nothing'}"
        )
    apart = [one for one in judged if not one.fitted]
    for title, some in (
        ("mean |error|", judged),
        ("of what was fitted to none", apart),
    ):
        if some:
            here, below = (
                np.abs([one.errors[i] for one in some]).mean() for i in (0, 1)
            )
            lines.append(f"{title:32} {len(some):8}    {here:8.1%} {below:8.1%}")
    return "\n".join([*lines, *(f"not predicted: {reason}" for reason in reasons)])
