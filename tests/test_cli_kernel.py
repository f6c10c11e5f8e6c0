"""`prestep kernel`: one kernel on one GPU."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.api import load
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu_files import names
from prestep.sim.costs.kinds import DTYPE_BYTES
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import ATTENTION, Kernel, plain_product
from prestep.sim.predict import plan
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.rules import kernels_of


def asked(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["kernel", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "b100", "b200"])
def test_fewer_bits_are_never_slower(gpu: str) -> None:
    """A large product takes no longer in fewer bits, and none of them reaches the wire's limits."""
    times = [
        asked("gemm", "8192,8192,8192", "--gpu", gpu, "--dtype", dtype)["time"]
        for dtype in ("fp64", "tf32", "bf16")
    ]
    assert times == sorted(times, reverse=True)


def test_rates_are_work_over_time() -> None:
    """Rates are flops and bytes over the time; the page for people has the same."""
    made = asked("gemm", "1024x2048x4096", "--gpu", "h100")
    assert made["flops"] == 2 * 1024 * 2048 * 4096
    assert made["flop_rate"] == pytest.approx(made["flops"] / made["time"])
    shown = CliRunner().invoke(main, ["kernel", "copy", "1048576", "--gpu", "h100"])
    assert shown.exit_code == 0 and "rests on" in shown.output


@pytest.mark.parametrize(
    ("dtype", "burst", "seconds"), [("bf16", 790e12, 675e12), ("fp8", 1480e12, 1230e12)]
)
def test_products_slow_down_under_the_power_limit(
    dtype: str, burst: float, seconds: float
) -> None:
    """Large ones on an H200, as measured in bursts and for seconds (lab/cases/aten/SOURCE.md), to 3 %."""
    made = asked("gemm", "8192,8192,8192", "--dtype", dtype)
    assert made["flop_rate_alone"] == pytest.approx(burst, rel=0.03)
    assert made["flop_rate"] == pytest.approx(seconds, rel=0.03)


def test_the_chain_of_estimators_is_explained() -> None:
    """Those that passed say what they are for; the one that answered is last, with what stands in for a table."""
    words = ["kernel", "copy", "1048576", "--gpu", "a100", "--explain"]
    shown = CliRunner().invoke(main, words).output.splitlines()
    assert shown[-1].strip() == "sibling GPU answers: the h200's table (guess)"
    assert "own table passes" in shown[-2]


def test_a_step_takes_what_the_command_says() -> None:
    """Products and attention of a step on one B200 are the command's: its `time`, not `time_alone`.

    Products by the name that results have.
    """
    changes = {"cluster.name": "dgx-b200", "cluster.gpus": 1, "parallel.dp": 1}
    step = plan(load("llama1b-ddp4", {**changes, "training.global_batch": 2}))
    kernels = [(k, t) for k, t in zip(step.graph.kernels, step.durations, strict=True)]
    compared = Counter[str]()
    for kernel, seconds in kernels:
        if not isinstance(kernel, Kernel):
            continue
        if not (kernel.is_attention or kernel.is_product):
            continue
        one = plain_product(kernel)
        sizes = ",".join(map(str, one.shape))
        layout = ("--layout", one.layout)
        name = f"aten.{one.kind.removeprefix('aten ')}.default"
        made = asked(name, sizes, "--gpu", "b200", *layout)
        assert 0.99 * made["time"] <= seconds <= 1.01 * made["time"]
        if kernel.is_product and min(kernel.shape) >= 2048:
            assert made["time_alone"] < made["time"]
        compared[one.direction if one.is_attention else one.kind] += 1
    assert compared.keys() == {"aten mm", *ATTENTION}


@pytest.mark.parametrize("gpu", names())
def test_a_product_takes_the_same_by_every_name(gpu: str) -> None:
    """As models named it, as operations are called, and as results name them: small and large, alone and in a step."""
    for shape in ("256,4096,4096", "16384,8192,1280"):
        answers = [
            asked(name, shape, "--gpu", gpu)
            for name in ("gemm", "mm", "aten.mm", "aten.mm.default")
        ]
        assert answers[1:] == answers[:-1]
        if "fp8" in load_gpu(gpu).peak:
            narrow = [
                asked(name, shape, "--gpu", gpu, "--dtype", "fp8")
                for name in ("gemm", "_scaled_mm", "aten._scaled_mm.default")
            ]
            assert narrow[1:] == narrow[:-1]


def test_an_operation_takes_what_a_capture_says() -> None:
    """Operations whose bytes captures count from their tensors have the captured time; nobody's operation is refused."""
    logits = Operand("fp32", (512, 50304))
    chosen = Operand("fp32", (512, 40)), Operand("int64", (512, 40))
    (kernel,) = kernels_of(Operation("aten.topk.default", (logits, 40), (), chosen))
    words = ("512,50304", "--dtype", kernel.dtype, "--bytes", str(kernel.bytes))
    for name in ("topk", "aten.topk", "aten.topk.default"):
        assert asked(name, *words)["time"] == load_gpu("h200").in_step(kernel)
    assert asked("sort", "64,1024", "--dtype", "fp32")["bytes"] == 2 * 4 * 64 * 1024
    wrong = CliRunner().invoke(main, ["kernel", "aten.topq", "64,1024"])
    assert wrong.exit_code == 2 and 'did you mean "topk"?' in wrong.output


@pytest.mark.parametrize(
    ("arguments", "bound", "intensity", "ridge"),
    [
        # 2 m n k over 2 (m k + k n + m n) bytes; 989.4 TFLOP/s over 3.35 TB/s
        (("gemm", "8192,8192,8192", "--gpu", "h100"), "arithmetic", 8192 / 3, 295.3),
        (("gemm", "16,8192,8192", "--gpu", "h100"), "memory", 15.94, 295.3),
        # one operation for three words of 4 bytes, by CUDA cores: 66.9 TFLOP/s
        (("add", "67108864", "--gpu", "h100", "--dtype", "fp32"), "memory", 1 / 12, 19.97),
        (("add", "64", "--gpu", "h100"), "launch", 1 / 6, 19.97),
        (("gemm", "8192,8192,8192", "--gpu", "a100"), "arithmetic", 8192 / 3, 153.0),
    ],
)  # fmt: skip
def test_what_bounds_a_kernel(
    arguments: tuple[str, ...], bound: str, intensity: float, ridge: float
) -> None:
    """Intensity, the ridge of the roofline, and on which side of it a kernel lies, by hand."""
    made = asked(*arguments)
    assert made["bound"] == bound
    assert made["intensity"] == pytest.approx(intensity, rel=1e-3)
    assert made["ridge"] == pytest.approx(ridge, rel=1e-3)


def test_operations_that_nobody_counts_are_null() -> None:
    """A copy has no arithmetic, a sigmoid some that no definition counts."""
    assert asked("copy", "1024")["flops"] == 0
    made = asked("silu", "1024")
    assert made["flops"] is made["intensity"] is made["flop_rate"] is None


@pytest.mark.parametrize("name", names())
def test_a_gpu_computes_the_formats_of_its_file_and_no_others(name: str) -> None:
    """Products and attention in a format without a peak are refused, however they are named; casts are not."""
    gpu = load_gpu(name)
    lacking = [dtype for dtype in DTYPE_BYTES if dtype not in gpu.peak]
    for dtype in set(DTYPE_BYTES) - set(lacking):
        assert gpu.in_step(Kernel("aten mm", (256, 256, 256), dtype, "nt")) > 0
    for dtype in (each for each in lacking if not each.startswith("int")):
        for kernel in (
            Kernel("aten mm", (256, 256, 256), dtype, "nt"),
            Kernel("aten _scaled_mm", (256, 256, 256), dtype, "nt", 1e5, 1e7),
        ):
            with pytest.raises(InputError, match="no units"):
                gpu.in_step(kernel)
        assert gpu.duration(Kernel("sum", (256,), dtype)) > 0
