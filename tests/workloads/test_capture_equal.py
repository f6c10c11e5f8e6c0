"""A model written by hand asks for the operations that a capture of the same model records. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prestep.sim.spec.load import parse_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.models.model import load_model
from prestep.workloads.operation import Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import base
from prestep.workloads.torch.lower import lower
from prestep.workloads.torch.recorder import Recorder

pytestmark = pytest.mark.slow

#: Families that hand-written models name by their kernels still; the optimizer counts its steps.
BY_KERNELS = (
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_foreach_add_",
    "_fused_adamw_",
    "clone",
)
#: A decoder with grouped keys and a gated network, its layers written as the formulas say: root mean squares in fp32,
#: halves of heads turned by 90 degrees, the loss in fp32.
PROGRAM = """
import torch
from torch import nn
F = nn.functional
BATCH, LENGTH, HIDDEN, HEADS, GROUPS, WIDTH, INNER, WORDS = 2, 64, 256, 4, 2, 64, 512, 512

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)

def turned(x):
    first, second = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
    return torch.cat((-second, first), dim=-1)

def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = Scaled(), Scaled()
        self.q, self.k, self.v = (linear(HIDDEN, n * WIDTH) for n in (HEADS, GROUPS, GROUPS))
        self.o, self.gate, self.up = linear(HEADS * WIDTH, HIDDEN), linear(HIDDEN, INNER), linear(HIDDEN, INNER)
        self.down = linear(INNER, HIDDEN)
    def forward(self, x, cosines, sines):
        h = self.before(x)
        q, k, v = (p(h).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (x * cosines + turned(x) * sines for x in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, HIDDEN), linear(HIDDEN, WORDS)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(2)), Scaled()
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.ones(1, 1, LENGTH, WIDTH))
    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        scores = self.head(self.last(x)).float()
        return F.cross_entropy(scores.view(-1, WORDS), words.view(-1))

model = Decoder().cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
words = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
for _ in range(4):
    model(words).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: A GPT as PyTorch's own modules make it: learned positions, layer norms, biases, GELU.
GPT = """
import torch
from torch import nn
F = nn.functional
BATCH, LENGTH, HIDDEN, HEADS, INNER, WORDS = 2, 64, 256, 4, 1024, 512

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
    def forward(self, x):
        h = self.before(x)
        q, k, v = (p(h).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, HIDDEN))
        return x + self.down(F.gelu(self.up(self.between(x))))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(2)), nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        self.register_buffer("order", torch.arange(LENGTH)[None])
    def forward(self, words):
        x = self.words(words) + self.places(self.order)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.last(x)).view(-1, WORDS), words.view(-1))

model = Decoder().cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
words = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
for _ in range(4):
    model(words).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DECODER = {
    "kind": "transformer",
    "hidden": 256,
    "layers": 2,
    "heads": 4,
    "vocab": 512,
    "tied_embeddings": False,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a decoder of transformers": (
        PROGRAM,
        {**DECODER, "kv_heads": 2, "ffn": 512, "gated": True},
        {"modules": "transformers"},
    ),
    "a GPT of PyTorch's modules": (
        GPT,
        {
            **DECODER,
            "ffn": 1024,
            "gated": False,
            "activation": "gelu",
            "norm": "layer",
            "bias": True,
            "positions": "learned",
            "max_positions": 64,
        },
        {},
    ),
}


def recorded(program: str, folder: Path) -> list[Operation]:
    """Operations of a step of the program that launch something."""
    script, out = folder / "decoder.py", folder / "decoder.capture"
    script.write_text(program)
    captured((str(script),), out, quiet=True)
    step = recording.read(out)
    events = [event for event in step.ranks[0].events if event.kind == "operate"]
    operations = [step.operations[event.values["operation"]] for event in events]
    return [each for each in operations if kernels_of(each)]


def written(
    model: dict[str, Any], pytorch: dict[str, Any], patch: pytest.MonkeyPatch
) -> list[Operation]:
    """Those of the model that a scenario describes."""
    operations: list[Operation] = []
    real = Recorder.operate

    def operate(self: Recorder, operation: Operation, *more: object) -> None:
        operations.append(operation)
        real(self, operation, *more)  # type: ignore[arg-type]

    patch.setattr(Recorder, "operate", operate)
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": 1},
        "model": model,
        "training": {"seq_len": 64, "micro_batch": 2, "global_batch": 2},
        "parallel": {"dp": 1},
        "pytorch": pytorch,
    }
    scenario = parse_scenario(tables, "equal.toml")
    lower(scenario, load_model(scenario.model))
    return operations


@pytest.mark.parametrize("case", CASES)
def test_a_model_asks_for_the_operations_of_its_program(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operator, types, shapes, strides and order; forward and backward."""
    script, spec, pytorch = CASES[case]
    sides = recorded(script, tmp_path), written(spec, pytorch, monkeypatch)
    program, model = ([x for x in s if base(x) not in BY_KERNELS] for s in sides)
    for place, (one, other) in enumerate(zip(model, program, strict=False)):
        assert one == other, place
    assert len(model) == len(program)
