"""The comparison with published training steps: by source, fitted groups apart, rank order within layout sweeps."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lab.formats.published_setups import FOLDER
from lab.report import step_noise
from lab.report.judged import JudgedComparison
from lab.report.step_noise import StepNoise
from prestep.sim import schema
from prestep.sim.schema import Number
from prestep.sim.schema import Table as Keys
from prestep.sim.units import format_duration
from prestep.validation.report.gate import Check, predicted_check, rows_check
from prestep.validation.report.interface import Cells, Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of

NEEDED = ("mape", "bias", "slice_rows", "slice_mape", "spearman")
LIMITS = Keys(dict.fromkeys((*NEEDED, "worst", "noise"), Number(above=True)), NEEDED)
PART = 3  # of the groups of rows, one in so many is for fitting
LISTED = 8  # names of rows in a check
SWEEP = 5  # rows of one model, machine and batch that differ in their layout only


@dataclass(frozen=True)
class Case:
    """A row and its prediction, s.

    `assumed`: what an incomplete row was completed with; `notes`: other defaults; `part`: one group in so many is for
    fitting; `cuts`: further groups whose errors are given; `fit`: constants that were read off rows of its source;
    `listed`: whether a set that lists its groups for fitting has this one, None for sets that do not; `computed`: why
    its time is no measurement of a step, where its source computed it.
    """

    name: str
    slice: str
    group: str
    measured: float
    predicted: float
    error: str = ""
    assumed: str = ""
    notes: str = ""
    part: int = PART
    cuts: tuple[str, ...] = ()
    fit: str = ""
    listed: bool | None = None
    computed: str = ""

    @property
    def fitted(self) -> bool:
        """Whether constants may be taken from its group: one in `part` of them, by a checksum of their names."""
        if self.listed is not None:
            return self.listed
        return zlib.crc32(self.group.encode()) % self.part == 0

    @property
    def signed_error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def point(self) -> Point:
        return Point(
            *(self.name, self.slice, self.measured, self.predicted, self.fitted),
            *(bool(self.assumed), self.error),
        )

    @property
    def cells(self) -> Cells:
        measured = (self.name, self.slice, format_duration(self.measured))
        if self.error:
            return (*measured, "none", "", self.error)
        predicted, error = format_duration(self.predicted), f"{self.signed_error:+.1%}"
        return (*measured, predicted, error, self.assumed)

    def to_json(self) -> dict[str, Any]:
        done = math.isfinite(self.predicted)
        return {
            "id": self.name,
            "slice": self.slice,
            "measured": self.measured,
            "predicted": self.predicted if done else None,
            "signed_error": self.signed_error if done else None,
            "fitted": self.fitted,
            "assumed": self.assumed,
            "notes": self.notes,
            "fit": self.fit,
            "computed": self.computed,
            "error": self.error,
        }


@dataclass(frozen=True)
class PublishedReport(JudgedComparison):
    """All cases, and rows that could not be said as scenarios."""

    name: str
    title: str
    cases: tuple[Case, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    whole: bool = False
    unit: str = "steps"
    limits: Path = FOLDER / "limits.toml"
    noise: tuple[StepNoise, ...] = ()

    head = ("case", "slice", "measured", "predicted", "error", "")
    titles = ("Groups that no constant was taken from", "Groups for fitting")

    def select(
        self,
        slice_: str | None = None,
        fitted: bool | None = None,
        assumed: bool = False,
        where: Callable[[Case], object] = lambda _: True,
    ) -> Errors:
        """Errors of predicted cases: of a slice, fitted or not (None: all), with complete configurations or not.

        ``where``: only of cases for which it holds.
        """
        return errors_of(
            [
                (case.name, case.signed_error)
                for case in self.cases
                if not case.error
                and slice_ in (None, case.slice, *case.cuts)
                and fitted in (None, case.fitted)
                and bool(case.assumed) == assumed
                and where(case)
            ]
        )

    @cached_property
    def slices(self) -> tuple[str, ...]:
        return tuple(sorted({case.slice for case in self.cases}))

    @cached_property
    def sweeps(self) -> dict[str, float]:
        """Spearman's rank correlation by layout sweep."""
        by_sweep: dict[str, list[Case]] = {}
        for case in self.cases:
            if not case.error and not case.assumed:
                by_sweep.setdefault(case.group, []).append(case)
        return {
            name: spearman(cases)
            for name, cases in by_sweep.items()
            if len(cases) >= SWEEP
        }

    @property
    def groups(self) -> Mapping[str, Errors]:
        made = {
            "all": self.select(),
            "predicted": self.select(fitted=False),
            "fitted": self.select(fitted=True),
        }
        made |= self._by_source
        for name in self.slices:
            if (errors := self.select(name, fitted=False)).n:
                made[name] = errors
        for name in sorted({cut for case in self.cases for cut in case.cuts}):
            if (errors := self.select(name)).n:
                made[name] = errors
        if (assumed := self.select(assumed=True)).n:
            made["incomplete rows"] = assumed
        return made

    @property
    def _by_source(self) -> Mapping[str, Errors]:
        """The judged rows by whether a constant was read off rows of their source, and whether that measured a step."""
        parts: dict[str, Callable[[Case], object]] = {}
        if any(case.fit for case in self.cases):
            parts["no constant of their source"] = lambda case: not case.fit
            parts["constants of their source"] = lambda case: case.fit
        if any(case.computed for case in self.cases):
            parts["measured steps"] = lambda case: not case.computed
            parts["computed by their source"] = lambda case: case.computed
        return {
            name: self.select(fitted=False, where=where)
            for name, where in parts.items()
        }

    @property
    def checks(self) -> tuple[Check, ...]:
        limits = schema.read(self.limits, LIMITS)
        held = self.select(fitted=False)
        bad = [case.name for case in self.cases if case.error]
        made = [rows_check(self._judged, self._left_out), predicted_check(bad, LISTED)]
        made += _of_all(held, limits) if held.n else ()
        for name in self.slices:
            errors = self.select(name, fitted=False)
            if errors.n > limits["slice_rows"]:
                made.append(Check(f"{name}: mean", errors.mape, limits["slice_mape"]))
        if self.sweeps:
            made.append(self._order(limits["spearman"]))
        if "noise" in limits and step_noise.judged(self.noise):
            made.append(step_noise.check(self.noise, limits["noise"]))
        return tuple(made)

    def _order(self, least: float) -> Check:
        """That measured and predicted times of a sweep of layouts have the same order."""
        ranks = sorted((value, name) for name, value in self.sweeps.items())
        low = [(value, name) for value, name in ranks if value < least]
        named = (f"{name.replace('|', ' ')} {value:.2f}" for value, name in low[:4])
        title = f"layout sweeps below {least} of rank"
        return Check(title, len(low), 0.0, ", ".join(named), share=False)

    @property
    def _judged(self) -> int:
        """Rows held out of the fits, and those of the sweeps, whose order is judged."""
        return self.select(fitted=False).n + len(self.sweeps)

    @property
    def _left_out(self) -> dict[str, int]:
        return {
            "skipped": len(self.skipped),
            "not predicted": sum(bool(case.error) for case in self.cases),
            "incomplete": self.select(assumed=True).n,
            "in groups for fitting": self.select(fitted=True).n,
        }

    @property
    def case_tables(self) -> Sequence[Table]:
        noise = [step_noise.table(self.noise)] if self.noise else []
        return [*noise, *super().case_tables]

    @property
    def skips(self) -> Sequence[Skip]:
        return tuple(Skip(name, "", reason) for name, reason in self.skipped)

    def figures(self) -> dict[str, Any]:
        return {
            **self.select(fitted=False).to_json(),
            "slices": {name: errors.to_json() for name, errors in self.groups.items()},
            "spearman": self.sweeps,
            **({"noise": step_noise.figures(self.noise)} if self.noise else {}),
        }


def spearman(cases: Sequence[Case]) -> float:
    """Rank correlation of measured and predicted times."""

    def ranks(values: list[float]) -> Any:
        order = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        return order.astype(float)

    a, b = ranks([c.measured for c in cases]), ranks([c.predicted for c in cases])
    return float(np.corrcoef(a, b)[0, 1])


def _of_all(held: Errors, limits: Mapping[str, Any]) -> Iterator[Check]:
    """The checks of all judged rows together."""
    yield Check("mean", held.mape, limits["mape"])
    yield Check("bias", abs(held.bias), limits["bias"])
    if "worst" in limits:
        yield Check("worst", held.worst, limits["worst"], held.worst_id)
