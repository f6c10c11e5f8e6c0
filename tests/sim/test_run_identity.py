"""The law of identity: runs with one key take one time, whatever switch tells them apart."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.record.identity import key_of
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.strict import type_hints

DENSE = {
    "kind": "transformer",
    "hidden": 128,
    "layers": 2,
    "heads": 4,
    "ffn": 256,
    "vocab": 512,
}
EXPERTS = DENSE | {"experts": 4, "experts_per_token": 2, "moe_ffn": 128}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp": {"dp": 4},
    "fsdp": {"dp": 4, "data_parallel": "fsdp"},
    "zero1": {"dp": 4, "data_parallel": "zero1"},
    "tensor": {"tp": 2, "dp": 2},
    "pipeline": {"pp": 2, "dp": 2},
    "context": {"cp": 2, "tp": 2},
    "experts": {"ep": 2, "dp": 4, "data_parallel": "ddp"},
}
FRAMEWORKS = (
    "pytorch-eager",
    "pytorch-compiled",
    "cuda-graph",
    "megatron",
    "deepspeed",
    "automodel",
)
# Values of keys that are neither switches nor choices: small changes, so that a run stays small.
VALUES: dict[type, list[Any]] = {int: [1, 2, 4], float: [0.5, 2.0], str: []}
NAMED: dict[str, list[Any]] = {
    "cluster.host_factor": [2.0],
    "cluster.kernel_gap": ["5 us"],
    "cluster.routing": ["ecmp"],
    "cluster.set": [{"nvlink.bandwidth": "0.5x"}],
    "training.seq_len": [64, 256],
    "parallel.order": ["dp-tp-cp-ep-pp", "tp-cp-ep-pp-dp"],
    "parallel.schedule": ["gpipe", "zero-bubble"],
    "parallel.imbalance": ["zipf"],
    "parallel.bucket_cap": ["1 MiB"],
    "placement.by": ["rail", "scattered"],
    "placement.gpus": [[f"host0/gpu{i}" for i in (3, 1, 2, 0)]],
    "megatron.recompute_modules": [["core_attn"], ["mlp"]],
    "megatron.cuda_graph_scope": [["attn"], ["full_iteration"]],
    "megatron.bucket_size": [1000],
    "nccl.buffer_size": ["1 MiB"],
    "nccl.net_speed": ["1 GB/s"],
    "faults.slow_rank": [0],
    "checkpoint.storage": ["nvme"],
    "dataload.storage": ["nvme"],
    "dataload.batch_time": ["300 ms"],
}
SECTIONS = (
    "cluster",
    "training",
    "parallel",
    "megatron",
    "pytorch",
    "nccl",
    "placement",
    "faults",
    "dataload",
)
# What a run is made of by other means, or what a law of its own is about.
OTHERS = {
    "cluster.name",
    "cluster.file",
    "cluster.hostfile",
    "training.framework",
    "placement.hostfile",
}


def _values(section: str, name: str, hint: Any) -> list[Any]:
    """Values of a key that may differ from its default."""
    dotted = f"{section}.{name}"
    if dotted in OTHERS:
        return []
    if dotted in NAMED:
        return NAMED[dotted]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [True, False] if hint is bool else VALUES.get(hint, [])


def _switches() -> dict[str, list[Any]]:
    plain = Scenario()
    found = {}
    for section in SECTIONS:
        cls = type(plain.section(section))
        hints = type_hints(cls)
        for entry in fields(cls):
            if values := _values(section, entry.name, hints[entry.name]):
                found[f"{section}.{entry.name}"] = values
    return found


SWITCHES = _switches()


def _scenario(
    framework: str, layout: str, model: dict[str, Any], switches: dict[str, Any]
) -> Scenario | None:
    """The run with its switches; None where it is refused."""
    parallel = LAYOUTS[layout]
    gpus = 1
    for axis in ("dp", "tp", "pp", "cp"):
        gpus *= parallel.get(axis, 1)
    tables: dict[str, Any] = {
        "cluster": {"name": "h200-host-4", "gpus": gpus},
        "model": model,
        "training": {"framework": framework, "seq_len": 128, "microbatches": 2},
        "parallel": parallel,
    }
    for dotted, value in switches.items():
        section, _, name = dotted.partition(".")
        tables[section] = {**tables.get(section, {}), name: value}
    try:
        return parse_scenario(tables, "law")
    except InputError:
        return None


def _time(scenario: Scenario) -> float | None:
    try:
        return predict(scenario).step_time
    except InputError:
        return None


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(deadline=None, derandomize=True)
@given(st.data())
def test_runs_with_one_key_take_one_time(framework: str, data: st.DataObject) -> None:
    """Whatever switch of whatever section is changed: who predicts another time has another key."""
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    model = data.draw(st.sampled_from([DENSE, EXPERTS]))
    name = data.draw(st.sampled_from(sorted(SWITCHES)))
    value = data.draw(st.sampled_from(SWITCHES[name]))
    base, other = (
        _scenario(framework, layout, model, {}),
        _scenario(framework, layout, model, {name: value}),
    )
    if base is None or other is None or base == other or key_of(base) != key_of(other):
        return
    assert _time(base) == _time(other) or None in (_time(base), _time(other)), name


def test_what_deepspeed_reads_of_megatron_is_in_its_key() -> None:
    """Sums of gradients in 16 bits are another run under DeepSpeed, as they are under Megatron."""
    for framework in ("megatron", "deepspeed"):
        runs = [
            _scenario(framework, "ddp", DENSE, {"megatron.main_grads": kind})
            for kind in ("fp32", "bf16")
        ]
        assert runs[0] and runs[1] and key_of(runs[0]) != key_of(runs[1]), framework
