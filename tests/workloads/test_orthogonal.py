"""Orthogonal updates: what Muon's Newton-Schulz products are, and whose matrices they take."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError
from prestep.sim.predict import plan, predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.orthogonal import Matrices, hidden

MODEL = {
    "kind": "transformer", "hidden": 512, "layers": 2, "heads": 8, "ffn": 1024, "vocab": 1024,
    "tied_embeddings": False, "gated": True,
}  # fmt: skip


def tables(
    optimizer: str, framework: str = "pytorch-eager", **parallel: Any
) -> dict[str, Any]:
    gpus = parallel.get("dp", 1) * parallel.get("tp", 1)
    return {
        "cluster": {"name": "h200-host-4", "gpus": gpus},
        "model": MODEL,
        "training": {"optimizer": optimizer, "framework": framework, "seq_len": 512},
        "parallel": parallel,
    }


def run(*args: Any, **parallel: Any) -> Prediction:
    return predict(parse_scenario(tables(*args, **parallel), "test"))


@pytest.mark.parametrize("name", ["embedding", "position", "head", "wq.bias"])
def test_tables_of_words_and_biases_go_by_adamw(name: str) -> None:
    """Only hidden matrices are made orthogonal; experts of one parameter each for itself."""
    assert hidden(name, (64, 64)) is None and hidden("weight", (64,)) is None
    assert hidden("linear_fc1", (64, 32)) == Matrices(1, 64, 32)
    assert hidden("experts.linear_fc1", (8, 64, 32)) == Matrices(8, 64, 32)


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_every_hidden_matrix_is_multiplied_fifteen_times(framework: str) -> None:
    """Three products in each of five iterations, more than AdamW's step has, for every matrix of every layer."""
    counts = []
    for optimizer in ("adamw", "muon"):
        graph = plan(parse_scenario(tables(optimizer, framework), "test")).graph
        program = graph.programs[0]
        kinds = [
            getattr(graph.kernels[k], "kind", "")
            for k in program.payload[(program.kind == 0) & (program.phase == 2)]
        ]
        counts.append(sum(kind in ("aten mm", "aten addmm") for kind in kinds))
    matrices = {"pytorch-eager": 7, "megatron": 4}[framework]
    assert counts == [0, 15 * matrices * MODEL["layers"]]  # type: ignore[operator]


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_one_moment_less_for_every_hidden_parameter(framework: str) -> None:
    """Muon keeps a momentum where AdamW keeps two moments; tables of words keep both."""
    adamw, muon = (run(name, framework) for name in ("adamw", "muon"))
    saved = adamw.peak_memory[0].optimizer - muon.peak_memory[0].optimizer
    each = 4 * 512 * 512 + 3 * 512 * 1024
    assert saved == (4 if framework == "megatron" else 2) * 2 * each
    assert muon.step_time > adamw.step_time


@pytest.mark.parametrize(
    ("framework", "parallel"),
    [
        ("megatron", {"dp": 2, "data_parallel": "zero1"}),
        ("deepspeed", {"dp": 2, "data_parallel": "zero2"}),
    ],
)
def test_parts_of_matrices_are_refused(
    framework: str, parallel: dict[str, Any]
) -> None:
    """Where the gather that an orthogonal update needs is not simulated, it is a mistake and not left out."""
    with pytest.raises(InputError, match=r"training\.optimizer.*matrix"):
        run("muon", framework, **parallel)


def test_megatron_takes_the_part_of_each_tensor_parallel_rank() -> None:
    """Blockwise: half the matrix each, with the products of that half."""
    assert run("muon", "megatron", tp=2).step_time > 0
