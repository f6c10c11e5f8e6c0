"""A measured step beside its prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.formats.step_times import spread_of
from prestep.sim.units import format_duration
from prestep.validation.formats.rows import Row
from prestep.validation.report.interface import Cells, Interval, Point


@dataclass(frozen=True)
class Prediction:
    """Seconds and peak bytes by rank, and between which seconds a measurement should lie; or why there is none.

    `reserved` has the bytes that the allocator of each rank holds, where its blocks are simulated.
    """

    step_time: float = float("nan")
    peak_memory: Mapping[int, float] = field(default_factory=dict)
    error: str = ""
    interval: Interval | None = None
    host: float | None = None
    reserved: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row and its prediction. `fitted`: some constant was taken from what this row measured."""

    row: Row
    prediction: Prediction
    fitted: bool
    noisy: bool

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def signed_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.prediction.step_time / self.row.measured - 1

    @property
    def point(self) -> Point:
        return Point(
            *(self.name, self.row.family, self.row.measured),
            predicted=self.prediction.step_time,
            fitted=self.fitted,
            faint=self.noisy,
            error=self.prediction.error,
            interval=self.prediction.interval,
        )

    @property
    def cells(self) -> Cells:
        row, worst = self.row, self.peak_memory_error
        measured = (row.name, row.family, format_duration(row.measured))
        if self.prediction.error:
            return (*measured, "none", "", "", self.prediction.error)
        return (
            *measured,
            format_duration(self.prediction.step_time),
            f"{self.signed_error:+.1%}",
            "" if worst is None else f"{worst:+.1%}",
            "noisy" if self.noisy else "",
        )

    @property
    def memory_errors(self) -> dict[int, float]:
        """Signed error of peak memory by rank, for the ranks that have both.

        Ranks with the same prediction do the same work, and whether they run out of memory is decided by the
        fullest: all of them are compared with it. (Replicas differ by what a watchdog thread has released.)
        """
        predicted, measured = self.prediction.peak_memory, self.row.peak_memory
        both = {
            rank: size
            for rank, size in measured.items()
            if rank in predicted and size > 0
        }
        fullest: dict[float, float] = {}
        for rank, size in both.items():
            fullest[predicted[rank]] = max(size, fullest.get(predicted[rank], 0.0))
        return {rank: predicted[rank] / fullest[predicted[rank]] - 1 for rank in both}

    @property
    def peak_memory_error(self) -> float | None:
        """Signed error of the rank that is furthest off; None if there is none to compare."""
        return max(self.memory_errors.values(), key=abs, default=None)

    @property
    def reserved_error(self) -> float | None:
        """Signed error of what the allocator of the fullest rank holds; None if there is none to compare."""
        most = max(self.prediction.reserved.values(), default=0.0)
        return most / self.row.reserved - 1 if most and self.row.reserved else None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.row.name,
            "where": self.row.where,
            "family": self.row.family,
            "world": self.row.world,
            "measured": self.row.measured,
            "predicted": self.prediction.step_time,
            "signed_error": self.signed_error,
            "interval": self.prediction.interval,
            "spread": spread_of(self.row),
            "noisy": self.noisy,
            "fitted": self.fitted,
            "measured_peak_memory": {
                str(rank): size for rank, size in self.row.peak_memory.items()
            },
            "predicted_peak_memory": {
                str(rank): size for rank, size in self.prediction.peak_memory.items()
            },
            "peak_memory_error": self.peak_memory_error,
            "reserved_memory_error": self.reserved_error,
            "error": self.prediction.error,
            "host_factor": self.prediction.host,
        }
