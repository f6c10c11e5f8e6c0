"""Routers of experts in Megatron-core's recipes: what balances them, and how tokens spread where nothing does."""

from __future__ import annotations

from prestep.workloads.recipes import _adapter
from prestep.workloads.recipes._reading import Recipe, Source
from prestep.workloads.recipes._rules import written

#: The load of experts that nothing balances: a row of workloads/routings.toml.
LOAD = "unbalanced"


def settle(
    draft: Recipe,
    kind: object,
    said: str,
    where: Source,
    loss: object = None,
    bias: float = 0.0,
) -> None:
    """Spreads tokens as routers without help were measured to, where neither a loss nor a bias balances them.

    Parameters
    ----------
    kind : object
        Megatron-core's moe_router_load_balancing_type; None where nobody says it, which stays open.
    said, where : str
        The recipe's key that says so, and its place.
    loss : object
        Coefficient of the loss (moe_aux_loss_coeff); None where nobody says it. With 0 there is none.
    bias : float
        How far a bias of each expert (moe_router_enable_expert_bias) moves while the run lasts. Scores lie between 0
        and 1: one that moves less cannot balance them.
    """
    without = written(kind) == "none" or number(loss) == 0
    if kind is None or not without or bias >= 1:
        return
    if draft.get("megatron.moe_force_load_balancing"):
        return
    if not _adapter.model_of(draft).experts:
        return
    draft.set("parallel.imbalance", LOAD, said, where)
    draft.assume(
        f'neither a loss nor a bias balances the router: tokens spread as parallel.imbalance = "{LOAD}" has them'
    )


def number(value: object) -> float | None:
    """A number of a recipe; None for what is none."""
    try:
        return float(str(value))
    except ValueError:
        return None
