"""Deterministic programs: sums in one order take longer, by what was counted and published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs import load_gpu
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import attention
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.torch.attention_backend import default_backend

DENSE: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "heads": 8,
    "ffn": 4096,
    "vocab": 4096,
}
DELTA = DENSE | {
    "layer_pattern": "G-",
    "linear_key_heads": 8,
    "linear_value_heads": 16,
}


def run(model: dict[str, Any], **training: Any) -> Prediction:
    """A step on hosts so fast that what the GPU does decides."""
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 1, "host_factor": 1e-3},
        "model": model,
        "training": {"framework": "megatron", "seq_len": 2048} | training,
    }
    return predict(parse_scenario(tables, "test"))


@pytest.mark.parametrize("framework", ["megatron", "pytorch-eager"])
def test_one_order_of_sums_is_never_faster(framework: str) -> None:
    plain, ordered = (
        run(DENSE | {"layers": 2}, framework=framework, deterministic=on)
        for on in (False, True)
    )
    assert plain.step_time < ordered.step_time


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "gb300"])
def test_gradients_of_attention_take_the_published_ratio(gpu: str) -> None:
    """2.900 over 2.391 ms (flash-attention, pull request 1893); the forward pass adds up in one order anyway."""
    made, shape = load_gpu(gpu), (1, 16, 16, 8192, 128)
    plain, ordered = (
        made.duration(attention(shape, backward=True, ordered=on))
        for on in (False, True)
    )
    assert ordered / plain == pytest.approx(2.900 / 2.391, rel=1e-6)
    assert attention(shape, ordered=True) == attention(shape)


@pytest.mark.parametrize(
    ("shape", "causal", "measured"),
    [
        ((2, 32, 32, 2048, 128), True, 1042 / 735),
        ((1, 32, 8, 32768, 128), True, 116061 / 68512),
        ((4, 16, 16, 4096, 64), True, 1992 / 1430),
        ((64, 12, 12, 197, 64), False, 229 / 219),
        ((1, 16, 4, 4096, 256), True, 3286 / 1615),
    ],
)
def test_flash_attentions_gradients_wait_for_their_last_wave(
    shape: tuple[int, ...], causal: bool, measured: float
) -> None:
    """Kernels in traces of one H200, nothing fitted (lab/cases/deterministic/h200.csv)."""
    made, kernels = load_gpu("h200"), []
    for on in (False, True):
        kernel = attention(shape, backward=True, library="flash", ordered=on)
        marks = kernel.layout if causal else kernel.layout.removeprefix("causal")
        kernels.append(replace(kernel, layout=marks.removeprefix("_")))
    plain, ordered = map(made.duration, kernels)
    assert ordered / plain == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("gpu", ["a100", "h200", "b200"])
def test_enough_heads_to_fill_a_gpu_need_no_waves_more(gpu: str) -> None:
    """As many samples' heads as SMs: a block each, with or without an order, and two fills where there was one."""
    made = load_gpu(gpu)
    plain, ordered = (
        made.duration(
            attention(
                (made.sms, 1, 1, 4096, 128), backward=True, library="flash", ordered=on
            )
        )
        for on in (False, True)
    )
    assert plain < ordered < 1.1 * plain


def test_pytorch_leaves_cudnn_whose_gradients_have_no_order() -> None:
    assert default_backend("2.11", (9, 0)) == "cudnn"
    assert default_backend("2.11", (9, 0), ordered=True) == "flash2"


def test_a_gated_delta_rule_by_operators_grows_faster_than_its_sequence() -> None:
    """A gradient of a chunk is as large as the sequence: backward passes of n chunks move n times n chunks.

    Counted: for 4,096 tokens of 24 heads of 128 on PyTorch's meta device 2,327 passes over the values backward and 138
    forward, which at 3.35 TB/s take 37 ms, and half as many tokens less than half.
    """
    model = DELTA | {"linear_key_heads": 24, "linear_value_heads": 24}
    times = {
        (tokens, on): run(model, seq_len=tokens, deterministic=on).step_time
        for tokens in (2048, 4096)
        for on in (False, True)
    }
    more = {n: times[n, True] - times[n, False] for n in (2048, 4096)}
    passes = (2327 + 138) * 24 * 4096 * 128 * 4
    assert more[4096] > passes / 3.35e12
    assert more[4096] > 2.3 * more[2048]


def test_documents_and_the_rule_by_operators_are_refused_together() -> None:
    """As Megatron refuses them: "Packed sequence does not support deterministic mode"."""
    with pytest.raises(InputError, match=r"training\.deterministic"):
        run(DELTA, deterministic=True, packed=256)


def test_what_scans_keep_for_backward_is_more_by_operators() -> None:
    """Counted: 25.7 tensors as large as the values in fp32."""
    plain, ordered = (run(DELTA, deterministic=on) for on in (False, True))
    values = 2048 * 16 * 128 * 4
    more = ordered.peak_memory[0].activations - plain.peak_memory[0].activations
    assert more > 20 * values
