"""A kernel has one time: as models name it, as PyTorch does, and whichever command asks.

`data/llama-1b.capture` is a step of `prestep.validation.measure.steps` (Llama 1B, 2 samples of 4,096 tokens), as
`test_capture_and_models.py` captures it where PyTorch is installed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prestep.sim import api
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu_files import names
from prestep.sim.graph.kernel import Kernel, named, product
from prestep.sim.graph.opgraph import Chain
from prestep.sim.predict import plan
from prestep.sim.spec.sections import Scenario
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.products import RULES
from tests.sample import together

CAPTURE = Path(__file__).parent / "data" / "llama-1b.capture"
HEADS = (2, 32, 8, 4096, 128)
CUDNN = "aten _scaled_dot_product_cudnn_attention"
BYTES, FLOPS = 2.0**24, 2.0**36
FILL = Kernel("memset", (4,), bytes=4.0)
#: What PyTorch runs, and the kernels of a model that do the same.
SAME = {
    "mm": (
        Kernel("aten mm", (8192, 4096, 4096), "bf16", "nt", BYTES, 2.0**38),
        [Kernel("aten mm", (8192, 4096, 4096), layout="nt")],
    ),
    "weight gradient": (
        Kernel("aten mm", (4096, 4096, 8192), "bf16", "tn_fp32", BYTES, 2.0**38),
        [Kernel("aten mm", (4096, 4096, 8192), layout="tn")],
    ),
    "addmm": (
        Kernel("aten addmm", (4096, 3072, 768), "bf16", "nt", BYTES, FLOPS),
        [Kernel("aten mm", (4096, 3072, 768), layout="nt")],
    ),
    "attention": (
        Kernel(CUDNN, (2, 32, 8, 4096, 4096, 128), "bf16", "causal", BYTES, FLOPS),
        [named("attention_fwd", HEADS)],
    ),
    "attention, backward": (
        Kernel(f"{CUDNN}_backward", (2, 32, 8, 4096, 4096, 128), "bf16", "causal", BYTES, FLOPS),
        [named("attention_bwd", HEADS)],
    ),
}  # fmt: skip
#: Where operations were measured; attention was in both vocabularies, in steps and in bursts: in a step those of steps count.
MEASURED_TWICE = ("h100", "h200")
#: Products with rows of their own there: with a bias, and with a result in 32 bits.
IN_BURSTS = ("addmm", "weight gradient")


@pytest.mark.parametrize("name", names())
@together("what", SAME)
def test_an_operation_takes_as_long_as_the_kernel_of_a_model(
    name: str, what: str
) -> None:
    """In a burst and in a step, on every GPU with a file; two GPUs have measurements of both, of steps and bursts."""
    operation, kernels = SAME[what]
    twice = name in MEASURED_TWICE
    if twice and what.startswith(IN_BURSTS):
        pytest.skip("both were measured")
    gpu = load_gpu(name)
    for crowded in (False, True):
        alone = sum(gpu.in_step(kernel, crowded) for kernel in kernels)
        alone += (len(kernels) - 1) * gpu.gap
        assert gpu.in_step(operation, crowded) == pytest.approx(alone, rel=0.01)
    if not twice:
        burst = sum(map(gpu.duration, kernels)) + (len(kernels) - 1) * gpu.gap
        assert gpu.duration(operation) == pytest.approx(burst, rel=0.01)


@pytest.mark.parametrize("name", MEASURED_TWICE)
def test_a_bias_takes_as_much_longer_in_a_step_as_alone(name: str) -> None:
    """It is an epilogue, at the clock of its product: of a large one a few per cent (2 % of 45 rows measured, median)."""
    gpu, (plain, _) = load_gpu(name), SAME["mm"]
    bias = replace(plain, kind="aten addmm")
    longer = gpu.duration(bias) / gpu.duration(plain)
    assert 0.98 < longer < 1.06
    assert gpu.in_step(bias) / gpu.in_step(plain) == pytest.approx(longer)
    assert gpu.load(plain) == gpu.load(bias) != gpu.load(FILL)


@pytest.mark.parametrize(
    ("cluster", "rel"),
    [
        *((name, 0.03) for name in ("dgx-a100", "l40s-host", "dgx-b200", "gb200-nvl4")),
        *((name, 0.03) for name in ("dgx-b300", "mi300x", "mi355x", "hgx-h800")),
        *((name, 0.015) for name in ("dgx-h100", "dgx-h200")),
    ],
)
def test_a_program_takes_as_long_as_its_model(cluster: str, rel: float) -> None:
    """Llama 1B on one GPU, whose step kernels fill."""
    where = {"cluster.name": cluster, "cluster.gpus": 1}
    sizes = {"training.micro_batch": 2, "training.global_batch": 2}
    one = {"parallel.dp": 1, "training.seq_len": 4096}
    model = api.simulate("llama1b-ddp4", {**where, **sizes, **one})
    program = api.simulate(str(CAPTURE), where)
    assert program.step_time == pytest.approx(model.step_time, rel=rel)


def test_every_framework_asks_for_a_product_by_one_operation() -> None:
    """Whoever wrote the layers, a product of 16 bits is the same kernel as the captured program's, to the last field."""
    sizes = {"training.micro_batch": 2, "training.global_batch": 2, "parallel.dp": 1}
    one = {"cluster.gpus": 1, "training.seq_len": 4096, **sizes}
    program = products_of(api.load(str(CAPTURE), {"cluster.gpus": 1}))
    assert {kernel.kind for kernel in program} == {"aten mm"}
    for framework in ("pytorch-eager", "megatron"):
        written = products_of(
            api.load("llama1b-ddp4", {"training.framework": framework, **one})
        )
        assert {kernel.kind for kernel in written} == {"aten mm"}
        # Megatron joins queries, keys and values, and gate and up; the rest are the same matrices.
        common = {kernel.shape for kernel in program} & {k.shape for k in written}
        assert len(common) >= 6
        assert {kernel for kernel in written if kernel.shape in common} <= program


def test_every_framework_asks_for_attention_by_one_operation() -> None:
    """Forward and backward, to the last field, whether a program calls it, PyTorch's modules or Megatron's."""
    sizes = {"training.micro_batch": 2, "training.global_batch": 2, "parallel.dp": 1}
    one = {"cluster.gpus": 1, "training.seq_len": 4096, **sizes}
    program = attention_of(api.load(str(CAPTURE), {"cluster.gpus": 1}))
    assert {kernel.kind for kernel in program} == {CUDNN, f"{CUDNN}_backward"}
    for framework in ("pytorch-eager", "megatron"):
        said = {"training.framework": framework, **one}
        assert attention_of(api.load("llama1b-ddp4", said)) == program


@pytest.mark.parametrize("name", names())
def test_a_product_in_fp8_is_one_operation(name: str) -> None:
    """As PyTorch's dispatcher sees it and as layers ask for it; sums in fewer bits take no longer than exact ones."""
    gpu = load_gpu(name)
    if "fp8" not in gpu.peak:
        pytest.skip("it has no units for FP8")
    times = []
    for fast, scaling in (
        (True, ()),
        (False, ()),
        (True, (8192, 1)),
        (False, (8192, 1)),
    ):
        captured = recorded(8192, 6144, 4096, scaling, fast)
        layout = "nt_rows" if scaling else "nt"
        asked = product((8192, 6144, 4096), "fp8", f"{layout}_fast" if fast else layout)
        assert replace(captured, bytes=0.0, flops=0.0) == asked
        assert gpu.in_step(captured) == gpu.in_step(asked)
        times.append(gpu.in_step(asked))
    assert times[0] <= times[1] and times[2] <= times[3]


def recorded(m: int, n: int, k: int, scaling: tuple[int, ...], fast: bool) -> Kernel:
    """The kernel of torch._scaled_mm(x, w.t(), scale_a, scale_b, out_dtype=bf16, use_fast_accum=fast)."""
    x, w = Operand("fp8_e4m3", (m, k)), Operand("fp8_e4m3", (k, n), (1, k))
    scales = Operand("fp32", scaling), Operand("fp32", scaling[::-1])
    arguments = (x, w, *scales, None, None, "bf16", fast)
    results = (Operand("bf16", (m, n)),)
    return RULES["_scaled_mm"](
        Operation("aten._scaled_mm.default", arguments, (), results)
    )[0]


def products_of(scenario: Scenario) -> set[Kernel]:
    """Products of two matrices in a step."""
    return {kernel for kernel in kernels_of(scenario) if kernel.is_product}


def attention_of(scenario: Scenario) -> set[Kernel]:
    """Kernels of attention in a step."""
    return {kernel for kernel in kernels_of(scenario) if kernel.is_attention}


def kernels_of(scenario: Scenario) -> set[Kernel]:
    """Kernels of a step, with what chains of layers have."""
    graphs = [plan(scenario).graph]
    kernels: set[Kernel] = set()
    for graph in graphs:
        for one in graph.kernels:
            if isinstance(one, Chain):
                graphs.append(one.graph)
            elif isinstance(one, Kernel):
                kernels.add(one)
    return kernels


def test_doubled_exponential_units_shorten_captured_attention() -> None:
    """Blackwell Ultra has twice the exponential units of Blackwell and as much else: attention alone is faster."""
    operation = SAME["attention"][0]
    assert load_gpu("b300").duration(operation) < load_gpu("b200").duration(operation)


@pytest.mark.parametrize("name", ["b200", "a100"])
def test_a_mask_costs_what_it_does_where_both_were_measured(name: str) -> None:
    """All keys of a square are twice a triangle's work: between 1.3 and 2.3 times as long."""
    gpu, shape = load_gpu(name), (2, 32, 8, 4096, 4096, 128)
    half = 2 * 2.0 * 2 * 32 * 4096 * 4096 * 128 / 2
    whole = gpu.duration(Kernel(CUDNN, shape, "bf16", "", BYTES, 2 * half))
    causal = gpu.duration(Kernel(CUDNN, shape, "bf16", "causal", BYTES, half))
    assert 1.3 * causal < whole < 2.3 * causal


def test_grades_follow_the_kernel_that_stands_for_an_operation() -> None:
    """What a model's product rests on, an operation's does; one that differs from it is a guess."""
    gpu = load_gpu("b200")
    mm, kernels = SAME["mm"]
    assert gpu.evidence(mm) == gpu.evidence(kernels[-1]) != "guess"
    whole = Kernel(CUDNN, (2, 32, 8, 4096, 4096, 128), "bf16", "mask", BYTES, FLOPS)
    assert gpu.evidence(whole) == "guess"
