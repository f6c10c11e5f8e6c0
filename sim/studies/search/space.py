"""Which layouts there are: every combination of the axes that the rules of a scenario allow."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.sim.lowering import not_simulated
from prestep.sim.predict import load_fabric
from prestep.sim.spec.lookup import layout_mistakes
from prestep.sim.spec.rules.layout import check_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.search.axes import KEYS, Axes, Place, Values, changed
from prestep.topologies.fabric import Fabric
from prestep.workloads.models.model import ModelSpec, load_model


@dataclass(frozen=True)
class Candidate:
    """A valid layout: its number in the order of enumeration, what it chooses, and the scenario that it makes."""

    index: int
    chosen: tuple[tuple[str, Any], ...]
    scenario: Scenario

    @property
    def family(self) -> tuple[tuple[str, Any], ...]:
        """Everything but the micro batch, with which memory only grows."""
        return tuple(item for item in self.chosen if item[0] != "training.micro_batch")


@dataclass
class Space:
    """Valid layouts, and how many were refused by the rules on which key (with one mistake as an example)."""

    candidates: list[Candidate] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Mistake] = field(default_factory=dict)


class Clusters:
    """Fabrics, models and allotted GPUs of scenarios, each made once."""

    def __init__(self) -> None:
        self._fabrics: dict[str, Fabric] = {}
        self._models: dict[str, ModelSpec] = {}

    def fabric(self, scenario: Scenario) -> Fabric:
        key = repr((replace(scenario.cluster, gpus=None), scenario.nccl.pxn_disable))
        if key not in self._fabrics:
            self._fabrics[key] = load_fabric(scenario)
        return self._fabrics[key]

    def model(self, scenario: Scenario) -> ModelSpec:
        key = repr(scenario.model)
        if key not in self._models:
            self._models[key] = load_model(scenario.model, scenario.where)
        return self._models[key]

    def place(self, scenario: Scenario) -> Place:
        """What the axes depend on: the GPUs of the cluster (or `cluster.gpus` of them) and the model."""
        fabric, model = self.fabric(scenario), self.model(scenario)
        gpus = scenario.cluster.gpus or len(fabric.gpus)
        hosts = Counter(fabric.host_of(gpu) for gpu in fabric.gpus)
        transformer = model.kind == "transformer"
        joined = min(gpus, max(hosts.values()))
        return Place(
            gpus, joined, model.layers if transformer else 1, model.experts, transformer
        )


def space(
    base: Scenario, batch: int, over: Mapping[str, Values], clusters: Clusters
) -> Space:
    """Every valid layout of `batch` samples a step, in the order of the axes.

    Values of keys that are no part of a layout (`over`) are combined with all of them.

    Raises
    ------
    InputError
        If the scenario says where its ranks run, or names a cluster or a model that does not exist.
    """
    _refuse_allocation(base)
    valid, numbers = Space(), itertools.count()
    others = {key: values for key, values in over.items() if key not in KEYS}
    for values in itertools.product(*others.values()):
        changes = dict(zip(others, values, strict=True))
        for chosen, made in _scenarios(base, batch, changes, over, clusters):
            gpus = len(clusters.fabric(made).gpus)
            mistake = _mistake(made, gpus, clusters.model(made))
            if mistake:
                valid.refused[mistake.key] += 1
                valid.examples.setdefault(mistake.key, mistake)
            else:
                choice = (*changes.items(), *chosen.items())
                valid.candidates.append(Candidate(next(numbers), choice, made))
    return valid


def _refuse_allocation(base: Scenario) -> None:
    """A search uses the whole cluster: where ranks run follows from the layout."""
    keys = ("gpus", "hosts", "hostfile", "slots")
    if base.cluster.hostfile or any(getattr(base.placement, key) for key in keys):
        hint = "[cluster] gpus takes the first so many"
        raise InputError.of(
            base.where, "placement", "an allocation", "the whole cluster", hint
        )


def _scenarios(
    base: Scenario,
    batch: int,
    changes: Mapping[str, Any],
    over: Mapping[str, Values],
    clusters: Clusters,
) -> Iterator[tuple[dict[str, Any], Scenario]]:
    """(layout, scenario with it) for every layout, valid or not, of the base with other changes."""
    changes = dict(changes)
    samples = changes.pop("training.global_batch", batch)
    without = changed(base, changes)
    place = clusters.place(without)
    for chosen in _layouts(Axes(without, place, over), place.gpus, samples):
        yield chosen, changed(without, {**chosen, "training.global_batch": samples})


def _layouts(axes: Axes, gpus: int, batch: int) -> Iterator[dict[str, Any]]:
    """Combinations that fill the GPUs."""
    for tp, cp, pp in itertools.product(axes.tensor(), axes.context(), axes.pipeline()):
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest or not axes.allows(dp):
            continue
        choices = itertools.product(
            axes.schedules(pp),
            axes.experts(tp),
            axes.replicas(dp, cp),
            axes.sequence(tp),
            axes.recompute(),
            axes.samples(batch, dp),
        )
        for stages, experts, replicas, sequence, recompute, samples in choices:
            (schedule, vpp), (ep, etp), (way, reshard) = stages, experts, replicas
            sizes = dp, tp, cp, ep, etp, pp, vpp
            ways = schedule, way, reshard, sequence, samples, recompute
            yield dict(zip(KEYS, (*sizes, *ways), strict=True))


def _mistake(scenario: Scenario, gpus: int, model: ModelSpec) -> Mistake | None:
    """The first thing that `prestep run` would refuse."""
    mistakes = check_scenario(scenario)
    mistakes = mistakes or layout_mistakes(scenario, gpus, model)
    mistakes = mistakes or not_simulated(scenario)
    return mistakes[0] if mistakes else None
