"""The optimizer in the host's memory: DeepSpeed's ZeRO-Offload and Megatron's hybrid optimizer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import TO_GPU, TO_HOST, UPDATE_ON_HOST
from prestep.sim.predict import plan, predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads import recipes
from tests.sample import together

MODEL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "ffn": 4096,
    "vocab": 8192,
}
ENGINES = [
    ("deepspeed-eager", "zero1"),
    ("deepspeed-eager", "zero2"),
    ("deepspeed-eager", "zero3"),
    ("deepspeed", "zero1"),
    ("deepspeed", "zero2"),
    ("deepspeed", "zero3"),
    ("megatron", "zero1"),
]
#: Bytes over PCIe for a parameter that the host updates: its gradient, and what comes back. Stage 3 has a sum of
#: gradients on the host even of one microbatch, which goes there and comes back: in 16 bits, or (main_grads) in 32.
MOVED = {
    ("deepspeed-eager", "zero3"): (2 + 4, 2 + 2),
    ("deepspeed", "zero3"): (4 + 4, 4 + 2),
    ("megatron", "zero1"): (4, 4),
}


def job(
    framework: str,
    way: str,
    dp: int = 4,
    offload: str = "optimizer",
    rounds: int = 1,
    clock: str = "",
    quick: bool = False,
    **changed: Any,
) -> Scenario:
    data: dict[str, Any] = {
        "cluster": {"name": "dgx-h100", "gpus": dp * changed.get("tp", 1)},
        "model": MODEL,
        "training": {
            "framework": framework,
            "seq_len": 1024,
            "micro_batch": 1,
            "grad_accumulation": rounds,
        },
        "parallel": {"dp": dp, "data_parallel": way, "offload": offload},
    }
    for key, value in changed.items():
        section = "megatron" if key.startswith("overlap") else "parallel"
        data.setdefault(section, {})[key] = value
    if quick:
        data["cluster"]["host_factor"] = 0.1
    if clock:
        data["cluster"]["set"] = {"gpu[0].clock": clock}
    return parse_scenario(data, "test")


def bytes_of(scenario: Scenario) -> dict[str, float]:
    """Bytes of one rank by operation of its host."""
    found: dict[str, float] = {}
    for comm in plan(scenario).graph.comms:
        if comm.axis == "offload":
            found[comm.op] = found.get(comm.op, 0.0) + comm.size
    return found


@pytest.mark.parametrize(("framework", "way"), ENGINES)
@pytest.mark.parametrize("dp", [1, 4])
def test_gradients_and_parameters_cross_pcie_once(
    framework: str, way: str, dp: int
) -> None:
    """Of the rank's part; Adam moves 28 bytes of each of its parameters in the host's memory."""
    scenario = job(framework, way, dp)
    own = plan(scenario).lowered.parameters / dp
    there, back = MOVED.get((framework, way), (4, 2))
    moved = bytes_of(scenario)
    assert moved[TO_HOST] == pytest.approx(there * own, rel=1e-4)
    assert moved[TO_GPU] == pytest.approx(back * own, rel=1e-4)
    around = 0 if framework == "megatron" else 8 + 6  # scaled, and cast to 16 bits
    assert moved[UPDATE_ON_HOST] == pytest.approx((28 + around) * own, rel=1e-4)


@pytest.mark.parametrize(("framework", "way"), ENGINES)
@pytest.mark.parametrize("dp", [1, 4])
def test_it_takes_longer_and_the_gpu_keeps_no_states(
    framework: str, way: str, dp: int
) -> None:
    here = predict(job(framework, way, dp, "none"))
    there = predict(job(framework, way, dp))
    assert there.step_time > here.step_time
    assert there.peak_memory[0].optimizer == 0
    assert there.peak_memory[0].optimizer < here.peak_memory[0].optimizer


@pytest.mark.parametrize("dp", [1, 4])
@pytest.mark.parametrize(
    ("framework", "way", "each", "sent"),
    [
        ("deepspeed-eager", "zero2", 2, 3),
        ("deepspeed-eager", "zero3", 2, 2),
        ("deepspeed", "zero2", 4, 3),
        ("deepspeed", "zero3", 4, 2),
    ],
)
def test_sums_over_microbatches_cross_pcie_in_each(
    framework: str, way: str, each: int, sent: int, dp: int
) -> None:
    """Fetched in all but the first of three microbatches, and returned in all; stage 3 returns one's alone too."""
    one, three = (bytes_of(job(framework, way, dp, rounds=n)) for n in (1, 3))
    own = plan(job(framework, way, dp)).lowered.parameters / dp
    fetched, returned = (three[op] - one[op] for op in (TO_GPU, TO_HOST))
    assert fetched == pytest.approx(2 * each * own, rel=1e-4)
    assert returned == pytest.approx(sent * each * own, rel=1e-4)


@together("rounds", [1, 4])
@together("dp", [1, 4])
@together("framework", ["deepspeed", "deepspeed-eager"])
def test_stage_3_has_parts_of_parameters_on_the_gpu_alone(
    framework: str, dp: int, rounds: int
) -> None:
    """2 bytes of each own parameter there; 12 of weights and moments, 4 of what Adam reads, and sums on the host."""
    step = plan(job(framework, "zero3", dp, rounds=rounds)).lowered
    own, memory = step.parameters / dp, step.memory[0]
    each = 2 if framework == "deepspeed-eager" else 4  # main_grads
    owners = memory.at_update
    assert owners["parameters"] == pytest.approx(2 * own, rel=1e-3)
    assert owners["gradients"] == owners["optimizer"] == 0
    on_host = {"optimizer": 12 * own, "gradients": (4 + each) * own}
    assert memory.on_host == pytest.approx(on_host, rel=1e-3)


@pytest.mark.parametrize("dp", [1, 4])
@pytest.mark.parametrize("framework", ["deepspeed", "deepspeed-eager"])
def test_accumulation_takes_no_memory_of_the_gpu(framework: str, dp: int) -> None:
    """Gradients leave in every microbatch, so four need what one needs; without offloading the peak is higher."""
    one, four = (
        predict(job(framework, "zero3", dp, rounds=n)).peak_memory[0].total
        for n in (1, 4)
    )
    assert four == one
    here = predict(job(framework, "zero3", dp, "none", rounds=4)).peak_memory[0]
    if framework == "deepspeed" or dp > 1:  # else no bucket is needed here
        assert four < here.total


@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=3))
def test_a_larger_share_costs_more_and_leaves_less(shares: list[float]) -> None:
    made = [
        predict(job("megatron", "zero1", offload_fraction=share))
        for share in sorted(shares)
    ]
    for less, more in pairwise(made):
        assert more.step_time >= less.step_time * (1 - 1e-9)
        assert more.peak_memory[0].optimizer <= less.peak_memory[0].optimizer


def test_nothing_of_it_is_as_without() -> None:
    nothing = predict(job("megatron", "zero1", offload_fraction=0.0))
    without = predict(job("megatron", "zero1", offload="none"))
    assert nothing.step_time == without.step_time
    assert nothing.peak_memory[0] == without.peak_memory[0]


@pytest.mark.parametrize(("framework", "way"), ENGINES)
def test_more_threads_never_cost_and_pinned_memory_neither(
    framework: str, way: str
) -> None:
    times = [
        predict(job(framework, way, offload_threads=count)).step_time
        for count in (1, 4, 16)
    ]
    assert times == sorted(times, reverse=True) and times[-1] < times[0]
    pageable = predict(job(framework, way, offload_threads=16, offload_pinned=False))
    assert pageable.step_time > times[-1]


@pytest.mark.parametrize(("framework", "way"), ENGINES)
def test_ranks_that_are_folded_are_as_ranks_by_themselves(
    framework: str, way: str
) -> None:
    folded, apart = (
        predict(job(framework, way, clock=clock)).step_time
        for clock in ("", "0.9999999x")
    )
    assert apart == pytest.approx(folded, rel=1e-6)


def test_tensors_one_by_one_hide_copies_where_the_cpu_is_fast() -> None:
    """On a host whose Python is quick, too: Megatron's takes 0.1 ms for each tensor."""
    at_once, in_turn = (
        predict(
            job(
                "megatron",
                "zero1",
                1,
                quick=True,
                offload_threads=16,
                overlap_cpu_optimizer_d2h_h2d=overlaps,
            )
        ).step_time
        for overlaps in (False, True)
    )
    assert in_turn < at_once


@pytest.mark.parametrize(
    ("framework", "way", "changed", "named"),
    [
        ("megatron", "ddp", {}, "parallel.data_parallel"),
        ("megatron", "fsdp", {}, "parallel.data_parallel"),
        ("megatron", "zero1", {"offload": "parameters"}, "parallel.offload"),
        ("megatron", "zero1", {"offload_fraction": 1.5}, "offload_fraction"),
        ("deepspeed", "zero2", {"offload_fraction": 0.5}, "offload_fraction"),
        ("pytorch-eager", "fsdp", {}, "parallel.offload"),
        ("automodel", "fsdp", {}, "parallel"),
    ],
)
def test_what_is_not_simulated_is_refused(
    framework: str, way: str, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        job(framework, way, **changed)


SFT = "model_name_or_path: meta-llama/Llama-3.2-1B\nbf16: true\nmax_seq_length: 1024\nper_device_train_batch_size: 2\n"


@together(
    ("zero", "kept", "pinned"),
    [
        ({"stage": 1, "offload_optimizer": {"device": "cpu"}}, "optimizer", True),
        (
            {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
            "optimizer",
            False,
        ),
        ({"stage": 2, "cpu_offload": True}, "optimizer", True),
        (
            {
                "stage": 3,
                "offload_optimizer": {"device": "cpu"},
                "offload_param": {"device": "cpu"},
            },
            "parameters",
            True,
        ),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, "optimizer", True),
        (
            {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": False},
                "offload_param": {"device": "none"},
            },
            "optimizer",
            False,
        ),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, "", True),
        ({"stage": 3, "offload_optimizer": {"device": "nvme"}}, "", True),
        ({"stage": 2, "offload_optimizer": {"device": "nvme"}}, "", True),
    ],
)
def test_deepspeeds_file_says_it(
    zero: dict[str, Any], kept: str, pinned: bool, tmp_path: Path
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(f"{SFT}deepspeed: zero.json\n")
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": zero}))
    if not kept:
        with pytest.raises(InputError, match=r"offload_(optimizer|param)"):
            load_scenario(path, ["cluster.name=dgx-h100"])
        return
    scenario = load_scenario(path, ["cluster.name=dgx-h100"])
    assert scenario.parallel.offload == kept
    assert scenario.parallel.offload_pinned is pinned


def test_deepspeeds_file_alone_says_it(tmp_path: Path) -> None:
    """Around Megatron's layers, and around those of a trainer: the same bytes on GPU and host."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": zero}))
    (tmp_path / "sft.yaml").write_text(f"{SFT}deepspeed: zero.json\n")
    layers = load_scenario(
        tmp_path / "zero.json",
        [
            *("cluster.name=dgx-h100", "model.name=llama3.2-1b"),
            *("training.seq_len=1024", "training.micro_batch=2"),
        ],
    )
    trainer = load_scenario(tmp_path / "sft.yaml", ["cluster.name=dgx-h100"])
    frameworks = layers.training.framework, trainer.training.framework
    assert frameworks == ("deepspeed", "deepspeed-eager")
    for scenario in (layers, trainer):
        step = plan(scenario).lowered
        own_part = step.parameters / scenario.parallel.dp
        memory = step.memory[0]
        assert memory.at_update["parameters"] == pytest.approx(2 * own_part, rel=1e-3)
        assert memory.on_host["optimizer"] == pytest.approx(12 * own_part, rel=1e-3)


def test_megatrons_arguments_say_it(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--use-distributed-optimizer --use-precision-aware-optimizer --optimizer-cpu-offload "
        "--optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d --vocab-size 8192\n"
    )
    recipe = recipes.read(recipes.document_of(path))
    said = {setting.key: setting.value for setting in recipe.settings.values()}
    assert said["parallel.offload"] == "optimizer"
    assert said["parallel.offload_fraction"] == 0.5
    assert said["megatron.overlap_cpu_optimizer_d2h_h2d"] is True
    assert not recipe.lost
