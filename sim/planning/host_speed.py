"""How fast the hosts of a scenario run framework code, as the scenario or its cluster says."""

from __future__ import annotations

from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric
from prestep.workloads.models.model import load_model


def of_cluster(scenario: Scenario, fabric: Fabric) -> float | None:
    """`host_factor` as the cluster has it for such a model: that of experts where it says one; None: it says none."""
    facts = fabric.cluster_facts
    if facts.host_factor_experts is not None and _has_experts(scenario):
        return facts.host_factor_experts
    return facts.host_factor


def stated(scenario: Scenario, fabric: Fabric) -> float | None:
    """The factor that counts: the scenario's own, else the cluster's; None: nobody says it."""
    own = scenario.cluster.host_factor
    return of_cluster(scenario, fabric) if own is None else own


def _has_experts(scenario: Scenario) -> bool:
    return load_model(scenario.model, scenario.where).experts > 0
