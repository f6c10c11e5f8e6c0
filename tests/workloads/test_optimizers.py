"""Optimizers beside AdamW: bytes of their states and of what they move, by hand arithmetic."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.lowered import Lowered
from prestep.workloads.optimizer import LEAST_QUANTIZED, names, optimizer
from prestep.workloads.torch.optimizer_step import OptimizerStep
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from tests.executed import executed
from tests.sample import together
from tests.workloads.small import TRANSFORMER, ops, scenario

MATRIX, VECTOR = (512, 1024), (1024,)
BIG, SMALL = 512 * 1024, 1024


def step_of(name: str, **choices: Any) -> tuple[Tape, OptimizerStep, list[Tensor]]:
    t = Tape(0, Shared(), defaultdict(lambda: 1e-6))
    rule = OptimizerStep(t, optimizer(name), PyTorch(**choices), sharded=False)
    return t, rule, [t.parameter(*MATRIX), t.parameter(*VECTOR)]


def state(name: str, **choices: Any) -> float:
    _, rule, stored = step_of(name, **choices)
    return float(sum(storage.size for storage in rule.state(stored)))


def moved(name: str, **choices: Any) -> float:
    """Bytes of the kernels of an update."""
    t, rule, stored = step_of(name, **choices)
    rule.update(stored)
    return float(sum(kernel.bytes for kernel in _launched(t)))


def _launched(t: Tape) -> list[Any]:
    kernels = list(t.shared.kernels)
    rows = zip(t.columns.kind, t.columns.payload, strict=True)
    return [kernels[payload] for kind, payload in rows if kind == 0]


def test_states() -> None:
    """As wide as parameters; sums of rows and columns; a byte or half a one, and a scale of four for each block."""
    n = BIG + SMALL
    assert state("adamw") == 2 * 2 * n and state("lion") == 2 * n
    assert state("adafactor") == 2 * (512 + 1024 + SMALL)
    assert state("adamw8bit") == 2 * (BIG + 4 * BIG / 256 + 2 * SMALL)
    assert state("adamw4bit") == 2 * (BIG / 2 + 4 * BIG / 128 + 2 * SMALL)
    assert state("lion", master_weights=True) == 4 * n


@given(st.integers(1, 10**7), st.sampled_from((2, 4)))
def test_quantized_moments_are_never_larger(elements: int, wide: int) -> None:
    """Fewer bits take no more; small tensors, and those that fill no blocks, are as they were."""
    eight, four = (
        optimizer(f"adamw{bits}bit").bytes_of_moment(elements, wide) for bits in (8, 4)
    )
    whole = optimizer("adamw").bytes_of_moment(elements, wide)
    assert whole == wide * elements >= max(eight, four)
    if elements < LEAST_QUANTIZED or elements % 128:
        assert eight == four == whole


def test_bytes_that_updates_move() -> None:
    n = BIG + SMALL
    assert moved("lion") == n * (3 * 2 + 2 * 2)
    assert moved("lion", fused_optimizer=False) == n * 19 * 2
    quantized = 3 * 2 * n + 2 * state("adamw8bit")
    assert moved("adamw8bit") == quantized
    # Means over rows and columns: made, squared, divided, mixed and multiplied; one mean of them, and single numbers.
    means = 9 * sum(MATRIX) + MATRIX[0] + 7
    assert moved("adafactor") == 2 * (17 * BIG + 20 * SMALL + means)


def test_lists_move_what_tensors_move_in_fewer_kernels() -> None:
    """`foreach` is the for-loop's passes over all tensors at a time, and needs room for all roots."""
    one, all_of_them = (
        {"fused_optimizer": False, "foreach_optimizer": together}
        for together in (False, True)
    )
    assert moved("adamw", **one) == moved("adamw", **all_of_them)

    def kernels_and_peak(choices: dict[str, Any]) -> tuple[int, float]:
        t, rule, stored = step_of("adamw", **choices)
        before = t.memory.now
        t.memory.reset_peak()
        rule.update(stored)
        return len(_launched(t)), t.memory.peak - before

    (many, none), (few, roots) = map(kernels_and_peak, (one, all_of_them))
    assert many - few == 8
    assert none == 0 and roots >= 2 * (BIG + SMALL)


def test_adafactor_waits_for_two_norms_of_each_tensor() -> None:
    t, rule, stored = step_of("adafactor")
    rule.update(stored)
    assert t.columns.names.count("synchronize") == 2 * len(stored)


def low(name: str, **said: Any) -> Lowered:
    training = {"optimizer": name, "seq_len": 32}
    return executed(scenario(training=training, **said), 1).lowered


def test_fewer_bits_need_less_memory() -> None:
    def peak(name: str) -> float:
        return low(name, pytorch={"master_weights": True}).memory[0].peak

    peaks = [peak(n) for n in ("adamw4bit", "adamw8bit", "lion", "adamw")]
    assert peaks == sorted(set(peaks))


def test_shards_share_an_update() -> None:
    """Over all ranks FSDP's update moves what one rank's moves, where shards fill blocks."""

    def bytes_of_update(**said: Any) -> float:
        rows = ops(low("adamw8bit", **said))
        return sum(
            op.kernel.bytes for op in rows if op.kernel and op.phase == "optimizer"
        )

    whole, part = bytes_of_update(), bytes_of_update(dp=4, data_parallel="fsdp")
    assert 4 * part == pytest.approx(whole, rel=0.02)


@together("name", names())
def test_every_optimizer_trains(name: str) -> None:
    assert predict(scenario(training={"optimizer": name}, dp=2)).step_time > 0


@pytest.mark.parametrize(
    ("training", "said", "words"),
    [
        ({"optimizer": "adafactor"}, {"dp": 2, "data_parallel": "fsdp"}, "adamw8bit"),
        ({"optimizer": "adafactor"}, {"tp": 2}, "adamw8bit"),
        ({"optimizer": "adafactor", "framework": "cuda-graph"}, {}, "not simulated"),
        ({"optimizer": "lion", "framework": "megatron"}, {}, "not simulated"),
        ({}, {"pytorch": {"foreach_optimizer": True}}, "fused_optimizer = false"),
    ],
)
def test_what_is_refused(
    training: dict[str, Any], said: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        executed(scenario(TRANSFORMER, training, **said))
