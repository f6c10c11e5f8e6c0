"""Loss scaling in fp16, and momentum of SGD: what they add to a step, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, SYNC
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.lower import lower
from tests.workloads.small import SEQ, TRANSFORMER


def recorded(training: dict[str, Any], way: str = "ddp", **pytorch: Any) -> Lowered:
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER,
        "training": {"seq_len": SEQ, "micro_batch": 2, **training},
        "parallel": {"dp": 4, "data_parallel": way},
        "pytorch": {"master_weights": True, **pytorch},
    }
    s = parse_scenario(tables, "scaled.toml")
    return lower(s, load_model(s.model))


def kernels(low: Lowered) -> Counter[Kernel]:
    program = low.graph.programs[0]
    pairs = zip(program.kind, program.payload, strict=True)
    return Counter(low.graph.kernels[at] for kind, at in pairs if kind == KERNEL)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_what_loss_scaling_adds(way: str) -> None:
    """The scaled loss, a pass over the gradients and the next scale; under FSDP an all-reduce of the flag."""
    fp16, bf16 = (recorded({"precision": name}, way) for name in ("fp16", "bf16"))
    more = kernels(fp16) - kernels(bf16)
    elements = fp16.parameters // (4 if way == "fsdp" else 1)
    assert not kernels(bf16) - kernels(fp16)
    passes = [k for k in more if k.kind == "fused" and k.shape[0] > 1]
    assert [k.bytes for k in passes] == [2 * 4.0 * k.shape[0] for k in passes]
    assert passes[0].shape[0] == pytest.approx(elements, rel=0.01)
    assert sum(more.values()) == 3
    flags = [c for c in fp16.graph.comms if c.op == "all_reduce" and c.size == 4]
    assert len(flags) == (way == "fsdp")


@pytest.mark.parametrize(
    ("optimizer", "fused", "waits"),
    [("adamw", True, 0), ("adamw", False, 1), ("sgd", True, 1)],
)
def test_the_host_reads_the_flag_unless_the_kernel_does(
    optimizer: str, fused: bool, waits: int
) -> None:
    training = {"precision": "fp16", "optimizer": optimizer}
    kinds = Counter(recorded(training, fused_optimizer=fused).graph.programs[0].kind)
    assert kinds[SYNC] == waits


def test_gradients_in_fp16_are_refused_as_the_scaler_does() -> None:
    with pytest.raises(InputError, match="GradScaler"):
        recorded({"precision": "fp16"}, master_weights=False)


def test_momentum_adds_one_buffer_and_its_traffic() -> None:
    plain, momentum = (
        recorded({"optimizer": name}) for name in ("sgd", "sgd-momentum")
    )
    gone, new = (
        (kernels(plain) - kernels(momentum)),
        (kernels(momentum) - kernels(plain)),
    )
    (before,), (after,) = gone, new
    assert after.bytes - before.bytes == 2 * 4.0 * after.shape[-1]
    states = [low.memory[0].peak for low in (plain, momentum)]
    assert states[1] > states[0]
