"""`python -m lab.fit.generated`: what the functions of generated kernels take, from measured ones.

A kernel that takes the same time on an H100 and on an H200, whose memory is 1.43 times as fast, is bound by arithmetic.
Its time is given in operations of the fp32 peak for each element; smaller sizes than the largest are printed beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prestep.sim.costs import load_gpu
from prestep.sim.costs.generated import operations as operations_in_use

FOLDER = Path(__file__).parents[1] / "cases" / "generated"
GPUS = ("h100", "h200")


@dataclass(frozen=True)
class Evidence:
    """A function: the row and the kernel that it bounds, and how often that evaluates it."""

    function: str
    row: str
    kernel: str
    times: int = 1


EVIDENCE = (
    Evidence("sin", "rope_trig h32 bf16", "cos_mul_neg_sin_slice_", 2),
    Evidence("erf", "gelu_erf bf16", "fused_gelu_0"),
    Evidence("erfgrad", "gelu_erf bf16", "gelu_backward"),
    Evidence("tanhgelu", "gelu_tanh bf16", "fused_gelu_0"),
    Evidence("tanhgelugrad", "gelu_tanh bf16", "gelu_backward"),
    Evidence("random", "dropout_add bf16", "fused_add_native_dropout"),
    Evidence("rowmax", "ce v128256 bf16", "prepare_softmax_onlin"),
    Evidence("rowexp", "ce v128256 bf16", "_log_softmax_backward_data"),
    Evidence("welford", "layer_norm c4096 bf16", "fused_native_layer_norm_0"),
)


def times(gpu: str, evidence: Evidence) -> Mapping[int, float]:
    """Seconds of the kernel by elements."""
    return dict(_times(FOLDER / f"{gpu}.jsonl", evidence))


def _times(path: Path, evidence: Evidence) -> Iterator[tuple[int, float]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["name"] != evidence.row:
            continue
        for kernel in row["kernels"]:
            if evidence.kernel in kernel["kernel"]:
                yield row["elements"], kernel["us"] * 1e-6
                break


def operations(gpu: str, evidence: Evidence) -> Mapping[int, float]:
    """Operations of the fp32 peak for each element and evaluation, by elements."""
    peak = load_gpu(gpu).peak["fp32"]
    return {
        elements: seconds * peak / elements / evidence.times
        for elements, seconds in times(gpu, evidence).items()
    }


def main() -> None:
    for evidence in EVIDENCE:
        print(
            f"{evidence.function}: {operations_in_use()[evidence.function]:.0f} in use"
        )
        for gpu in GPUS:
            found = operations(gpu, evidence).items()
            said = ", ".join(f"{value:.0f} ({elements:,})" for elements, value in found)
            print(f"    {gpu}: {said}")


if __name__ == "__main__":
    main()
