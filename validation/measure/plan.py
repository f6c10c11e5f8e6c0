"""Stages: which probes run in which group of processes, in what environment, for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import PrestepError
from prestep.validation.measure.options import PROBES, Options, Place
from prestep.validation.measure.settings import Variant, variants

HOST = "host"  # runs in the controller


@dataclass(frozen=True)
class Stage:
    """One group of processes: probes with their weights, in order."""

    name: str
    probes: tuple[str, ...]
    weights: tuple[float, ...]
    variant: Variant
    ranks: int

    @property
    def weight(self) -> float:
        return sum(self.weights)


@dataclass(frozen=True)
class Skip:
    """What was not measured, and why."""

    probe: str
    what: str
    why: str


@dataclass(frozen=True)
class Probe:
    """What a probe's file says of it, read without importing it: probes import PyTorch.

    Attributes
    ----------
    name, title : str
        Of its file, and for people.
    needs : str
        What it runs on: `host`, `gpu` or `gpus`.
    weight : float
        Share of the time, against the others'.
    order : int
        Place among those that run together.
    """

    name: str
    title: str
    needs: str
    weight: float
    order: int = 50


@cache
def probes() -> Mapping[str, Probe]:
    """All probes by name."""
    outlines = plugins.outlines(PROBES)
    return {name: _probe(name, one.constants) for name, one in outlines.items()}


def _probe(name: str, constants: Mapping[str, Any]) -> Probe:
    required = [constants.get(key) for key in ("TITLE", "NEEDS", "WEIGHT")]
    if None in required:
        raise PrestepError(
            f"{PROBES}.{name}: a probe must say TITLE, NEEDS and WEIGHT as literals"
        )
    title, needs, weight = required
    order = constants.get("ORDER", Probe.order)
    return Probe(name, str(title), str(needs), float(weight), int(order))  # type: ignore[arg-type]


def load(name: str) -> Callable[[Any], None]:
    """The function `measure` of a probe; importing it needs PyTorch, unless it needs the host alone."""
    return plugins.load_function(PROBES, name, "measure")


def stages(options: Options, place: Place) -> tuple[list[Stage], list[Skip]]:
    """Stages in their order, and probes that this machine has nothing for."""
    chosen = sorted((probes()[name] for name in options.chosen()), key=_order)
    absent = {probe: missing(probe, options, place) for probe in chosen}
    skips = [Skip(p.name, p.title, why) for p, why in absent.items() if why]
    here = [probe for probe in chosen if not absent[probe]]
    on_host = [
        Stage(probe.name, (probe.name,), (probe.weight,), Variant(), 1)
        for probe in here
        if probe.needs == HOST
    ]
    return [*on_host, *_on_gpus(here, options, place)], skips


def _on_gpus(here: Sequence[Probe], options: Options, place: Place) -> list[Stage]:
    """Groups of processes: one as NCCL decides, then one for each setting."""
    settings = [
        (probe, variant)
        for probe in here
        if probe.needs != HOST
        for variant in variants(probe.name, options, place)
    ]
    usual = [pair for pair in settings if pair[1].order == 0]
    special = [pair for pair in settings if pair[1].order != 0]
    special.sort(key=lambda pair: (pair[1].order, pair[0].name))
    groups = [_alone(probe, variant, place) for probe, variant in special]
    return [*_as_nccl_decides(usual, place), *groups]


def _order(probe: Probe) -> tuple[int, str]:
    return probe.order, probe.name


def _as_nccl_decides(
    shared: Sequence[tuple[Probe, Variant]], place: Place
) -> list[Stage]:
    """One group of processes for everything that runs as NCCL decides."""
    if not shared:
        return []
    names = tuple(probe.name for probe, _ in shared)
    weights = tuple(probe.weight * variant.weight for probe, variant in shared)
    return [Stage("default", names, weights, Variant(), place.world)]


def _alone(probe: Probe, variant: Variant, place: Place) -> Stage:
    """A group of processes for a setting."""
    ranks = min(variant.ranks or place.world, place.world)
    on = f" on {ranks}" if ranks < place.world else ""
    weight = probe.weight * variant.weight
    title = f"{probe.name} {variant.label}{on}"
    return Stage(title, (probe.name,), (weight,), variant, ranks)


def missing(probe: Probe, options: Options, place: Place) -> str:
    """Why a probe cannot run here; "" if it can."""
    if probe.needs == HOST:
        return ""
    if place.torch is None:
        why = place.about.get("error") or "not installed"
        return f"no PyTorch here ({why}): pip install torch"
    if not place.gpus and not options.rehearse:
        return "no GPU here"
    if probe.needs == "gpus" and place.world < 2:
        return "needs 2 GPUs, there is 1"
    return ""
