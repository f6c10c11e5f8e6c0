"""Host time of a framework's operations, and how it launches kernels: `frameworks/NAME.toml`, beside its plug-in.

Operators, views, launches, events and calls of Python's functions have prices (`host_us`), whoever recorded them. What
a module, its hooks or an optimizer does of these was counted in recordings (`counted`).
"""

from __future__ import annotations

from functools import cache
from math import fsum
from pathlib import Path
from typing import Any

from prestep.sim import plugins, schema
from prestep.sim.errors import InputError, unknown
from prestep.sim.schema import Number, Switch, Table, Text

FRAMEWORKS = "prestep.workloads.frameworks"
FOLDER = Path(__file__).parent / "frameworks"
#: What the host spends time on, as lowering names it.
_OPERATIONS = """
graph_launch graph_replay launch linear linear_backward linear_weight_backward elementwise elementwise_nograd
elementwise_backward view view_backward norm norm_backward attention attention_backward embedding conv batch_norm loss
loss_backward module accumulate_grad backward_call step_python checkpoint checkpoint_backward saved_tensor
saved_tensor_again ddp_forward ddp_hook ddp_finalize ranks_meet blocking_collective collective optimizer_step
optimizer_param zero_grad optimizer_step_dtensor optimizer_param_dtensor fsdp_unshard fsdp_unshard_param fsdp_wait
fsdp_wait_param fsdp_present_param fsdp_pre_forward fsdp_inputs fsdp_post_forward fsdp_pre_backward fsdp_post_backward
fsdp_reduce fsdp_reduce_param fsdp_finalize dtensor_linear dtensor_backward dtensor_linear_backward dtensor_exchange
dtensor_operation functional_collective pp_action p2p_batch p2p_op all_to_all broadcast_buffers broadcast_copy
custom_function custom_function_backward triton_function triton_function_backward index index_backward quantize
compiled_forward compiled_backward compiled_launch fused fused_backward unfused_attention unfused_attention_backward
blocked_launch zero_bucket zero_param zero3_operation zero3_pre_forward zero3_post_forward zero3_pre_backward
zero3_post_backward zero3_function zero3_linear zero3_linear_backward zero3_gather zero3_gather_param zero3_await
zero3_free zero3_gradient zero3_reduce zero3_reduce_param zero3_step_param zero3_small grouped_gemm moe_counts
autograd_engine python_call aten_elementwise aten_product aten_attention aten_convolution aten_norm aten_list
aten_list_tensor fsdp_copy event aten_elementwise_backward aten_product_backward aten_attention_backward
aten_convolution_backward aten_norm_backward norm_module parallel_linear parallel_linear_backward router
unfused_router expert_layer expert_layer_backward triton_launch optimizer_fp8 compiled_update
"""
OPERATIONS = tuple(_OPERATIONS.split())
PRICES = Table(dict.fromkeys(OPERATIONS, Number()))
SCHEMA = Table(
    {
        "inherits": Text(),
        "captured": Switch(),
        "kernel_gap_us": Number(),
        "whole_steps": Number(),
        "host_us": PRICES,
        "counted": Table(dict.fromkeys(OPERATIONS, PRICES)),
        "buckets": Table(dict.fromkeys(("reduce", "allgather"), Number(1, whole=True))),
    },
    needed=("host_us",),
)


def table_names() -> list[str]:
    """Frameworks that have a table, sorted."""
    return sorted(_tables())


@cache
def host_costs(framework: str) -> dict[str, float]:
    """Seconds of host time by operation name; 0 for what a captured graph does not do again.

    Raises
    ------
    InputError
        If there is no such framework.
    """
    prices, counted = prices_and_counts(framework)
    return prices | {
        name: fsum(prices[each] * times for each, times in parts.items())
        for name, parts in counted.items()
    }


Prices = dict[str, float]


@cache
def prices_and_counts(framework: str) -> tuple[Prices, dict[str, Prices]]:
    """Seconds by operation, and operations of which others consist, each with how often; a name is in one of them.

    A table's own prices count `whole_steps` times: its modules were measured apart, and take longer than that in steps.
    """
    table, counted = _read(framework), dict[str, Prices]()
    own = {
        name: micros * 1e-6 * table.get("whole_steps", 1.0)
        for name, micros in table["host_us"].items()
    }
    prices = Prices()
    if "inherits" in table:
        prices, counted = prices_and_counts(table["inherits"])
    if table.get("captured"):
        prices, counted = dict.fromkeys((*prices, *counted), 0.0), {}
    consists = table.get("counted", {})
    prices = {n: price for n, price in prices.items() if n not in consists} | own
    return prices, {n: p for n, p in counted.items() if n not in own} | consists


@cache
def kernel_gap(framework: str) -> float | None:
    """Seconds between two kernels of a stream where the framework decides them (a CUDA graph); None: the GPU's own."""
    micros = _read(framework).get("kernel_gap_us")
    return None if micros is None else float(micros) * 1e-6


@cache
def buckets(framework: str) -> dict[str, int]:
    """Elements of a bucket by what is sent in it (``reduce``, ``allgather``); empty where the framework says none."""
    return dict(_read(framework).get("buckets", {}))


def _tables() -> dict[str, Path]:
    """The table of each framework: one of prestep's, or beside the plug-in that another room or distribution brings."""
    tables = {path.stem: path for path in FOLDER.glob("*.toml")}
    for name, plugin in plugins.plugins_of(FRAMEWORKS).items():
        if plugin.file is not None:
            path = plugin.file.with_name(f"{name.replace('_', '-')}.toml")
            if path.exists():
                tables[path.stem] = path
    return tables


def _read(framework: str) -> dict[str, Any]:
    tables = _tables()
    if framework not in tables:
        raise InputError(unknown("scenario", "training.framework", framework, tables))
    return schema.read(tables[framework], SCHEMA)
