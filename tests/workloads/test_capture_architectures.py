"""Decoder layers of transformers ask for the operations of the model that their config.json is read as. Needs PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from prestep.workloads.operation import Operand, Operation
from tests.workloads.test_capture_equal import (
    MODEL,
    TRANSFORMERS,
    plain,
    recorded,
    written,
)

pytestmark = pytest.mark.slow

#: Two layers as the library has them between an embedding and a head; positions are given, not computed.
PROGRAM = """
import importlib, json, torch
from torch import nn
from transformers import CONFIG_MAPPING
F = nn.functional
BATCH, LENGTH, HIDDEN, WIDTH, WORDS = 2, 64, 256, 64, 512
said = json.loads('''SAID''')
kind = said.pop("model_type")
config = CONFIG_MAPPING[kind](**said)
config._attn_implementation = "sdpa"
module = kind.removesuffix("_text")
library = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
names = {name.lower(): getattr(library, name) for name in dir(library)}
own = module.replace("_", "")
Layer = names.get(f"{own}decoderlayer") or names[f"{own}layer"]
Norm = names.get(f"{own}rmsnorm") or nn.LayerNorm

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Layer(config, at) for at in range(2))
        self.last, self.head = Norm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.ones(1, LENGTH, WIDTH))
    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_embeddings=(self.cosines, self.sines))
            x = x if isinstance(x, torch.Tensor) else x[0]
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
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
SAME: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 64, "query_pre_attn_scalar": 64},
    "lfm2": {"layer_types": ["conv"] * 2, "block_auto_adjust_ff_dim": False},
}
#: The plain decoder's layer, and one whose parts are beside each other, behind a norm each or one for both.
ONE_BY_ONE = """        x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))
        h = self.between(x)
        return x + self.down("""
BESIDE = """        a = self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))
        NORM
        return x + (self.down("""
PARALLEL = {"before": "h = self.between(x)", "shared": ""}


def behind(each: Operation) -> tuple[str, tuple[Operand, ...], tuple[Operand, ...]]:
    """What kernels depend on: scales of attention are numbers."""
    return each.name, each.operands, each.results


def until_the_optimizer(side: list[Operation]) -> list[Any]:
    """Operations of forward and backward; the library's lists of parameters have another order."""
    names = [each.name for each in side]
    end = names.index("aten.embedding_dense_backward.default")
    return [*map(behind, side[: end + 1])]


@pytest.mark.parametrize("kind", SAME)
def test_a_config_asks_for_the_operations_of_the_librarys_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators, types, shapes, strides and order."""
    path, config = tmp_path / "config.json", SIZES | {"model_type": kind} | SAME[kind]
    path.write_text(json.dumps(config))
    script = PROGRAM.replace("SAID", json.dumps(config))
    program = recorded(script, tmp_path)
    model = written({"model": {"file": str(path)}} | TRANSFORMERS, monkeypatch)
    assert until_the_optimizer(model) == until_the_optimizer(program)


@pytest.mark.parametrize("norms", PARALLEL)
def test_parallel_parts_ask_for_the_operations_of_their_program(
    norms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Falcon 7B's layer with one norm, and GPT-NeoX's with two, of PyTorch's modules."""
    program = plain(GATED="False")
    before, after = program.split(ONE_BY_ONE)
    parts = BESIDE.replace("NORM", PARALLEL[norms])
    line, rest = after.split("\n", 1)
    script = f"{before}{parts}{line} + a)\n{rest}"
    if norms == "shared":
        script = script.replace("self.o, self.between = ", "self.o = ")
        script = script.replace("WIDTH, HIDDEN), NORM(HIDDEN)", "WIDTH, HIDDEN)")
    said = {"gated": False, "norms": norms, "parallel_parts": True}
    model = written({"model": MODEL | said}, monkeypatch)
    asked = until_the_optimizer(recorded(script, tmp_path))
    # A gradient that another branch still waits for is summed into a new tensor; the tape sums it in place.
    made = [
        (name.replace("add_", "add"), *rest)
        for name, *rest in until_the_optimizer(model)
    ]
    assert made == [(name.replace("add_", "add"), *rest) for name, *rest in asked]
