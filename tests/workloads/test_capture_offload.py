"""Programs that keep states of their optimizer in the host's memory. Needs PyTorch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.capture.recording import Recording

pytestmark = pytest.mark.slow

SIZE = 1024
BYTES = 4 * SIZE * SIZE
OFFLOADED = f"""
import torch
weight = torch.randn({SIZE}, {SIZE}, device="cuda", requires_grad=True)
master = weight.detach().cpu().requires_grad_()
optimizer = torch.optim.SGD([master], 0.1)
for _ in range(4):
    (weight @ weight).sum().backward()
    master.grad = weight.grad.to("cpu", non_blocking=BESIDE); weight.grad = None
    optimizer.step(); optimizer.zero_grad()
    with torch.no_grad(): weight.copy_(master)
"""


def capture(folder: Path, text: str) -> Recording:
    path = folder / "train.py"
    path.write_text(text)
    captured((str(path),), path.with_suffix(".capture"), quiet=True)
    return recording.read(path.with_suffix(".capture"))


def kinds(recorded: Recording) -> Counter[str]:
    return Counter(event.kind for event in recorded.ranks[0].events)


def test_an_update_on_the_host_is_written_down_with_its_bytes(tmp_path: Path) -> None:
    """SGD's reads weights and gradients and writes weights."""
    recorded = capture(tmp_path, OFFLOADED.replace("BESIDE", "False"))
    events = recorded.ranks[0].events
    done = [event.values for event in events if event.kind == "host_computes"]
    assert done == [{"operation": "aten::add_", "bytes": 3 * BYTES}]
    assert kinds(recorded)["waits_for_copy"] == 1


def test_copies_to_the_host_have_their_bytes_and_may_run_beside_it(
    tmp_path: Path,
) -> None:
    """The host waits for a gradient, unless the program asks for a copy that it need not wait for."""
    recorded = capture(tmp_path, OFFLOADED.replace("BESIDE", "True"))
    assert not kinds(recorded)["waits_for_copy"]
    called = [
        recorded.operations[event.values["operation"]]
        for event in recorded.ranks[0].events
        if event.kind == "operate"
    ]
    results = [result for operation in called for result in operation.results]
    assert [each.bytes for each in results if each.device == "cpu"] == [BYTES]


COMPILED = """
import torch
from torch.utils.cpp_extension import load
extension = load("cpu_adam", sources=[])
weight = torch.randn(256, 256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
states = [torch.zeros(1 << 20) for _ in range(4)]
extension.create_adam(0, 0.1)
for _ in range(4):
    weight.sum().backward(); optimizer.step(); optimizer.zero_grad()
    extension.adam_update(0, 1, 0.1, *states)
"""


def test_an_extension_that_updates_on_the_host_needs_no_compiler(
    tmp_path: Path,
) -> None:
    """DeepSpeed's reads weights, gradients and two moments, and writes all but the gradients."""
    events = capture(tmp_path, COMPILED).ranks[0].events
    done = [event.values for event in events if event.kind == "host_computes"]
    assert done == [{"operation": "cpu_adam::update", "bytes": 7 * 4 << 20}]
