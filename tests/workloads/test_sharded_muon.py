"""Muon under FSDP: matrices are gathered, made orthogonal on every rank, and updated where they lie."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import load_model
from prestep.workloads.orthogonal import hidden
from prestep.workloads.torch.lower import lower
from tests.workloads.small import SEQ, TRANSFORMER


def scenario(way: str, optimizer: str = "muon", **pytorch: Any) -> Scenario:
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER,
        "training": {"seq_len": SEQ, "micro_batch": 2, "optimizer": optimizer},
        "parallel": {"dp": 4, "data_parallel": way},
        "pytorch": pytorch,
    }
    return parse_scenario(tables, "muon.toml")


def recorded(way: str, optimizer: str = "muon") -> Lowered:
    s = scenario(way, optimizer)
    return lower(s, load_model(s.model))


def kernels(low: Lowered) -> Counter[Kernel]:
    program = low.graph.programs[0]
    pairs = zip(program.kind, program.payload, strict=True)
    return Counter(low.graph.kernels[at] for kind, at in pairs if kind == KERNEL)


def products(low: Lowered) -> Counter[Kernel]:
    return Counter(
        {kernel: n for kernel, n in kernels(low).items() if kernel.is_product}
    )


def test_every_rank_makes_whole_matrices_orthogonal() -> None:
    assert products(recorded("fsdp")) == products(recorded("ddp")) != Counter()


def test_what_is_gathered() -> None:
    """Every hidden matrix once in bf16, beside what FSDP gathers anyway."""
    gathers = [
        Counter(
            c.size for c in recorded("fsdp", name).graph.comms if c.op == "all_gather"
        )
        for name in ("muon", "adamw")
    ]
    more = gathers[0] - gathers[1]
    hidden_size, ffn = TRANSFORMER["hidden"], TRANSFORMER["ffn"]
    assert 2.0 * hidden_size * ffn in more
    assert not gathers[1] - gathers[0]
    assert hidden("w1", (ffn, hidden_size)) is not None


def test_momentum_lies_in_shards() -> None:
    """Elementwise kernels of an update touch a fourth of each matrix."""
    whole, sharded = (
        sum(k.bytes * n for k, n in kernels(recorded(way)).items() if k.kind == "fused")
        for way in ("ddp", "fsdp")
    )
    assert sharded == pytest.approx(whole / 4)


def test_flat_parameters_have_no_matrices() -> None:
    with pytest.raises(InputError, match="optimizer"):
        predict(scenario("fsdp", fsdp="1"))


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_split_matrices_are_gathered_whole(way: str) -> None:
    """Tensor-parallel ranks gather what they split, once in bf16, and all make the same products."""
    tables: dict[str, Any] = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER,
        "training": {"seq_len": SEQ, "micro_batch": 2},
        "parallel": {"dp": 2, "tp": 2, "data_parallel": way},
    }

    def low(optimizer: str) -> Lowered:
        training = tables["training"] | {"optimizer": optimizer}
        s = parse_scenario(tables | {"training": training}, "muon.toml")
        return lower(s, load_model(s.model))

    def on(found: Lowered, axis: str, op: str) -> float:
        return sum(c.size for c in found.graph.comms if (c.axis, c.op) == (axis, op))

    muon, adamw = low("muon"), low("adamw")
    hidden_size, ffn, layers = 256, 512, 4
    matrices = layers * (hidden_size * hidden_size * 3 + 3 * hidden_size * ffn)
    assert on(muon, "tp", "all_gather") - on(adamw, "tp", "all_gather") == 2 * matrices
    orthogonal = products(muon) - products(adamw)
    assert orthogonal == products(recorded("ddp")) - products(recorded("ddp", "adamw"))
