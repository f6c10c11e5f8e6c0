"""Programs with experts: their routers' choices are assumed, and said. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from prestep import cli
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.operation import Operand
from prestep.workloads.operators.rules import kernels_of

pytestmark = pytest.mark.slow

PROGRAM = """
import torch
router = torch.nn.Linear(64, 8).cuda()
experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(8)).cuda()
optimizer = torch.optim.SGD([*router.parameters(), *experts.parameters()], lr=0.1)
for _ in range(4):
    x = torch.randn(2048, 64, device="cuda")
    weights, chosen = router(x).softmax(-1).topk(2)
    routed = torch.zeros(2048, 8, dtype=torch.bool, device="cuda").scatter(1, chosen, True)
    total = torch.zeros_like(x)
    for expert, rows in zip(experts, routed.sum(0).tolist()):
        total = total + expert(x[:rows]).sum() / 64
    total.square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def rows_of_experts(folder: Path, busiest: float) -> tuple[list[int], list[str]]:
    """Tokens of every expert, in its order, and what was assumed."""
    script = folder / "train.py"
    script.write_text(PROGRAM)
    out = folder / "train.capture"
    captured((str(script),), out, quiet=True, stop=True, busiest=busiest)
    recorded = recording.read(out)
    asked = [
        recorded.operations[event.values["operation"]]
        for event in recorded.ranks[0].events
        if event.kind == "operate" and not event.values["backward"]
    ]
    products = [o.arguments[1] for o in asked if o.name == "aten.addmm.default"]
    shapes = [p.shape for p in products if isinstance(p, Operand)]
    return [shape[0] for shape in shapes[1:]], list(recorded.assumed)


def test_experts_are_balanced_unless_said_otherwise(tmp_path: Path) -> None:
    """2,048 tokens with two choices each are 512 for each of eight experts; the recording says what was assumed."""
    rows, assumed = rows_of_experts(tmp_path, 1.0)
    assert rows == [512] * 8
    assert "experts balanced" in assumed


def test_the_busiest_expert_may_be_said(tmp_path: Path) -> None:
    """Twice its share is 1,024 tokens; all experts together have as many as before."""
    rows, assumed = rows_of_experts(tmp_path, 2.0)
    assert rows[0] == 1024 and sum(rows) == 4096
    assert "experts: the first has 2 times its share" in assumed


BIASES = """
import torch
router, bias = torch.nn.Linear(64, 8).cuda(), torch.nn.Parameter(torch.zeros(8, 32, device="cuda"))
optimizer = torch.optim.SGD([*router.parameters(), bias], lr=0.1)
for _ in range(4):
    weights, chosen = router(torch.randn(2048, 64, device="cuda")).softmax(-1).topk(2)
    (bias[chosen.flatten()].sum() + weights.sum()).backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("busiest", "rows"), [(1.0, 512), (2.0, 1024)])
def test_rows_that_an_expert_adds_up_are_counted(
    busiest: float, rows: int, tmp_path: Path
) -> None:
    """4,096 choices of eight experts: the gradient of a bias is a sum of 512 rows, or of twice as many."""
    script = tmp_path / "train.py"
    script.write_text(BIASES)
    out = tmp_path / "train.capture"
    captured((str(script),), out, quiet=True, stop=True, busiest=busiest)
    puts = [o for o in recording.read(out).operations if "index_put" in o.name]
    assert [dict(put.options)["largest_group"] for put in puts] == [rows]


@pytest.mark.parametrize("text", ["experts=half", "experts=0.5", "tokens=2", "2"])
def test_assumptions_that_cannot_be_meant_are_refused(
    text: str, tmp_path: Path
) -> None:
    """The message says what can be assumed."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    out = str(tmp_path / "x.capture")
    command = ["capture", "--assume", text, "-o", out, "--", str(script)]
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 2
    assert "experts=balanced" in result.output


GROUPED = """
import torch
router = torch.nn.Linear(64, 8).cuda()
weights = torch.nn.Parameter(torch.zeros(8, 64, 64, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([*router.parameters(), weights], lr=0.1)
for _ in range(4):
    shares, chosen = router(torch.randn(2048, 64, device="cuda")).softmax(-1).topk(2)
    ends = torch.histc(chosen.flatten(), bins=8, min=0, max=8).cumsum(0).int()
    rows = torch.zeros(6144, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (torch._grouped_mm(rows, weights, offs=ends).square().sum() + shares.sum()).backward()
    optimizer.step(); optimizer.zero_grad()
"""


def test_rows_of_no_expert_are_not_multiplied(tmp_path: Path) -> None:
    """2,048 tokens with two choices each are 4,096 of 6,144 rows: forward and two gradients compute with no other."""
    script, out = tmp_path / "train.py", tmp_path / "train.capture"
    script.write_text(GROUPED)
    captured((str(script),), out, quiet=True, stop=True)
    asked = [o for o in recording.read(out).operations if "_grouped_mm" in o.name]
    kernels = [kernel for each in asked for kernel in kernels_of(each)]
    assert [kernel.flops for kernel in kernels] == [2.0 * 4096 * 64 * 64] * 3
    read_and_written = 2 * (4096 * 64 + 8 * 64 * 64 + 4096 * 64) + 4 * 8
    assert [kernel.bytes for kernel in kernels] == [read_and_written] * 3
