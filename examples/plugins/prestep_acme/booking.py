"""The section [booking]: what GPUs cost that are booked for some days, whatever they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from prestep.sim.outputs import words
from prestep.sim.predict import load_fabric
from prestep.sim.spec.sections import OtherRun, Scenario
from prestep.sim.strict import key


@dataclass(frozen=True)
class Booking(OtherRun):
    """GPUs that are booked."""

    COMMANDS: ClassVar[str] = "prestep run says what [booking] costs"

    days: float = key(1.0, "for which the GPUs are booked", above=0)
    price: float = key(2.0, "of a GPU for an hour", above=0)


SCHEMA = words.table(
    "GPUs that are booked (`[booking]`)",
    gpu_hours=words.number("of all GPUs"),
    price=words.number("of all of them"),
)


def predict(scenario: Scenario) -> dict[str, Any]:
    """What `prestep run --json` prints."""
    asked = scenario.section("booking")
    hours = len(load_fabric(scenario).gpus) * asked.days * 24
    return {"gpu_hours": hours, "price": hours * asked.price}


def render(table: Mapping[str, Any]) -> str:
    """The page for people."""
    return f"{table['gpu_hours']:g} GPU hours cost {table['price']:.2f}."
