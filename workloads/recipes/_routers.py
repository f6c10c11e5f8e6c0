"""Routers of experts in Megatron-core's recipes: what balances them, and how tokens spread where nothing does."""

from __future__ import annotations

from prestep.workloads.recipes import _adapter
from prestep.workloads.recipes._reading import Recipe, Source
from prestep.workloads.recipes._rules import written

#: The load of experts that nothing balances: a row of workloads/routings.toml.
LOAD = "unbalanced"


def settle(draft: Recipe, kind: object, biased: bool, said: str, where: Source) -> None:
    """Spreads tokens as routers without help were measured to, where neither a loss nor a bias balances them.

    Parameters
    ----------
    kind : object
        Megatron-core's moe_router_load_balancing_type; None where nobody says it, which stays open.
    biased : bool
        Whether a bias of each expert balances the router without a loss (moe_router_enable_expert_bias).
    said, where : str
        The recipe's key that says so, and its place.
    """
    if written(kind) != "none" or kind is None or biased:
        return
    if draft.get("megatron.moe_force_load_balancing"):
        return
    if not _adapter.model_of(draft).experts:
        return
    draft.set("parallel.imbalance", LOAD, said, where)
    draft.assume(
        f'neither a loss nor a bias balances the router: tokens spread as parallel.imbalance = "{LOAD}" has them'
    )
