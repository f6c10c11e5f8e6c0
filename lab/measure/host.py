"""The host's own speed: Python, PyTorch's dispatch, autograd's nodes, modules, launches and waits."""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.measure.attention import every_backend

REPEATS = 7
Body = Callable[[], Any]
Unit = tuple[str, int, Body]  # name, how many of it the body does, body
DIFFERENTIABLE = (
    "add", "mul scalar", "pow", "silu", "view", "transpose", "slice", "to bf16", "sum", "cat of 2", "contiguous of t",
    "linear", "layer_norm", "rms_norm", "softmax", "embedding", "cross_entropy", "sdpa", "gelu", "dropout",
)  # fmt: skip


def rows(label: str, short: bool = False) -> Iterator[dict[str, Any]]:
    """Seconds of one unit of each thing, median and least of seven repeats; `short`: Python and a few operations."""
    gc.collect()
    gc.disable()
    every_backend()
    for part in SHORT if short else PARTS:
        for name, count, body in part():
            yield _timed(label, name, count, body)
    gc.enable()


def _timed(label: str, name: str, count: int, body: Body) -> dict[str, Any]:
    """`body` does `count` units; the GPU is waited for outside the time."""
    values = []
    try:
        for _ in range(REPEATS):
            _settle()
            begin = time.perf_counter()
            body()
            values.append((time.perf_counter() - begin) / count)
            _settle()
    except Exception as error:
        return {
            "kind": "host",
            "label": label,
            "name": name,
            "error": f"{type(error).__name__}: {error}"[:300],
        }
    return {
        "kind": "host",
        "label": label,
        "name": name,
        "s": statistics.median(values),
        "s_min": min(values),
        "count": count,
    }


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _often(call: Body, count: int) -> Body:
    def body() -> None:
        for _ in range(count):
            call()

    return body


class _Thing:
    value = 1

    def method(self, a: int, *rest: int, b: int = 2, **more: int) -> int:
        return a + b


def _python() -> Iterator[Unit]:
    """What no library does."""
    thing, data = _Thing(), {f"key{at}": at for at in range(200)}
    million = range(10**6)
    yield "python: empty loop", 10**6, lambda: [None for _ in million]
    yield "python: call of int()", 10**6, _often(int, 10**6)
    yield (
        "python: method with keywords",
        10**5,
        _often(lambda: thing.method(1, b=3, c=4), 10**5),
    )
    yield "python: attribute", 10**6, lambda: [thing.value for _ in million]
    yield "python: dictionary", 10**6, lambda: [data["key7"] for _ in million]
    yield "python: float sum", 10**6, lambda: sum(at * 0.5 for at in million)
    yield (
        "python: isinstance, getattr",
        10**5,
        _often(lambda: isinstance(getattr(thing, "value", 0), int), 10**5),
    )


def _library() -> Iterator[Unit]:
    """What Python's own C code does, and the memory."""
    data = {f"key{at}": list(range(10)) for at in range(200)}
    text, block, big = json.dumps(data), bytes(2**20), bytearray(2**26)
    yield "python: json", 20, _often(lambda: json.loads(json.dumps(data)), 20)
    yield "python: json parse of text", 20, _often(lambda: json.loads(text), 20)
    yield (
        "python: sha256 of a MiB",
        5,
        _often(lambda: hashlib.sha256(block).digest(), 5),
    )
    yield (
        "python: sort of 1e5",
        1,
        lambda: sorted(range(10**5), key=lambda at: at * 7919 % 10007),
    )
    yield "python: copy of 64 MiB", 2, _often(lambda: bytes(big), 2)


def _normal(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Any:
    return torch.randn(shape, device=_device(), dtype=dtype, requires_grad=grad)


def _views(x: Any) -> dict[str, Body]:
    """Operations that launch nothing."""
    return {
        "empty": lambda: torch.empty(64, 64, device=x.device),
        "view": lambda: x.view(-1),
        "t": lambda: x.t(),
        "transpose": lambda: x.transpose(0, 1),
        "slice": lambda: x[:, :32],
        "shape": lambda: x.shape[0],
        "unsqueeze, expand": lambda: x[None].expand(4, -1, -1),
        "chunk of 2": lambda: x.chunk(2, -1),
        "to same": lambda: x.to(torch.float32),
    }


def _elementwise(x: Any, y: Any) -> dict[str, Body]:
    return {
        "add": lambda: x + y,
        "mul scalar": lambda: x * 0.5,
        "pow": lambda: x.pow(2),
        "silu": lambda: F.silu(x),
        "gelu": lambda: F.gelu(x),
        "dropout": lambda: F.dropout(x, 0.1),
        "neg": lambda: -x,
        "to bf16": lambda: x.to(torch.bfloat16),
        "sum": lambda: x.sum(-1),
        "mean keepdim": lambda: x.mean(-1, keepdim=True),
        "cat of 2": lambda: torch.cat((x, y)),
        "clone": lambda: x.clone(),
        "contiguous of t": lambda: x.t().contiguous(),
        "where": lambda: torch.where(x > 0, x, y),
    }


def _without_graph(x: Any, y: Any, ids: Any) -> dict[str, Body]:
    """Operations that autograd is not asked about: in place, made anew, by index, batched."""
    low = x.to(torch.bfloat16)
    return {
        "add_": lambda: x.add_(y),
        "zero_": lambda: y.zero_(),
        "zeros": lambda: torch.zeros(64, 64, device=x.device),
        "arange": lambda: torch.arange(64, device=x.device),
        "index": lambda: x[ids],
        "mm": lambda: low @ low,
        "linear bf16": lambda: F.linear(low, low),
        "baddbmm": lambda: torch.baddbmm(x[None], x[None], y[None]),
    }


def _layers(x: Any, y: Any, b: Any, ids: Any, q: Any) -> dict[str, Body]:
    return {
        "linear": lambda: F.linear(x, y, b),
        "layer_norm": lambda: F.layer_norm(x, (64,), b, b),
        "rms_norm": lambda: F.rms_norm(x, (64,), b),
        "softmax": lambda: x.softmax(-1),
        "embedding": lambda: F.embedding(ids, x),
        "cross_entropy": lambda: F.cross_entropy(x, ids),
        "sdpa": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    }


def _dispatch() -> Iterator[Unit]:
    """Operations of one kernel or none, on operands so small that the host decides."""
    x, y, b = _normal(64, 64), _normal(64, 64), _normal(64)
    ids, q = (
        torch.randint(0, 64, (64,), device=_device()),
        _normal(1, 64, 4, 64, dtype=torch.bfloat16).transpose(1, 2),
    )
    tables = (
        _views(x)
        | _elementwise(x, y)
        | _layers(x, y, b, ids, q)
        | _without_graph(x, y, ids)
    )
    for name, call in tables.items():
        yield f"no_grad: {name}", 300, _without_gradients(call)
    small = torch.randn(4)
    yield "on the CPU: add", 3000, _often(lambda: small + small, 3000)
    yield "on the CPU: view", 3000, _often(lambda: small.view(2, 2), 3000)


def _without_gradients(call: Body) -> Body:
    def body() -> None:
        with torch.no_grad():
            for _ in range(300):
                call()

    return body


def _autograd() -> Iterator[Unit]:
    """Forward with a graph, and backward of one operation (a call of the engine)."""
    x, b = _normal(64, 64, grad=True), _normal(64, grad=True)
    ids, q = (
        torch.randint(0, 64, (64,), device=_device()),
        _normal(1, 4, 64, 64, dtype=torch.bfloat16, grad=True),
    )
    tables = _views(x) | _elementwise(x, x) | _layers(x, x, b, ids, q)
    for name in DIFFERENTIABLE:
        yield f"grad: {name}", 300, _often(tables[name], 300)
        yield (
            f"backward: {name}",
            100,
            _often(_backward(tables[name], q if name == "sdpa" else x), 100),
        )


def _backward(call: Body, x: Any) -> Body:
    out = call()
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, x, grad, retain_graph=True)


def _chains() -> Iterator[Unit]:
    """A hundred nodes in one backward pass: what a node takes without the call of the engine."""
    x = _normal(64, 64, grad=True)
    steps: dict[str, Callable[[Any], Any]] = {
        "mul": lambda h: h * 0.5,
        "silu": F.silu,
        "add of two": lambda h: h + x,
        "view": lambda h: h.view(64, 64),
        "linear": lambda h: F.linear(h, x),
        "checkpointed silu": lambda h: checkpoint(F.silu, h, use_reentrant=False),
    }
    for name, step in steps.items():
        yield f"chain of 100, forward and backward: {name}", 100, _chain(step, x)
        yield f"chain of 100, forward: {name}", 100, _chain(step, x, back=False)
    yield "accumulation into .grad of 100 parameters", 100, _accumulation()


def _chain(step: Callable[[Any], Any], x: Any, back: bool = True) -> Body:
    def body() -> None:
        h = x
        for _ in range(100):
            h = step(h)
        if back:
            torch.autograd.grad(h, x, h.detach())

    return body


def _accumulation() -> Body:
    total = torch.stack([_normal(64, grad=True) for _ in range(100)]).sum()
    total.backward(retain_graph=True)
    return lambda: total.backward(retain_graph=True)


def _modules() -> Iterator[Unit]:
    x, device = _normal(64, 64), _device()
    identity, linear, norm = (
        nn.Identity(),
        nn.Linear(64, 64, device=device),
        nn.LayerNorm(64, device=device),
    )
    hooked, deep = nn.Identity(), nn.Sequential(*[nn.Identity() for _ in range(10)])
    hooked.register_forward_hook(lambda module, args, out: None)
    block = nn.TransformerEncoderLayer(64, 4, 128, device=device, batch_first=True)
    yield "module: Identity", 3000, _often(lambda: identity(x), 3000)
    yield "module: Identity with a hook", 3000, _often(lambda: hooked(x), 3000)
    yield "module: Sequential of 10", 300, _often(lambda: deep(x), 300)
    yield "module: Linear", 300, _often(lambda: linear(x), 300)
    yield "module: LayerNorm", 300, _often(lambda: norm(x), 300)
    yield (
        "module: TransformerEncoderLayer, forward and backward",
        5,
        _often(lambda: block(x[None]).sum().backward(), 5),
    )


def _contexts() -> Iterator[Unit]:
    x, device = _normal(64, 64), _device()
    linear = nn.Linear(64, 64, device=device)
    yield (
        "autocast: enter and leave",
        1000,
        _often(_within(lambda: torch.autocast(device, torch.bfloat16)), 1000),
    )
    yield "autocast: Linear", 200, _often(lambda: _autocast(linear, x), 200)
    yield "no_grad: enter and leave", 3000, _often(_within(torch.no_grad), 3000)


def _autocast(module: Any, x: Any) -> None:
    with torch.autocast(_device(), torch.bfloat16):
        module(x)


def _within(context: Callable[[], Any]) -> Body:
    def body() -> None:
        with context():
            pass

    return body


def _optimizers() -> Iterator[Unit]:
    small = [_normal(64) for _ in range(100)]
    parameters = [nn.Parameter(each) for each in small]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    kinds = {
        "AdamW fused": torch.optim.AdamW(parameters, fused=True),
        "AdamW foreach": torch.optim.AdamW(parameters, foreach=True),
        "AdamW for-loop": torch.optim.AdamW(parameters, foreach=False, fused=False),
        "SGD foreach": torch.optim.SGD(parameters, momentum=0.9, foreach=True),
    }
    for name, optimizer in kinds.items():
        yield f"optimizer: {name}, 100 tensors", 3, _often(optimizer.step, 3)
    yield (
        "optimizer: clip_grad_norm_, 100 tensors",
        5,
        _often(lambda: nn.utils.clip_grad_norm_(parameters, 1.0), 5),
    )
    yield (
        "_foreach_add_ of 100 tensors",
        20,
        _often(lambda: torch._foreach_add_(small, 1.0), 20),
    )


def _launches() -> Iterator[Unit]:
    if not torch.cuda.is_available():
        return
    x, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin()
    for _ in range(1000):
        x.add_(1)
    graph.capture_end()
    yield "launch: add_ of one element", 500, _often(lambda: x.add_(1), 500)
    yield (
        "launch: in full queue, until the GPU is done",
        5000,
        _and_wait(_often(lambda: x.add_(1), 5000)),
    )
    yield (
        "launch: kernels of a graph, until the GPU is done",
        1000,
        _and_wait(graph.replay),
    )
    yield "wait: synchronize of an idle GPU", 500, _often(torch.cuda.synchronize, 500)
    yield "wait: item", 200, _often(lambda: x.item(), 200)
    yield "wait: add_ and synchronize", 200, _often(_and_wait(lambda: x.add_(1)), 200)


def _and_wait(call: Body) -> Body:
    def body() -> None:
        call()
        torch.cuda.synchronize()

    return body


def _streams() -> Iterator[Unit]:
    if not torch.cuda.is_available():
        return
    event, other, size = torch.cuda.Event(), torch.cuda.Stream(), 2**26
    here, there = torch.zeros(1024, pin_memory=True), torch.zeros(1024, device="cuda")
    yield "event: record", 1000, _often(event.record, 1000)
    yield (
        "event: wait_stream",
        500,
        _often(lambda: other.wait_stream(torch.cuda.current_stream()), 500),
    )
    yield (
        "event: create and record",
        500,
        _often(lambda: torch.cuda.Event().record(), 500),
    )
    yield (
        "stream: enter and leave",
        500,
        _often(_within(lambda: torch.cuda.stream(other)), 500),
    )
    yield (
        "copy: 4 KiB to GPU, pinned",
        300,
        _often(lambda: there.copy_(here, non_blocking=True), 300),
    )
    empty = _often(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"), 500)
    yield "memory: empty and free of 64 MiB", 500, empty


PARTS = (
    _python,
    _library,
    _dispatch,
    _autograd,
    _chains,
    _modules,
    _contexts,
    _optimizers,
    _launches,
    _streams,
)
SHORT = PARTS[:3]
