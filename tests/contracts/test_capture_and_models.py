"""Where there is a program and a model of it by hand, both must say the same: the models that `prestep measure` trains.

Needs PyTorch, as `tests/workloads/test_capture_program.py` does.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario
from prestep.validation.formats.rows import Row
from prestep.validation.formats.scenarios import scenario_of
from prestep.workloads.capture.recorder import captured

pytestmark = pytest.mark.slow

TRAIN = """
import json, sys
from types import SimpleNamespace
import torch
from prestep.validation.measure import steps
session = SimpleNamespace(cuda=True, device=torch.device("cuda", 0), local_rank=0, rank=0, world=1)
step = steps.build(json.loads(sys.argv[1]), session)
for _ in range(3): step.call()
"""
#: Kinds of kernels by what ATen calls them, where both sides have the same names for the same work.
ALIKE = {
    "aten addmm": "mm",
    "aten _scaled_dot_product_cudnn_attention": "attention_fwd",
    "aten _scaled_dot_product_cudnn_attention_backward": "attention_bwd",
}
COUNTED = (
    *("mm", "attention_fwd", "attention_bwd"),
    *("_fused_rms_norm", "_fused_rms_norm_backward", "embedding"),
    *("_log_softmax", "_log_softmax_backward_data", "embedding_dense_backward"),
    *("nll_loss_forward", "nll_loss_backward", "mul", "cat", "copy", "sub", "neg"),
    *("silu", "silu_backward", "relu", "threshold_backward"),
    *("mse_loss", "mse_loss_backward"),
)
CASES = {
    "llama": {"model": "llama125m", "mbs": 8, "seq": 2048},
    "recomputed llama with grouped queries": {
        "model": "llama500m",
        "mbs": 4,
        "seq": 1024,
        "ac": True,
    },
    "three linear layers": {"model": "seedmlp_4096", "mbs": 8192},
}


@dataclass(frozen=True)
class Side:
    """A planned step: how often each kind of kernel runs, and its floating-point operations and bytes."""

    planned: Planned
    calls: Counter[str]
    flops: Counter[str]
    bytes: Counter[str]

    @property
    def kernels(self) -> float:
        """Seconds of all kernels, one after the other."""
        return float(sum(self.planned.durations[k] for k in _launched(self.planned)))

    @property
    def peak(self) -> float:
        run = execute(self.planned)
        return reported(self.planned, run).peak_memory[0].total


def _launched(planned: Planned) -> list[int]:
    program = planned.graph.programs[0]
    return [int(k) for k in program.payload[program.kind == KERNEL]]


def side(planned: Planned) -> Side:
    calls, flops, moved = Counter[str](), Counter[str](), Counter[str]()
    for index in _launched(planned):
        kernel = planned.graph.kernels[index]
        assert isinstance(kernel, Kernel)
        kind = ALIKE.get(kernel.kind, kernel.kind.removeprefix("aten "))
        operations, size = work(kernel)
        calls[kind] += 1
        flops[kind] += operations
        moved[kind] += size
    return Side(planned, calls, flops, moved)


@pytest.fixture(scope="module", params=CASES)
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Side, Side]:
    """The step as our model has it, and as the program of the harness was captured."""
    case: dict[str, Any] = {"id": "case", "mode": "single", **CASES[request.param]}
    folder: Path = tmp_path_factory.mktemp("contract")
    script, recording = folder / "train.py", folder / "job.capture"
    script.write_text(TRAIN)
    captured((str(script), json.dumps(case)), recording, stop=True, quiet=True)
    scenario = scenario_of(Row("case", "case", case, 1))
    cluster = f"cluster.name={scenario.cluster.name}"
    program = load_scenario(recording, [cluster])
    return side(plan(scenario)), side(plan(program))


def test_operations_are_as_many(sides: tuple[Side, Side]) -> None:
    """Every kind that both name runs as often, forward, recomputed and backward."""
    by_hand, program = ({kind: s.calls[kind] for kind in COUNTED} for s in sides)
    assert program == by_hand


def test_products_and_attention_do_the_same_work(sides: tuple[Side, Side]) -> None:
    """Floating-point operations to the last one; products and norms move the same bytes."""
    by_hand, program = sides
    for kind in ("mm", "attention_fwd", "attention_bwd"):
        assert program.flops[kind] == pytest.approx(by_hand.flops[kind], rel=1e-9)
    for kind in ("mm", "_fused_rms_norm"):
        assert program.bytes[kind] == pytest.approx(by_hand.bytes[kind], rel=0.02)


def test_kernels_take_as_long(sides: tuple[Side, Side]) -> None:
    """Two tables of times, measured in different ways, of the same kernels."""
    by_hand, program = sides
    assert program.kernels == pytest.approx(by_hand.kernels, rel=0.05)


def test_memory_is_the_same(sides: tuple[Side, Side]) -> None:
    """Storages of the program and tensors of the model peak at as many bytes; blocks may be a little larger."""
    by_hand, program = sides
    assert program.peak == pytest.approx(by_hand.peak, rel=0.01)
