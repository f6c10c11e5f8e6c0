"""Layers as Hugging Face's transformers writes them: kernels, memory, and measured steps."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

import lab
from prestep.sim import api
from prestep.sim.errors import InputError
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.torch import functional
from prestep.workloads.torch.adapter import LowRank
from tests.workloads import test_tape

PEFT = lab.CASES / "peft"
ROWS = [json.loads(line) for line in (PEFT / "h100.jsonl").read_text().splitlines()]
SIZES = {"8b": (4096, 14336, 32), "1b": (2048, 8192, 16)}
SMALL = {"model.layers": 2, "training.seq_len": 1024}


def changes(row: dict[str, Any]) -> dict[str, object]:
    """What a measured step sets over the scenario beside it."""
    hidden, ffn, layers = SIZES[row["model"]]
    made: dict[str, object] = {
        "model.hidden": hidden,
        "model.ffn": ffn,
        "model.layers": layers,
        "training.micro_batch": row["batch"],
        "training.seq_len": row["seq"],
        "training.recompute": "full" if row["checkpoint"] else "none",
    }
    if not row["rank"]:
        return {**made, "adapter.kind": "none"}
    made["adapter.rank"] = row["rank"]
    made["adapter.fp32"] = row["autocast"]
    if row["targets"] != "all-linear":
        made["adapter.targets"] = row["targets"].split(",")
    return made


def simulated(changed: dict[str, object], modules: str = "transformers") -> Any:
    return api.simulate(PEFT / "scenario.toml", {**changed, "pytorch.modules": modules})


@pytest.mark.slow
def test_measured_steps_with_and_without_adapters() -> None:
    """Steps of transformers and PEFT on an H100 are within 5 %, 2 % on the mean; nothing was fitted to them."""
    errors = [
        simulated(changes(row)).step_time / statistics.median(row["times"]) - 1
        for row in ROWS
    ]
    assert len(errors) == 8
    assert max(map(abs, errors)) < 0.05
    assert statistics.fmean(map(abs, errors)) < 0.02


def test_written_out_layers_take_longer_and_keep_more() -> None:
    """Norms in 32 bits, operator by operator, are more kernels and larger tensors than fused ones."""
    plain, written = (
        simulated(SMALL, modules) for modules in ("plain", "transformers")
    )
    assert written.step_time > plain.step_time
    assert written.peak_memory[0].total > plain.peak_memory[0].total


def test_a_frozen_norm_keeps_less() -> None:
    """The normed input is kept for the weight's gradient alone."""
    kept = []
    for trains in (True, False):
        tape = test_tape.tape()
        tape.choices = PyTorch(modules="transformers")
        x = test_tape.sample(tape, 1, 256, 512, grad=True)
        weight = tape.parameter(512)
        weight.requires_grad = trains
        before = tape.memory.now
        y = functional.norm(tape, "rms", x, [weight])
        kept.append(tape.memory.now - before - y.size)
    narrow, wide, statistics_ = 2 * 256 * 512, 4 * 256 * 512, 4 * 256
    assert kept == [narrow + wide + statistics_, wide + statistics_]


def test_adapters_in_fp32_convert_their_inputs_twice_each_way() -> None:
    """12 bytes of an input forward, and as many of its gradient backward."""
    moved = []
    for fp32 in (False, True):
        tape = test_tape.tape()
        weight, x = tape.parameter(64, 32), test_tape.sample(tape, 8, 32, grad=True)
        weight.requires_grad = False
        shapes = (tape.parameter(4, 32), tape.parameter(64, 4))
        choices = Adapter(kind="lora", rank=4, fp32=fp32)
        tape.adapters[weight] = LowRank(*shapes, choices)
        test_tape.backward(tape, functional.linear(tape, x, weight))
        kernels = test_tape.launched(tape)
        moved.append(sum(k.bytes for k in kernels if k.kind == "aten copy"))
    assert moved == [0, 2 * 12 * 8 * 32]


@pytest.mark.parametrize(
    "changed, where",
    [
        ({"training.framework": "megatron", "adapter.fp32": True}, "adapter.fp32"),
        ({"training.framework": "pytorch-compiled", "adapter.kind": "none"}, "modules"),
        ({"training.precision": "fp32", "adapter.kind": "none"}, "modules"),
    ],
)
def test_what_writes_nothing_out_refuses_them(
    changed: dict[str, object], where: str
) -> None:
    """Compiled blocks fuse these operators, and 32 bits need no conversion: both are told."""
    with pytest.raises(InputError, match=where):
        simulated({**SMALL, **changed})
