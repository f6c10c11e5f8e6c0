"""States of sharded optimizers, which ranks gather to save them: those of other ranks are like this rank's."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.algorithms.join import Joinable
from torch.distributed.fsdp import _optim_utils as fsdp

States = dict[str, Any]  # of a parameter, by the names that its optimizer gives


def install() -> None:
    Joinable.__init__ = _consolidating(Joinable.__init__)
    fsdp._map_param_key_to_optim_keys = _of_all_ranks(fsdp._map_param_key_to_optim_keys)
    fsdp._allgather_state_info = _with_others(fsdp._allgather_state_info)


# -- ZeroRedundancyOptimizer: every rank has the states of some parameters --------------------------------
def _consolidating(make: Any) -> Any:
    """Its class takes long to import, so it is changed as a program makes its first one."""

    @functools.wraps(make)
    def made(joinable: Any) -> None:
        make(joinable)
        if hasattr(joinable, "consolidate_state_dict"):
            type(joinable).consolidate_state_dict = _consolidate

    return made


# Programs name the arguments of this as PyTorch does.
def _consolidate(zero: Any, to: int = 0) -> None:
    """The rank `to` has a state dict of every rank."""
    zero._check_overlap_initialized()
    zero._sync_param_groups(zero.param_groups, zero.optim.param_groups)
    if zero.rank != to:
        zero._all_state_dicts = []
        return
    own = zero.optim.state_dict()
    zero._all_state_dicts = [
        own if rank == zero.rank else _like(own, groups)
        for rank, groups in enumerate(zero._partition_parameters())
    ]


def _like(own: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The state dict of a rank that updates the parameters of these groups."""
    state: States = next(iter(own["state"].values()), {})
    parameters = [parameter for group in groups for parameter in group["params"]]
    numbers = iter(range(len(parameters)))
    packed = [
        {**options, "params": [next(numbers) for _ in group["params"]]}
        for options, group in zip(own["param_groups"], groups, strict=True)
    ]
    states = enumerate(_states_like(state, parameter) for parameter in parameters)
    return {"state": dict(states) if state else {}, "param_groups": packed}


def _states_like(state: States, parameter: torch.Tensor) -> States:
    """The states of a parameter by those of another one; tensors of more than a number have its shape."""
    return {
        name: torch.empty_like(parameter, dtype=value.dtype)
        if isinstance(value, torch.Tensor) and value.dim()
        else value
        for name, value in state.items()
    }


# -- FullyShardedDataParallel: a rank has parts of some parameters of a flat one ---------------------------
def _of_all_ranks(map_keys: Any) -> Any:
    """Every parameter that is trained has states on some rank, though not on this one."""

    @functools.wraps(map_keys)
    def mapped(*arguments: Any, **options: Any) -> Any:
        keys, own = map_keys(*arguments, **options)
        flat_parameters = arguments[4]
        trained = {
            fsdp._OptimStateKey((name,), True)
            for name, info in flat_parameters.items()
            if info.param_requires_grad and _is_trained(info, name)
        }
        return sorted({*keys, *trained}) if trained else keys, own

    return mapped


def _is_trained(info: Any, name: str) -> bool:
    return bool(info.param_requires_grad[info.param_indices[name]])


def _with_others(gather: Any) -> Any:
    """What others say of the states of a parameter that this rank has no part of: what it says of another one."""

    @functools.wraps(gather)
    def gathered(shards: Any, states: dict[str, States]) -> Any:
        told = gather(shards, states)
        own = told[shards.rank]
        like = next((info for info in own.values() if info.tensors), None)
        if like is None:
            return told
        others = {name: info if info.tensors else like for name, info in own.items()}
        return [own if rank == shards.rank else others for rank in range(len(told))]

    return gathered
