"""The comparison of training steps: cases, their errors, and the report that the writers read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lab.report.judged import JudgedComparison
from lab.report.step_cases import Case
from lab.report.tolerances import Tolerances
from prestep.validation.formats.rows import Row
from prestep.validation.report.gate import Check, none_of, prediction_checks
from prestep.validation.report.interface import Skip
from prestep.validation.report.summary import Errors, errors_of

FAMILIES = ("single", "ddp", "fsdp", "tp", "pp", "moe", "cnn", "mlp")
PROGRAMS = (
    "hf",
    "mcore",
    "ds",
    "titan",
    "tv",
)  # families of programs that others wrote


@dataclass(frozen=True)
class Report(JudgedComparison):
    """All cases of a set, and the rows that could not be compared (`skipped`).

    `whole`: these are all rows of a bundled set, so that none may be skipped.
    """

    name: str
    cases: tuple[Case, ...]
    tolerances: Tolerances
    skipped: tuple[Row, ...] = ()
    whole: bool = False
    title: str = ""

    head = ("case", "family", "measured", "predicted", "error", "memory", "")
    titles = (
        "Rows that no constant was taken from",
        "Rows that some constant was taken from (fitted.toml)",
    )

    @property
    def unit(self) -> str:
        return "steps"

    @property
    def unpredicted(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.prediction.error)

    @property
    def without_memory(self) -> tuple[Case, ...]:
        """Predicted cases whose memory was measured on some rank, and predicted on none."""
        return tuple(
            c
            for c in self.cases
            if not c.prediction.error
            and any(c.row.peak_memory.values())
            and not c.memory_errors
        )

    def select(
        self, noisy: bool = False, family: str | None = None, fitted: bool | None = None
    ) -> Errors:
        """Errors of the predicted cases that are noisy or not, of a family, fitted or not (None: all)."""
        return errors_of(
            [
                (case.name, case.signed_error)
                for case in self.cases
                if not case.prediction.error
                and case.noisy == noisy
                and family in (None, case.row.family)
                and fitted in (None, case.fitted)
            ]
        )

    @property
    def families(self) -> dict[str, Errors]:
        """By family, those with rows that are not noisy."""
        names = (*FAMILIES, *PROGRAMS)
        families = {family: self.select(family=family) for family in names}
        return {family: errors for family, errors in families.items() if errors.n}

    @property
    def memory(self) -> Errors:
        """Over predicted cases, noisy or not (memory has no noise), each by the rank that is furthest off."""
        return self._errors_of(lambda case: case.peak_memory_error)

    @property
    def reserved(self) -> Errors:
        """As `memory`, of what the allocator holds."""
        return self._errors_of(lambda case: case.reserved_error)

    def _errors_of(self, error: Callable[[Case], float | None]) -> Errors:
        """One kind of error of the cases that have it."""
        pairs = [(case.name, error(case)) for case in self.cases]
        return errors_of([(name, own) for name, own in pairs if own is not None])

    @property
    def groups(self) -> dict[str, Errors]:
        return {
            "all": self.select(),
            **self.families,
            "predicted": self.select(fitted=False),
            "fitted": self.select(fitted=True),
            "noisy": self.select(noisy=True),
            "peak memory": self.memory,
            **({"reserved memory": self.reserved} if self.reserved.n else {}),
        }

    @property
    def skips(self) -> Sequence[Skip]:
        return tuple(Skip(row.name, row.where, row.error) for row in self.skipped)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every check that the rows allow, and that there are rows at all and all were predicted."""
        return (*self._counts(), *self._errors())

    def _counts(self) -> Iterator[Check]:
        unpredicted = [case.name for case in self.unpredicted]
        skipped = [row.name for row in self.skipped]
        yield from prediction_checks(len(self.cases), unpredicted, len(skipped))
        if self.whole:
            yield none_of("rows skipped", skipped)
        without = [case.name for case in self.without_memory]
        yield none_of("rows without memory", without)

    def _errors(self) -> Iterator[Check]:
        limits, overall, noisy, memory = (
            self.tolerances,
            self.select(),
            self.select(noisy=True),
            self.memory,
        )
        if overall.n:
            yield Check("step time: mean", overall.mape, limits.step_mape)
            yield Check("step time: bias", abs(overall.bias), limits.bias)
            yield Check(
                "step time: worst", overall.worst, limits.worst, overall.worst_id
            )
        for name, errors in self.families.items():
            yield Check(f"{name}: mean", errors.mape, limits.family_mape)
        if noisy.n:
            yield Check("noisy rows: mean", noisy.mape, limits.noisy_mape)
        if memory.n:
            yield Check("peak memory: mean", memory.mape, limits.memory_mape)
            yield Check(
                "peak memory: worst", memory.worst, limits.memory_worst, memory.worst_id
            )

    def figures(self) -> dict[str, Any]:
        apart = {
            "noisy": self.select(noisy=True),
            "fitted": self.select(fitted=True),
            "predicted": self.select(fitted=False),
            "memory": self.memory,
        }
        return {
            **self.select().to_json(),
            "families": {
                name: errors.to_json() for name, errors in self.families.items()
            },
            **{name: errors.to_json() for name, errors in apart.items()},
        }
