"""Keys that have no part in a step are told: nothing that was asked for is ignored in silence."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.rules.idle import Asked, condition_of, idle, wants
from prestep.sim.spec.sections import SECTIONS, Scenario
from prestep.sim.tools import catalog
from prestep.sim.tools.catalog import find_scenario
from prestep.workloads.models.model import ModelSpec, load_model

SMALL: dict[str, Any] = {
    "cluster": {"name": "dgx-h100"},
    "model": {
        "kind": "transformer",
        "hidden": 512,
        "layers": 2,
        "heads": 8,
        "ffn": 1024,
        "vocab": 1000,
    },
    "training": {"seq_len": 256},
    "parallel": {"dp": 8},
}
MODEL = ModelSpec(name="m", kind="transformer", hidden=512, layers=2, heads=8)
#: Stated keys, of which each is told where a plain step of PyTorch with DDP has no use for it.
IDLE = {
    "megatron.bias_fusion": False,
    "megatron.moe_grouped_gemm": False,
    "adapter.rank": 4,
    "parallel.reshard_after_forward": True,
    "parallel.sequence_parallel": True,
    "parallel.schedule": "zero-bubble",
    "cluster.routing_seed": 3,
    "nccl.net_speed": "5 GB/s",
    "nccl.transport": "proxy",
    "faults.spares": 3,
    "pytorch.version": "2.1",
    "cluster.host_memory": "1 MiB",
    # NVLink SHARP runs all-reduces on eight H100, by CTAs of its own.
    "nccl.max_channels": 1,
    "nccl.buffer_size": "1 MiB",
}


def _with(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return SMALL | {section: {**SMALL.get(section, {}), name: value}}


@pytest.mark.parametrize("key", IDLE)
def test_a_key_without_a_part_is_told(key: str) -> None:
    """Another framework's key, one of experts without experts, of hosts on one host: the result names it, and why."""
    tables = _with(key, IDLE[key])
    tables["pytorch"] = {"attention": "cudnn"} | tables.get("pytorch", {})
    told = [
        line for line in predict(parse_scenario(tables, "x")).warnings if key in line
    ]
    assert len(told) == 1 and "no part in this step" in told[0]


@pytest.mark.parametrize("key", ["nccl.max_channels", "nccl.min_channels"])
def test_a_setting_of_channels_has_a_part_where_rings_run(key: str) -> None:
    """Without NVLink SHARP one channel, or many, takes other SMs and other time, and nothing is said."""
    tables = SMALL | {"nccl": {"nvls": False, "algo": "ring", "proto": "Simple"}}
    plain = predict(parse_scenario(tables, "x"))
    value = 1 if key.endswith("max_channels") else 32
    name = key.removeprefix("nccl.")
    stated = predict(
        parse_scenario(tables | {"nccl": tables["nccl"] | {name: value}}, "x")
    )
    assert stated.energy != plain.energy
    assert not any(key in line for line in stated.warnings)


def test_every_condition_is_of_a_key_that_there_is() -> None:
    """A key that was renamed is not waited for in vain."""
    for cls in SECTIONS.values():
        for condition in {text for key in fields(cls) for text in wants(cls, key)}:
            met, words = condition_of(condition)
            assert words and isinstance(met(Asked(Scenario(), MODEL, 1)), bool)


def test_bundled_scenarios_say_nothing_in_vain() -> None:
    """Each key that they state has a part in their steps."""
    for name in catalog.names("scenarios"):
        scenario = load_scenario(find_scenario(name))
        for job in scenario.jobs or (scenario,):
            assert not [*idle(job, load_model(job.model, name), hosts=2)], name


def _whatif(*changes: str) -> dict[str, Any]:
    words = ["whatif", "mlp-ddp4", "--json"]
    words += [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 0, done.output
    table: dict[str, Any] = json.loads(done.stdout)
    return table


def test_a_what_if_says_that_nothing_moves_and_why() -> None:
    """A switch of Megatron's in a step without its layers: no figure moves, and the changed side says why."""
    table = _whatif("megatron.bias_fusion=false")
    assert table["unchanged"] and table["difference"] == 0
    assert any("megatron.bias_fusion" in line for line in table["changed"]["warnings"])
    assert not table["base"]["warnings"]
    assert not _whatif("training.micro_batch=2")["unchanged"]


def test_a_what_if_says_what_does_not_fit() -> None:
    """The page says it before its table, and the JSON on the side that it is true of."""
    changes = ("training.micro_batch=100000000", "training.global_batch=400000000")
    table = _whatif(*changes)
    assert not table["changed"]["out_of_memory"]["fits"]
    assert table["base"]["out_of_memory"]["fits"]
    words = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(cli.main, ["whatif", "mlp-ddp4", *words])
    assert "changed does not fit" in done.stdout.splitlines()[1]


@pytest.mark.parametrize("key", ["attention_dropout", "hidden_dropout"])
def test_nobody_drops_all_values(key: str) -> None:
    """A share of one or more is refused."""
    with pytest.raises(InputError, match=key):
        parse_scenario(_with(f"megatron.{key}", 1.0), "x")


@pytest.mark.parametrize("microbatches", [3_001, 10**9])
def test_more_microbatches_than_can_be_simulated_are_refused(microbatches: int) -> None:
    """By rule, before the step is lowered."""
    training = {"framework": "megatron", "seq_len": 256, "microbatches": microbatches}
    with pytest.raises(InputError, match="microbatches of 1 stages"):
        predict(parse_scenario(SMALL | {"training": training}, "x"))


def test_an_engine_with_an_optimizer_of_its_own_takes_no_other() -> None:
    """DeepSpeed's FusedAdam is one kernel with moments in fp32: what says otherwise is refused, both keys together."""
    tables = SMALL | {
        "training": {"seq_len": 256, "framework": "deepspeed-eager"},
        "parallel": {"dp": 8, "data_parallel": "zero3"},
        "pytorch": {"fused_optimizer": False, "wide_moments": True},
    }
    with pytest.raises(InputError) as wrong:
        predict(parse_scenario(tables, "x"))
    keys = {mistake.key for mistake in wrong.value.mistakes}
    assert keys == {"pytorch.fused_optimizer", "pytorch.wide_moments"}


@pytest.mark.parametrize(
    ("framework", "way", "key", "value"),
    [
        ("deepspeed", "zero2", "parallel.reshard_after_forward", False),
        ("deepspeed", "zero2", "megatron.gradient_accumulation_fusion", False),
        ("automodel", "fsdp", "pytorch.compiled_layers", True),
    ],
)
def test_choices_that_an_engine_does_not_have_are_told(
    framework: str, way: str, key: str, value: bool
) -> None:
    """DeepSpeed's stage 2 keeps parameters and adds gradients its own way; compiled layers differ by sums and DTensors."""
    section, name = key.split(".")
    tables: dict[str, Any] = {**SMALL, "training": {"seq_len": 256}}
    tables["training"]["framework"] = framework
    tables["parallel"] = {"dp": 8, "data_parallel": way}
    tables.setdefault(section, {})[name] = value
    told = predict(parse_scenario(tables, "x")).warnings
    assert any(key in line and "no part in this step" in line for line in told)


def test_types_of_experts_are_told_where_there_are_none() -> None:
    """Automodel reduces experts' gradients in a type of their own."""
    tables = SMALL | {
        "training": {"seq_len": 256, "framework": "automodel"},
        "parallel": {"dp": 8, "data_parallel": "fsdp"},
        "pytorch": {"experts_reduce_dtype": "bf16"},
    }
    told = predict(parse_scenario(tables, "x")).warnings
    assert any("pytorch.experts_reduce_dtype" in line for line in told)
