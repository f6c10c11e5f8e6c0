"""GPT-2: biases, learned positions, tied embeddings."""

from __future__ import annotations

import math

import pytest

from prestep.sim.analysis.report import work_of_step
from prestep.sim.costs import Kernel
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.job.model import Model
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape
from prestep.workloads.torch.transformer import Transformer
from tests.executed import Executed, executed
from tests.workloads.recorded import short
from tests.workloads.small import SEQ, lowered, ops


@pytest.mark.parametrize(
    ("name", "parameters"), [("gpt2-small", 124_439_808), ("gpt2-xl", 1_557_611_200)]
)
def test_gpt2_has_the_published_number_of_parameters(
    name: str, parameters: int
) -> None:
    """openai-community/gpt2 and gpt2-xl, with the head tied to the embedding; the formula and the modules agree."""
    spec = load_model(Model(name=name))
    net = Transformer(Tape(0, Shared(), {}), spec, range(spec.layers), True, True)
    assert (
        stage_parameters(spec, spec.layers, True, True)
        == net.parameter_count
        == parameters
    )


def small(**parallel: object) -> Executed:
    model = {
        "kind": "transformer",
        "hidden": 256,
        "layers": 2,
        "heads": 4,
        "ffn": 1024,
        "vocab": 512,
        "gated": False,
        "activation": "gelu",
        "norm": "layer",
        "positions": "learned",
        "max_positions": 128,
        "bias": True,
        "tied_embeddings": True,
    }
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": parallel.pop("gpus", 1)},
        "model": model,
        "training": {"seq_len": 128, "micro_batch": 2}
        | ({"microbatches": 2} if parallel.get("pp") else {}),
        "parallel": parallel,
    }
    return executed(parse_scenario(tables, "gpt.toml"))


def test_every_parameter_is_in_one_bucket_once() -> None:
    """A tied embedding has two uses and one gradient: DDP reduces exactly the bytes of the parameters."""
    simulation = small(gpus=4, dp=4, data_parallel="ddp")
    reduced = sum(
        c.size for c in simulation.lowered.graph.comms if c.op == "all_reduce"
    )
    assert reduced == 2 * simulation.lowered.parameters


def test_the_gradients_of_a_tied_embedding_are_added_once() -> None:
    """One addition of the head's and the lookup's gradient of the whole matrix, before the optimizer."""
    simulation = small()
    graph = simulation.lowered.graph
    p = graph.programs[0]
    shapes = [
        graph.kernels[k].shape
        for k, kind in zip(p.payload, p.kind, strict=True)
        if kind == 0 and graph.kernels[k].kind == "aten add"
    ]
    assert shapes.count((512 * 256,)) == 1


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "gpus": 2},
        {"dp": 2, "gpus": 2, "data_parallel": "fsdp"},
        {"pp": 2, "gpus": 2},
    ],
)
def test_gpt_runs_in_parallel(layout: dict[str, object]) -> None:
    """Biases and positions do not get in the way of any layout."""
    assert small(**layout).run.finished > 0


def kernels(batch: int) -> tuple[list[Kernel], list[Kernel]]:
    """Kernels of forward and backward of a GPT of one block, memsets left out."""
    model = {
        "kind": "transformer",
        "hidden": 256,
        "layers": 1,
        "heads": 4,
        "ffn": 1024,
        "vocab": 512,
        "gated": False,
        "activation": "gelu",
        "norm": "layer",
        "positions": "learned",
        "max_positions": 128,
        "bias": True,
        "tied_embeddings": True,
    }
    rows = [
        op
        for op in ops(lowered(model, {"micro_batch": batch}))
        if op.kernel and op.name != "memset"
    ]
    of = {
        phase: [op.kernel for op in rows if op.kernel and op.phase == phase]
        for phase in ("forward", "backward")
    }
    return of["forward"], of["backward"]


def test_a_gpt_launches_biased_products_and_layer_norms() -> None:
    """Biases are in the products (addmm); the head has none. Positions are looked up and added before the block."""
    forward, _ = kernels(2)
    block = "native_layer_norm addmm addmm addmm _scaled_dot_product_cudnn_attention addmm add"
    feed = "native_layer_norm addmm gelu addmm add"
    ends = "native_layer_norm mm _log_softmax nll_loss_forward"
    assert [
        short(k.kind) for k in forward
    ] == f"embedding embedding add {block} {feed} {ends}".split()
    assert [k.shape for k in forward[:3]] == [
        (2 * SEQ, 256, 512),
        (SEQ, 256, 128),
        (2 * SEQ * 256,),
    ]


@pytest.mark.parametrize("batch", [1, 2])
def test_biases_and_positions_have_gradients(batch: int) -> None:
    """One sum over the rows for each of six biases; positions are summed over the batch, then scattered."""
    _, backward = kernels(batch)
    sums = [math.prod(k.shape) for k in backward if short(k.kind) == "sum"]
    rows = batch * SEQ
    # Down, up, output, value, key, query; then positions, unless there is one sample.
    assert sums == [
        rows * 256,
        rows * 1024,
        *[rows * 256] * 4,
        *[rows * 256] * (batch > 1),
    ]
    lookup = "embedding_dense_backward"
    assert [(short(k.kind), k.shape) for k in backward[-3:]] == [
        (lookup, (SEQ, 256, 128)),
        (lookup, (rows, 256, 512)),
        ("add", (512 * 256,)),
    ]


def test_lookups_are_no_model_flops() -> None:
    """6 per parameter of products and norms and token, tied head included; positions and attention apart."""
    simulation = small()
    tokens, flops = work_of_step(simulation.planned)
    spec = simulation.model
    dense = (
        stage_parameters(spec, spec.layers, True, True)
        - spec.max_positions * spec.hidden
    )
    attention = 6 * spec.layers * spec.heads * spec.head_dim * 128
    assert flops == tokens * (6 * dense + attention)
