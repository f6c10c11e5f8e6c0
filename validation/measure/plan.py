"""Stages: which probes run in which group of processes, in what environment, for how long."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from validation.measure.options import PROBES, Options, Place

HOST = "host"  # runs in the controller
MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


@dataclass(frozen=True)
class Variant:
    """A setting in which a probe runs: `env` before NCCL starts, on `ranks` processes (None: all).

    Attributes
    ----------
    label : str
        Series of its rows.
    order : int
        Stages run by order; those at 0 share one group of processes.
    weight : float
        Share of the time, against the others'.
    cases : tuple of str
        What of the probe's list it is for (a probe's own business).
    """

    label: str = "default"
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    order: int = 0
    weight: float = 1.0
    cases: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()


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


def load(name: str) -> ModuleType:
    """The module of a probe."""
    return importlib.import_module(f"{PROBES}.{name}")


def stages(options: Options, place: Place) -> tuple[list[Stage], list[Skip]]:
    """Stages in their order, and probes that this machine has nothing for."""
    skips: list[Skip] = []
    host: list[Stage] = []
    shared: list[tuple[str, float]] = []
    apart: list[Stage] = []
    for name in options.chosen():
        probe = load(name)
        if probe.NEEDS == HOST:
            host.append(Stage(name, (name,), (probe.WEIGHT,), Variant(), 1))
            continue
        if why := missing(probe, options, place):
            skips.append(Skip(name, probe.TITLE, why))
            continue
        for variant in variants_of(probe, options, place):
            ranks = min(variant.ranks or place.world, place.world)
            if variant.order == 0:
                shared.append((name, probe.WEIGHT * variant.weight))
            else:
                title = f"{name} {variant.label}" + (
                    f" on {ranks}" if ranks < place.world else ""
                )
                apart.append(
                    Stage(
                        title, (name,), (probe.WEIGHT * variant.weight,), variant, ranks
                    )
                )
    shared.sort(key=lambda item: getattr(load(item[0]), "ORDER", 50))
    names, weights = (
        tuple(name for name, _ in shared),
        tuple(weight for _, weight in shared),
    )
    together = (
        [Stage("default", names, weights, Variant(), place.world)] if shared else []
    )
    host.sort(key=lambda stage: load(stage.name).ORDER)
    return [
        *host,
        *together,
        *sorted(apart, key=lambda stage: stage.variant.order),
    ], skips


def missing(probe: ModuleType, options: Options, place: Place) -> str:
    """Why a probe cannot run here; "" if it can."""
    if place.torch is None:
        return f"no PyTorch here ({place.found.get('error') or 'not installed'})"
    if not place.gpus and not options.rehearse:
        return "no GPU here"
    if probe.NEEDS == "gpus" and place.world < 2:
        return "needs 2 GPUs, there is 1"
    return ""


def variants_of(probe: ModuleType, options: Options, place: Place) -> Sequence[Variant]:
    """Settings a probe runs in; one that says nothing runs once, as NCCL decides."""
    listed = getattr(probe, "variants", None)
    return listed(options, place) if listed else (Variant(),)


def environment(options: Options, variant: Variant) -> dict[str, str]:
    """Variables of a group's processes, over those of this process."""
    env = dict(variant.env)
    if not options.nvls or os.environ.get("NCCL_NVLS_ENABLE") == "0":
        env |= MULTICAST_OFF
    return env
