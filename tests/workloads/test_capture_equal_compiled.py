"""Compiled blocks, written by hand and captured, launch the same kernels in the same order. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture.recorder import captured
from tests.workloads.test_capture_equal import MODEL, SAME, described
from tests.workloads.test_capture_equal_blocks import KINDS
from tests.workloads.test_capture_equal_norms import KINDS as NORMS

pytestmark = pytest.mark.slow

NAMES = (
    *("grouped keys", "biases", "experts", "latent attention, shared experts"),
    *("pictures in patches", "windows", "parts beside each other, a norm each"),
    *("a gate of the shared expert", "norms of queries and keys", "gates of attention"),
    *("gated GELU", "relu2", "parts beside each other"),
    *("norms behind", "norms around", "norms of all heads", "no positions"),
    *("capped logits", "layer norms without bias"),
)
#: Words of the vocabulary: were there as many as a layer is wide, a capture could not tell weights from embeddings.
SIZES = "4, 64, 512, 512", "4, 64, 512, 768"


def both(name: str, folder: Path) -> tuple[Planned, Planned]:
    """A step of the model and of its program, every block of which is compiled."""
    program, said = (SAME | KINDS | NORMS)[name]
    blocks = "blocks" if "timm" in program else "layers"
    head = "optimizer = torch.optim"
    compiled = f"for block in model.{blocks}:\n    block.compile()\n{head}"
    script, out = folder / "decoder.py", folder / "decoder.capture"
    script.write_text(program.replace(head, compiled, 1).replace(*SIZES))
    captured((str(script),), out, quiet=True)
    training = said.get("training", {}) | {"framework": "pytorch-compiled"}
    scenario: dict[str, Any] = said | {"training": training}
    if SIZES[0] in program:
        scenario |= {"model": MODEL | said.get("model", {}) | {"vocab": 768}}
    where = ["cluster.name=h200-host-4", "cluster.gpus=1"]
    return plan(described(scenario)), plan(load_scenario(out, where))


def kernels(planned: Planned) -> list[Kernel]:
    program = planned.graph.programs[0]
    launched = (
        planned.graph.kernels[int(i)] for i in program.payload[program.kind == KERNEL]
    )
    return [each for each in launched if isinstance(each, Kernel)]


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_block_launches_the_kernels_of_its_program(
    name: str, tmp_path: Path
) -> None:
    """Kind, shape, layout, bytes, flops and order; forward, backward and optimizer; the peak of memory."""
    by_hand, program = both(name, tmp_path)
    for place, (one, other) in enumerate(
        zip(kernels(by_hand), kernels(program), strict=False)
    ):
        assert one == other, place
    assert len(kernels(by_hand)) == len(kernels(program))
    peaks = (
        max(m.total for m in reported(x, execute(x)).peak_memory.values())
        for x in (by_hand, program)
    )
    assert next(peaks) == pytest.approx(next(peaks), rel=0.005)
