"""Quantized linears of compiled blocks: casts, products, memory and what FSDP sends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from prestep.sim.api import predict
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job import JobSpec
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.lowered import Lowered, Site
from prestep.workloads.models.model import load_model
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.again import Again
from prestep.workloads.torch.compiled_region import compile_region
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor

BASE: dict[str, dict[str, Any]] = {
    "cluster": {"name": "dgx-b200", "gpus": 2},
    "model": {"name": "llama3-8b", "layers": 2},
    "training": {
        "framework": "pytorch-compiled",
        "seq_len": 4096,
        "micro_batch": 2,
    },
    "parallel": {"dp": 2, "data_parallel": "fsdp"},
}
FP8 = {"training.precision": "fp8"}
MX = {**FP8, "pytorch.fp8_scaling": "mx"}
ROWS = {**FP8, "pytorch.fp8_scaling": "rowwise"}
SENT = {**FP8, "pytorch.fp8_param_gather": True}
FP4 = {"training.precision": "nvfp4"}


def scenario(changes: Mapping[str, Any]) -> JobSpec:
    tables = {name: dict(table) for name, table in BASE.items()}
    for key, value in changes.items():
        section, name = key.split(".")
        tables.setdefault(section, {})[name] = value
    return parse_scenario(tables, "test")


def predicted(changes: Mapping[str, Any]) -> Any:
    return predict(scenario(changes))


def recorded(changes: Mapping[str, Any]) -> Lowered:
    """The step as it is issued."""
    job = scenario(changes)
    return framework_of(job).lower(job, load_model(job.model), Site())


def launched(changes: Mapping[str, Any]) -> Counter[Kernel]:
    """Kernels of a rank's step."""
    graph = recorded(changes).graph
    program = graph.programs[0]
    kinds = zip(program.kind, program.payload, strict=True)
    return Counter(graph.kernels[at] for kind, at in kinds if kind == 0)


@pytest.fixture(scope="module")
def bf16() -> Any:
    return predicted({})


@pytest.mark.parametrize("changes", [FP8, MX, ROWS, SENT, FP4])
def test_smaller_formats_are_never_slower_at_large_products(
    bf16: Any, changes: Mapping[str, Any]
) -> None:
    assert predicted(changes).step_time < bf16.step_time


def test_blocks_that_stay_in_16_bits() -> None:
    """All of them: the bf16 step; one of two: between both."""
    times = [
        predicted({**FP4, "pytorch.bf16_layers": left}).step_time for left in (0, 1, 2)
    ]
    assert times[0] < times[1] < times[2]
    assert times[2] == pytest.approx(predicted({}).step_time, rel=1e-12)


def test_products_of_a_block_are_quantized_and_those_of_the_head_are_not() -> None:
    """Seven linears in two blocks, three products each; the head's three stay in bf16."""
    types = Counter(
        {"bf16": 0, "fp8": 0, "fp8_block": 0, "nvfp4": 0},
    )
    old_rows = {**ROWS, "pytorch.version": "2.7"}  # CUTLASS's kernel
    for changes, dtype in (
        (FP8, "fp8"),
        (ROWS, "fp8"),
        (old_rows, "fp8_block"),
        (FP4, "nvfp4"),
    ):
        types.clear()
        for kernel, count in launched(changes).items():
            if "mm" in kernel.kind:
                types[kernel.dtype] += count
        assert types == {dtype: 2 * 7 * 3, "bf16": 3}


def test_bytes_of_casts() -> None:
    """MXFP8 by hand: each operand of each product once, shared inputs once, 3.03 bytes; beside them their scales."""
    tokens, hidden, ffn, kv = 2 * 4096, 4096, 14336, 1024
    inputs = tokens * (3 * hidden + ffn)  # n1, merged, n2, prod
    weights = hidden * (2 * hidden + 2 * kv + 3 * ffn)
    outputs = tokens * (3 * hidden + 2 * kv + 2 * ffn)  # q, wo, w2; k, v; w1, w3
    elements = 2 * (inputs + weights + outputs)  # for two of three products each
    found = sum(
        kernel.bytes * count
        for kernel, count in launched(MX).items()
        if kernel.layout in ("mxrow", "mxcolumn")
    )
    assert found == pytest.approx(2 * elements * (3 + 1 / 32), rel=1e-12)


def test_a_kernel_of_inductors_finds_the_largest_value_of_what_it_makes() -> None:
    """A linear layer's input in fp8 is read twice and written once; a generated kernel spares the first time."""
    alone, silu = (bytes_of_casts(made) for made in (False, True))
    elements = 2 * 4096 * 4096
    made = 2 * 2 * elements  # what the activation moves itself
    assert (alone, silu - made) == (5.0 * elements, 3.0 * elements)


def bytes_of_casts(made: bool) -> float:
    """What is moved before a product of fp8 takes its input, which an activation makes or the caller has."""
    t = Tape(0, Shared(), defaultdict(float))
    t.products, t.layer, t.choices = "fp8", 0, PyTorch()
    w, x = t.parameter(1024, 4096), t.empty((2, 4096, 4096))

    def layer(t: Tape, x: Tensor) -> list[Tensor]:
        return [F.linear(t, aten.activation(t, "silu", x) if made else x, w)]

    [graph] = compile_region(t, layer, x, [w]).graphs
    moved = [i.kernel for i in graph.forward if i.kernel.kind == "fused_pointwise"]
    # But for the number that the largest value is.
    return sum(k.bytes for k in moved if k.shape[0] > w.elements) - 4.0


def test_a_gather_in_fp8_sends_half_of_the_matrices() -> None:
    """All-gathers of blocks: a byte for each matrix element, two for each norm's; scales are one small all-reduce."""
    block = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    sent = {
        comm.size for comm in recorded(SENT).graph.comms if comm.op == "all_gather"
    }  # fmt: skip
    whole = {comm.size for comm in recorded({}).graph.comms if comm.op == "all_gather"}
    assert block + 2 * 2 * 4096 in sent
    assert 2 * block + 2 * 2 * 4096 in whole
    scales = [c for c in recorded(SENT).graph.comms if c.op == "all_reduce"]
    assert [c.size for c in scales] == [4.0 * 2 * 7]


def test_nvfp4_keeps_less_for_backward() -> None:
    peaks = [recorded(changes).memory[0].peak for changes in (FP4, {})]
    assert peaks[0] < peaks[1]


def test_what_runs_again_in_nvfp4() -> None:
    """Products that no list of kept operators names run again all; every other one in bf16 does not."""
    gemm = Kernel("aten mm", (1, 1, 1))
    listed, unlisted = Again(products=True).dropped(), Again(products=True).dropped()
    assert [listed(gemm) for _ in range(4)] == [True, False, True, False]
    fp4 = Kernel("aten mm", (1, 1, 1), "nvfp4")
    assert not any(unlisted(fp4) for _ in range(4))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"pytorch.fp8_scaling": "mx"}, "pytorch.fp8_scaling"),
        ({"pytorch.bf16_layers": 1}, "pytorch.bf16_layers"),
        ({**FP4, "pytorch.fp8_scaling": "mx"}, "pytorch.fp8_scaling"),
        ({**MX, "pytorch.fp8_param_gather": True}, "pytorch.fp8_param_gather"),
        ({**SENT, "parallel.data_parallel": "ddp"}, "pytorch.fp8_param_gather"),
        ({**FP4, "cluster.name": "dgx-h100"}, "training.precision"),
    ],
)
def test_formats_that_do_not_fit_are_refused(
    changes: Mapping[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as caught:
        predicted(changes)
    assert key in [mistake.key for mistake in caught.value.mistakes]


@pytest.mark.parametrize(("grouped", "more"), [(True, 0), (False, 4 * 8)])
def test_one_call_quantizes_the_rows_of_all_experts(
    grouped: bool, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 experts as many as of 8; one after the other, 8 more for each of two operands and two gradients."""
    counts: Counter[str] = Counter()
    issue = Tape.cpu

    def count(t: Tape, name: str, number: float = 1) -> None:
        counts[name] += number
        issue(t, name, number)

    monkeypatch.setattr(Tape, "cpu", count)
    found = []
    for experts in (8, 16):
        counts.clear()
        model = {"kind": "transformer", "hidden": 256, "heads": 4, "ffn": 512}
        sizes = {"experts": experts, "experts_per_token": 2, "vocab": 512, "layers": 1}
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"name": "dgx-b200", "gpus": 1},
            "model": model | sizes,
            "training": {"framework": "megatron", "seq_len": 512, "precision": "fp8"},
            "megatron": {"moe_grouped_gemm": grouped},
        }
        predict(parse_scenario(tables, "test"))
        found.append(counts["quantize"])
    assert found[1] - found[0] == more
