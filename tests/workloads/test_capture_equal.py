"""A model written by hand asks for the operations that a capture of the same model records. Needs PyTorch."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.recorder import captured
from prestep.workloads.models.model import load_model
from prestep.workloads.operation import Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.torch.lower import lower
from prestep.workloads.torch.recorder import Recorder

pytestmark = pytest.mark.slow

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
        self.before = Scaled()
        self.q, self.k, self.v = (linear(HIDDEN, n * WIDTH) for n in (HEADS, GROUPS, GROUPS))
        self.o, self.between = linear(HEADS * WIDTH, HIDDEN), Scaled()
        self.gate, self.up = linear(HIDDEN, INNER), linear(HIDDEN, INNER)
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
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(2)), Scaled()
        self.head = linear(HIDDEN, WORDS)
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
#: A decoder of PyTorch's modules: rotary embeddings on halves of heads, or learned positions and biases.
PLAIN = """
import torch
from torch import nn
F = nn.functional
BATCH, LENGTH, HIDDEN, HEADS, WIDTH, INNER, WORDS = 2, 64, 256, 4, 64, 512, 512

def turned(x, cosines, sines):
    one, two = x.chunk(2, -1)
    return torch.cat((one * cosines - two * sines, two * cosines + one * sines), -1)

def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=BIAS)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = NORM(HIDDEN)
        self.q, self.k, self.v = (linear(HIDDEN, n * WIDTH) for n in (HEADS, GROUPS, GROUPS))
        self.o, self.between = linear(HEADS * WIDTH, HIDDEN), NORM(HIDDEN)
        self.gate = linear(HIDDEN, INNER) if GATED else None
        self.up, self.down = linear(HIDDEN, INNER), linear(INNER, HIDDEN)
    def forward(self, x, *tables):
        h = self.before(x)
        q, k, v = (p(h).view(BATCH, LENGTH, -1, WIDTH).transpose(1, 2) for p in (self.q, self.k, self.v))
        if ROTARY:
            q, k = turned(q, *tables), turned(k, *tables)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h) if GATED else F.gelu(self.up(h)))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.places = None if ROTARY else nn.Embedding(128, HIDDEN)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(2)), NORM(HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.ones(LENGTH, WIDTH // 2))
        self.register_buffer("numbers", torch.arange(LENGTH)[None])
    def forward(self, words):
        x = self.words(words)
        if self.places is not None:
            x = x + self.places(self.numbers)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return F.cross_entropy(self.head(self.last(x)).view(-1, WORDS), words.view(-1))

model = Decoder().cuda().to(DTYPE)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
words = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="cuda")
for _ in range(4):
    model(words).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: DeepSeek's layer: keys and values from one state, whose rotated part all heads share; an expert that sees every token
#: beside those that it is routed to.
LATENT = """
STATES, ROTATED, QUERIES = 64, 32, 96

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_down, self.q_norm, self.q_up = linear(HIDDEN, QUERIES), NORM(QUERIES), linear(QUERIES, HEADS * (WIDTH + ROTATED))
        self.down, self.norm = linear(HIDDEN, STATES + ROTATED), NORM(STATES)
        self.up, self.o = linear(STATES, HEADS * 2 * WIDTH), linear(HEADS * WIDTH, HIDDEN)
    def forward(self, x, *tables):
        q = self.q_up(self.q_norm(self.q_down(x))).view(BATCH, LENGTH, HEADS, -1)
        plain, rotated = q.split([WIDTH, ROTATED], -1)
        q = torch.cat([plain, turned(rotated, *tables)], -1)
        states, shared = self.down(x).split([STATES, ROTATED], -1)
        shared = turned(shared.view(BATCH, LENGTH, 1, ROTATED), *tables)
        k, v = self.up(self.norm(states)).view(BATCH, LENGTH, HEADS, -1).split([WIDTH, WIDTH], -1)
        k = torch.cat([k, shared.expand(-1, -1, HEADS, -1)], -1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(a.transpose(1, 2).reshape(BATCH, LENGTH, -1))

class Mixture(Experts):
    def __init__(self):
        super().__init__(HIDDEN, INNER, None, 1)
        self.w1, self.w3, self.w2 = linear(HIDDEN, INNER), linear(HIDDEN, INNER), linear(INNER, HIDDEN)
    def forward(self, x):
        t = x.reshape(-1, HIDDEN)
        p, numbers = self.gate(t).softmax(-1), torch.arange(t.shape[0], device=x.device)
        order = self._pairs(numbers).reshape(-1).argsort(stable=True)
        o = self._collected(self._computed(self._spread(t[order // 2])))
        y = torch.zeros_like(t)
        w = p.gather(1, self._pairs(numbers)).reshape(-1)[order]
        y = y.index_add(0, order // 2, o * w.unsqueeze(1).to(o.dtype))
        y = y + self.w2(F.silu(self.w1(t)) * self.w3(t))
        return y.view(x.shape)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention, self.between, self.experts = NORM(HIDDEN), Attention(), NORM(HIDDEN), Mixture()
    def forward(self, x, *tables):
        x = x + self.attention(self.before(x), *tables)
        return x + self.experts(self.between(x))

"""
#: What the same has more with the indexer of transformers' DeepSeek-V3.2, line by line.
INDEXED = {
    "class Attention(nn.Module):": """
from transformers import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
CONFIG = DeepseekV32Config(hidden_size=HIDDEN, q_lora_rank=QUERIES, qk_rope_head_dim=ROTATED,
    index_n_heads=4, index_head_dim=64, index_topk=16)

class Attention(nn.Module):""",
    "        self.up, self.o =": "        self.indexer = DeepseekV32Indexer(CONFIG, 0)\n        self.up, self.o =",
    "    def forward(self, x, *tables):\n        q = self.q_up(self.q_norm(self.q_down(x)))": (
        "    def forward(self, x, *tables):\n        *tables, turns, causal = tables\n"
        "        residual = self.q_norm(self.q_down(x))\n        q = self.q_up(residual)"
    ),
    "        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n        return self.o": """
        chosen = self.indexer(x, residual, (turns, turns), causal[:, 0], None)
        others = chosen.new_ones((BATCH, LENGTH, LENGTH), dtype=torch.bool).scatter(-1, chosen.long(), False)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=causal & ~others.unsqueeze(1))
        return self.o""",
    '        self.register_buffer("numbers"': """
        self.register_buffer("turns", torch.ones(1, LENGTH, ROTATED))
        self.register_buffer("causal", torch.ones((1, 1, LENGTH, LENGTH), dtype=torch.bool).tril())
        self.register_buffer("numbers\"""",
    "layer(x, self.cosines, self.sines)": (
        "layer(x, self.cosines, self.sines, self.turns, self.causal.expand(BATCH, -1, -1, -1))"
    ),
}
#: ResNet-50 as torchvision builds it, pictures with channels last.
RESNET = """
import torch
from torch import nn
F = nn.functional

def normed(inputs, outputs, kernel, stride=1):
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.one, self.two = normed(inputs, width, 1), normed(width, width, 3, stride)
        self.three, self.relu = normed(width, outputs, 1), nn.ReLU(inplace=True)
        self.side = normed(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else None
    def forward(self, x):
        out = self.three(self.relu(self.two(self.relu(self.one(x)))))
        out += x if self.side is None else self.side(x)
        return self.relu(out)

class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.relu = normed(3, 64, 7, 2), nn.ReLU(inplace=True)
        self.pool, self.mean = nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d((1, 1))
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, 64 * 2**stage, 2 if stage and not i else 1))
                inputs = 256 * 2**stage
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)
    def forward(self, x):
        x = self.blocks(self.pool(self.relu(self.stem(x))))
        return self.head(torch.flatten(self.mean(x), 1))

model = ResNet().cuda().to(torch.bfloat16, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
images = torch.zeros(2, 3, 224, 224, dtype=torch.bfloat16, device="cuda").to(memory_format=torch.channels_last)
classes = torch.zeros(2, dtype=torch.int64, device="cuda")
for _ in range(4):
    F.cross_entropy(model(images), classes).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: A vision transformer of timm.
PICTURES = """
import torch
from timm.models.vision_transformer import VisionTransformer
sizes = {"img_size": 64, "patch_size": 16, "embed_dim": 256, "depth": 2, "num_heads": 4, "num_classes": 128}
model = VisionTransformer(**sizes).cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
images = torch.zeros(2, 3, 64, 64, dtype=torch.bfloat16, device="cuda")
classes = torch.zeros(2, dtype=torch.int64, device="cuda")
for _ in range(4):
    torch.nn.functional.cross_entropy(model(images), classes).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: The experts with which steps of mixtures were measured: sorted tokens, experts one after the other.
EXPERTS = "from prestep.validation.measure.models import Experts"
MODEL = {
    "kind": "transformer",
    "hidden": 256,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 512,
    "vocab": 512,
    "gated": True,
    "tied_embeddings": False,
}
DEEPSEEK = (
    MODEL
    | {"kv_heads": 4, "experts": 8, "experts_per_token": 2}
    | {"q_lora_rank": 96, "kv_lora_rank": 64, "rope_head_dim": 32}
    | {"head_dim": 64, "v_head_dim": 64, "shared_experts": 1}
)
SPARSE = DEEPSEEK | {"index_heads": 4, "index_head_dim": 64, "index_topk": 16}
TRANSFORMERS = {"pytorch": {"modules": "transformers"}}
GPT = MODEL | {
    "kv_heads": 4,
    "gated": False,
    "activation": "gelu",
    "bias": True,
    "qkv_bias": True,
    "norm": "layer",
    "norm_bias": True,
    "positions": "learned",
    "max_positions": 128,
}


def plain(**changed: str) -> str:
    """The decoder of PyTorch's modules with other constants."""
    usual = {"BIAS": "False", "ROTARY": "True", "GATED": "True", "GROUPS": "2"}
    usual |= {"NORM": "nn.RMSNorm", "DTYPE": "torch.bfloat16"}
    constants = [f"{name} = {value}" for name, value in (usual | changed).items()]
    return PLAIN.replace("def turned", "\n".join([*constants, "def turned"]), 1)


def routed() -> str:
    """The decoder of PyTorch's modules with experts in place of feed-forward networks."""
    lines = plain(GROUPS="4", GATED="False").splitlines()
    return "\n".join([EXPERTS, *map(_with_experts, lines)])


def _with_experts(line: str) -> str:
    if line.strip().startswith("self.up, self.down"):
        return "        self.experts = Experts(HIDDEN, INNER, None, 1)"
    before, found, _ = line.partition("self.down(")
    return f"{before}self.experts(h)" if found else line


def latent() -> str:
    """The same decoder with DeepSeek's layers."""
    program = plain(GROUPS="4")
    before, after = program.index("class Layer"), program.index("class Decoder")
    tables = "torch.ones(LENGTH, 1, ROTATED // 2)"
    after_layers = program[after:].replace("torch.ones(LENGTH, WIDTH // 2)", tables)
    return "\n".join([EXPERTS, program[:before] + LATENT + after_layers])


def indexed() -> str:
    """The same with attention to the keys that an indexer chooses."""
    program = latent()
    for line, more in INDEXED.items():
        assert program.count(line) == 1, line
        program = program.replace(line, more)
    return program


def precise(precision: str) -> dict[str, Any]:
    return {"training": {"precision": precision}}


#: Programs, and the scenarios that describe them.
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers": (PROGRAM, TRANSFORMERS),
    "grouped keys": (plain(), {}),
    "FlashAttention": (
        "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)\n" + plain(),
        {"pytorch": {"attention": "flash2"}},
    ),
    "biases": (
        plain(
            BIAS="True", ROTARY="False", GATED="False", GROUPS="4", NORM="nn.LayerNorm"
        ),
        {"model": GPT},
    ),
    "experts": (
        routed(),
        {"model": MODEL | {"kv_heads": 4, "experts": 8, "experts_per_token": 2}},
    ),
    "latent attention, shared experts": (latent(), {"model": DEEPSEEK}),
    "keys that an indexer chooses": (indexed(), {"model": SPARSE}),
    "convolutions": (
        RESNET,
        {"model": {"name": "resnet50"}, "training": {"framework": "pytorch-eager"}},
    ),
    "pictures in patches": (
        PICTURES,
        {
            "model": {
                "kind": "vit",
                "hidden": 256,
                "layers": 2,
                "heads": 4,
                "ffn": 1024,
            }
            | {"patch": 16, "image_size": 64, "classes": 128},
            "training": {"seq_len": 17},
        },
    ),
    "fp32": (plain(DTYPE="torch.float32"), precise("fp32")),
    "fp32, a key for every head": (
        plain(DTYPE="torch.float32", GROUPS="4"),
        precise("fp32") | {"model": MODEL | {"kv_heads": 4}},
    ),
    "tf32": (
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
        + plain(DTYPE="torch.float32"),
        precise("tf32"),
    ),
}
#: Muon for hidden matrices beside AdamW for the rest, and Lion as lion-pytorch writes it (update_fn).
FURTHER = """
class Muon:
    def __init__(self, model):
        named, hidden = dict(model.named_parameters()), lambda name, p: p.dim() == 2 and name.startswith("layers")
        self.parts = (torch.optim.AdamW([p for n, p in named.items() if not hidden(n, p)], fused=True),
            torch.optim.Muon([p for n, p in named.items() if hidden(n, p)]))
    def step(self):
        for part in self.parts:
            part.step()
    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()

class Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p]["m"] = torch.zeros_like(p)
            m = self.state[p]["m"]
            p.mul_(1 - 1e-5)
            p.add_(m.clone().mul_(0.9).add(p.grad, alpha=0.1).sign_(), alpha=-1e-4)
            m.mul_(0.99).add_(p.grad, alpha=0.01)

"""
#: Optimizers, what [pytorch] says of each, and [training].
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "AdamW over lists": (
        "torch.optim.AdamW(model.parameters(), foreach=True)",
        {"fused_optimizer": False, "foreach_optimizer": True},
        "adamw",
    ),
    "AdamW by tensors": (
        "torch.optim.AdamW(model.parameters(), foreach=False)",
        {"fused_optimizer": False},
        "adamw",
    ),
    "SGD": (
        "torch.optim.SGD(model.parameters(), momentum=0.9)",
        {"fused_optimizer": False},
        "sgd-momentum",
    ),
    "SGD without momentum": (
        "torch.optim.SGD(model.parameters())",
        {"fused_optimizer": False},
        "sgd",
    ),
    "fused SGD": (
        "torch.optim.SGD(model.parameters(), momentum=0.9, fused=True)",
        {},
        "sgd-momentum",
    ),
    "Adam": ("torch.optim.Adam(model.parameters(), fused=True)", {}, "adam"),
    "Adam over lists": (
        "torch.optim.Adam(model.parameters(), foreach=True)",
        {"fused_optimizer": False, "foreach_optimizer": True},
        "adam",
    ),
    "Adam by tensors": (
        "torch.optim.Adam(model.parameters(), foreach=False)",
        {"fused_optimizer": False},
        "adam",
    ),
    "Muon": ("Muon(model)", {}, "muon"),
    "Lion": ("Lion(model.parameters(), {})", {"fused_optimizer": False}, "lion"),
    "Adafactor": ("torch.optim.Adafactor(model.parameters())", {}, "adafactor"),
}


def recorded(program: str, folder: Path) -> list[Operation]:
    """Operations of a step of a program that launch something."""
    script, out = folder / "decoder.py", folder / "decoder.capture"
    script.write_text(program)
    captured((str(script),), out, quiet=True)
    step = recording.read(out)
    events = [event for event in step.ranks[0].events if event.kind == "operate"]
    operations = [step.operations[event.values["operation"]] for event in events]
    return [each for each in operations if kernels_of(each)]


def written(said: dict[str, Any], patch: pytest.MonkeyPatch) -> list[Operation]:
    """Those of the model that a scenario describes."""
    operations: list[tuple[int, Operation]] = []
    real, forget = Recorder.operate, Recorder.forget

    def operate(self: Recorder, operation: Operation, *more: Any, **named: Any) -> None:
        operations.append((self.issued, operation))
        real(self, operation, *more, **named)

    def forgotten(self: Recorder) -> None:
        forget(self)
        operations[:] = [each for each in operations if each[0] < self.issued]

    patch.setattr(Recorder, "operate", operate)
    patch.setattr(Recorder, "forget", forgotten)
    scenario = described(said)
    lower(scenario, load_model(scenario.model))
    return [operation for _, operation in operations]


def described(said: dict[str, Any]) -> Scenario:
    """The scenario that says so much beside sizes."""
    sizes = {"seq_len": 64, "micro_batch": 2, "global_batch": 2}
    usual = {"cluster": {"name": "h200-host-4", "gpus": 1}, "parallel": {"dp": 1}}
    training = {"training": sizes | said.get("training", {})}
    return parse_scenario(usual | {"model": MODEL} | said | training, "equal.toml")


@pytest.mark.parametrize("name", SAME)
def test_a_model_asks_for_the_operations_of_its_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operator, types, shapes, strides and order; forward and backward."""
    program, said = SAME[name]
    for library in ("timm", "transformers"):
        if f"\nfrom {library}" in program and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    program_of = recorded(program, tmp_path)
    model = written(said, monkeypatch)
    for place, (one, other) in enumerate(zip(model, program_of, strict=False)):
        assert one == other, place
    assert len(model) == len(program_of)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_asks_for_the_operations_of_its_program(
    name: str, clips: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators and tensors of all that follows backward; numbers depend on the step."""
    call, pytorch, optimizer = OPTIMIZERS[name]
    head, usual = (
        "model = Decoder()",
        "torch.optim.AdamW(model.parameters(), fused=True)",
    )
    script = plain().replace(head, FURTHER + head).replace(usual, call)
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0); " if clips else ""
    script = script.replace("optimizer.step()", f"{clip}optimizer.step()")
    training = {"optimizer": optimizer}
    said = {"pytorch": pytorch | {"clip_gradients": clips}, "training": training}
    program, model = (
        [(x.name, x.operands, x.results) for x in _update(side)]
        for side in (recorded(script, tmp_path), written(said, monkeypatch))
    )
    assert model == program


def _update(side: list[Operation]) -> list[Operation]:
    """What follows backward, a lookup's gradient; a recording begins with what a second optimizer does."""
    names = [each.operator for each in side]
    last = names[::-1].index("aten::embedding_dense_backward")
    return side[len(side) - last :] + side[: names.index("aten::embedding")]


#: Programs whose layers are checkpointed as PyTorch 2.13 does by default.
CHECKPOINTED = ("grouped keys", "experts", "latent attention, shared experts")


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_hooks_see_the_tensors_that_a_program_saves(name: str, tmp_path: Path) -> None:
    """Checkpointed layers save as many tensors as PyTorch hands to its hooks, and as many again in backward."""
    program, said = SAME[name]
    layer = "x = layer(x, self.cosines, self.sines)"
    again = "x = checkpoint(layer, x, self.cosines, self.sines, use_reentrant=False)"
    script, out = tmp_path / "decoder.py", tmp_path / "decoder.capture"
    imports = "from torch.utils.checkpoint import checkpoint\n"
    script.write_text(imports + program.replace(layer, again))
    captured((str(script),), out, quiet=True)
    seen: Counter[tuple[str, int]] = Counter()
    for event in recording.read(out).ranks[0].events:
        if event.kind in ("saved", "checkpoint"):
            seen[event.kind, event.values["backward"]] += event.values["number"]
    scenario = described(said | {"training": {"recompute": "full"}})
    [counts] = lower(scenario, load_model(scenario.model)).host_operations.values()
    names = (
        "checkpoint",
        "checkpoint_backward",
        "saved_tensor",
        "saved_tensor_again",
    )
    keys = ("checkpoint", 0), ("checkpoint", 2), ("saved", 0), ("saved", 2)
    assert [counts[each] for each in names] == [seen[key] for key in keys]
