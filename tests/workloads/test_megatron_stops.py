"""Hosts that stop in layers of experts, formats that parts keep, and what HybridEP sends: laws of Megatron's layers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from prestep.sim.costs import load_gpu
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, OpGraph
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.host_costs import host_costs
from prestep.workloads.job import JobSpec
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.training import Training
from prestep.workloads.lowered import Place
from prestep.workloads.megatron.moe import _add_bias
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.shard import spread_of
from prestep.workloads.megatron.split import joint
from prestep.workloads.megatron.units import Unit, Units
from prestep.workloads.models.model import load_model
from prestep.workloads.parallel.folding import Grid
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor

EP = 8
SMALL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "ffn": 1024,
    "vocab": 4096,
    "experts": 16,
    "experts_per_token": 2,
}
HYBRID = {
    "layers": 4,
    "layer_pattern": "ME*E",
    "moe_latent": 256,
    "mamba_heads": 16,
    "gated": False,
    "activation": "relu2",
}
HYBRID_EP = {
    "moe_token_dispatcher": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
}
PADDED = {"moe_capacity": 1.0, "moe_pad_to_capacity": True}


def units(
    place: Place = Place(8, blocking=False),  # noqa: B008 - frozen
    precision: str = "bf16",
    model: dict[str, Any] | None = None,
    priced: dict[str, float] | None = None,
    **megatron: Any,
) -> Units:
    """The units of a model whose experts lie on eight ranks; ``priced``: all that the host is paid for."""
    model = SMALL | (model or {})
    m, o = load_model(Model(**model)), Megatron(**megatron)
    job = JobSpec(
        model=Model(**model),
        training=Training(seq_len=2048, framework="megatron", precision=precision),
        parallel=Parallel(dp=EP, ep=EP),
        megatron=o,
    )
    groups = Groups(Grid(EP, 1, 1, cp=1, ep=EP, etp=1), place)
    costs = host_costs("megatron")
    if priced is not None:
        costs = dict.fromkeys(costs, 0.0) | priced
    spread = spread_of(groups, job, m)
    return Units(
        job, m, groups.of("tp", 0), None, lambda: Tape(0, Shared(), costs), spread
    )


def layer(**keys: Any) -> Unit:
    return units(**keys).layer(0)


def stops(which: Pass) -> int:
    return sum(part.waits for part in which.parts)


def products(unit: Unit) -> list[str]:
    """Types of a layer's products, forward."""
    graph = unit.forward.uncut
    return [k.dtype for k in kernels(graph) if k.is_product]


def kernels(graph: OpGraph) -> list[Kernel]:
    p = graph.programs[0]
    found = (graph.kernels[k] for k in p.payload[p.kind == KERNEL])
    return [k for k in found if isinstance(k, Kernel)]


def sent(graph: OpGraph, op: str) -> list[float]:
    """Bytes of a graph's collectives of a kind, in their order."""
    p = graph.programs[0]
    comms = (graph.comms[p.parts[c][0]] for c in p.payload[p.kind == COMM])
    return [comm.size for comm in comms if comm.op == op]


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "flex"])
def test_a_host_stops_once_in_a_layer_of_experts(dispatcher: str) -> None:
    """Forward, whatever brings tokens to experts; backward knows how many they were."""
    unit = layer(moe_token_dispatcher=dispatcher)
    assert (stops(unit.forward), stops(unit.backward)) == (1, 0)


@pytest.mark.parametrize(
    "keys", [PADDED, {"cuda_graph_scope": ("full_iteration",)}], ids=str
)
def test_nobody_waits_for_numbers_that_are_known(keys: dict[str, Any]) -> None:
    """Padded experts have as many tokens as are said, and a whole step in a CUDA graph has no host."""
    assert stops(layer(**keys).forward) == 0


def test_what_runs_again_stops_again() -> None:
    """Experts that run again in backward are dispatched, and so waited for, once more."""
    assert stops(layer(recompute_modules=("moe",)).backward) == 1


def test_the_parts_of_a_pass_are_all_of_it() -> None:
    """Cut where the host waits, a pass launches what it launches uncut, and takes the host as long."""
    cut, whole = layer().forward, layer(**PADDED).forward
    graphs = [part.graph for part in cut.parts]
    assert sum(map(len, map(kernels, graphs))) == len(kernels(cut.uncut))
    assert sum(part.host for part in cut.parts) > whole.host


def test_passes_at_once_stop_at_their_end() -> None:
    """Of two passes at once the host waits once, after all of both."""
    unit = layer(overlap_moe_expert_parallel_comm=True)
    both = joint(unit.forward, unit.backward)
    assert both.waits and stops(both) == 1
    assert len(kernels(both.graph)) == len(kernels(unit.forward.uncut)) + len(
        kernels(unit.backward.uncut)
    )


@pytest.mark.parametrize("host_factor", [0.1, 1.0, 4.0])
def test_a_stop_shortens_no_step(host_factor: float) -> None:
    """Whatever the host's speed, waiting for the numbers of tokens costs time or none."""

    def step(**megatron: Any) -> float:
        tables = {
            "cluster": {"name": "rail-h100", "hosts": 1, "host_factor": host_factor},
            "model": SMALL,
            "training": {"framework": "megatron", "seq_len": 2048},
            "parallel": {"dp": 8, "ep": 8},
            "megatron": megatron,
        }
        return predict(parse_scenario(tables, "test")).step_time

    assert step() >= step(**PADDED)


def test_layers_at_the_ends_keep_16_bits() -> None:
    """As many at the start and at the end as are said, and no other."""
    model = units(
        precision="fp8", num_layers_at_start_in_bf16=1, num_layers_at_end_in_bf16=2
    )
    quantized = ["fp8" in products(model.layer(i)) for i in range(4)]
    assert quantized == [False, True, False, False]


def test_a_recipe_keeps_parts_in_their_formats() -> None:
    """Attention and projections around latent experts in 16 bits, Mamba's output in 8 beside products of 4."""
    model = units(
        precision="nvfp4",
        model=HYBRID,
        kept_in_bf16=("attn", "moe_latent"),
        kept_in_mxfp8=("mamba_out",),
    )
    mamba, experts, attention = (set(products(model.layer(i))) for i in range(3))
    assert mamba == {"nvfp4", "fp8"}
    assert experts == {"nvfp4", "bf16"}
    assert attention == {"bf16"}


def test_a_head_stays_in_sixteen_bits_unless_it_is_said() -> None:
    """Its product has the layers' type with fp8_output_proj, and that alone changes."""
    plain, asked = (
        units(precision="fp8", fp8_output_proj=on).head for on in (False, True)
    )
    assert (products(plain), products(asked)) == (["bf16"], ["fp8"])


@pytest.mark.parametrize(
    ("backend", "other"), [("hybridep", "deepep"), ("deepep", "hybridep")]
)
def test_kernels_of_tokens_take_the_sms_that_are_said_of_them(
    backend: str, other: str
) -> None:
    """Each library has a number of its own; the other's says nothing."""
    sms = {f"moe_{backend}_num_sms": 32, f"moe_{other}_num_sms": 8}
    keys: dict[str, Any] = {**HYBRID_EP, **sms, "moe_flex_dispatcher_backend": backend}
    graph = layer(**keys).forward.uncut
    assert {c.tokens.sms for c in graph.comms if c.tokens is not None} == {32}


def test_trays_of_one_nvlink_domain_are_one_host_of_experts() -> None:
    """HybridEP sends a token to every rank with an expert it chose in an NVLink domain, to each of other hosts once."""
    apart = layer(place=Place(4, blocking=False), **HYBRID_EP)
    joined = layer(place=Place(4, blocking=False, nvlink=(0,) * 8), **HYBRID_EP)
    same = layer(place=Place(8, blocking=False), **HYBRID_EP)
    of = [sent(u.backward.uncut, "all_to_all") for u in (apart, joined, same)]
    assert of[1] == of[2] and sum(of[0]) < sum(of[1])


def test_hybrid_ep_sends_weights_beside_tokens() -> None:
    """To experts, and their gradients back: four bytes for each expert of the domain with every copy of a token."""
    unit = layer(**HYBRID_EP)
    there, back = sent(unit.forward.uncut, "all_to_all")
    assert there / back == pytest.approx(
        1 + 4 * SMALL["experts"] / (2 * SMALL["hidden"])
    )
    assert sent(unit.backward.uncut, "all_to_all") == [back, there]


def test_hybrid_ep_gathers_the_choices_of_all() -> None:
    """A byte for every token of every rank and every expert, before the host stops; backward needs none."""
    unit = layer(**HYBRID_EP)
    first = next(unit.forward.parts)
    assert sent(first.graph, "all_gather") == [2048.0 * EP * SMALL["experts"]]
    assert not sent(unit.backward.uncut, "all_gather")


def test_clamped_activations_are_passes_of_their_own() -> None:
    """Two clamps and a concatenation before the activation; backward three comparisons, two choices and another."""
    plain, clamped = (layer(model={"clamped": on}) for on in (False, True))
    for way, added in (("forward", 3), ("backward", 6)):
        more, less = (
            len(kernels(getattr(unit, way).uncut)) for unit in (clamped, plain)
        )
        assert more == less + added


@pytest.mark.parametrize(
    ("experts", "forward", "backward"), [(2, 526.9, 728.0), (8, 566.8, 899.4)]
)
def test_biases_of_experts_take_as_long_as_measured(
    monkeypatch: pytest.MonkeyPatch, experts: int, forward: float, backward: float
) -> None:
    """Microseconds of ``_apply_bias`` on an H200 (PyTorch 2.11): 16,384 rows of 2,880; no constant was taken from them."""
    gpu, tape = load_gpu("h200"), Tape(0, Shared(), defaultdict(float))
    seen: list[Kernel] = []
    monkeypatch.setattr(tape, "launch", lambda kernel, *_: seen.append(kernel))
    x, bias = Tensor(None, (16384, 2880)), Tensor(None, (experts, 2880))
    x.requires_grad = bias.requires_grad = True
    y = _add_bias(tape, x, bias)
    count = len(seen)
    tape.backward(y, Tensor(None, y.shape))
    took = [1e6 * gpu.duration(kernel) for kernel in seen]
    assert sum(took[:count]) == pytest.approx(forward, rel=0.1)
    assert sum(took[count:]) == pytest.approx(backward, rel=0.15)


def test_a_layer_whose_experts_are_padded_replays_as_a_whole() -> None:
    """One graph holds all but copies of what it is given, both ways; one whose rows the router decides is refused."""
    priced = dict.fromkeys(host_costs("megatron"), 1.0)
    whole = {"cuda_graph_scope": ("attn", "moe")} | PADDED
    layer = units(priced=priced, **whole).layer(0)
    assert [layer.forward.host, layer.backward.host] == [2.0, 1.0]
    tables = {
        "cluster": {"name": "dgx-h100"},
        "model": SMALL,
        "training": {"framework": "megatron", "seq_len": 2048},
        "parallel": {"dp": EP, "ep": EP},
        "megatron": {"cuda_graph_scope": ["attn", "moe"]},
    }
    with pytest.raises(InputError, match="moe_pad_to_capacity"):
        parse_scenario(tables, "test")


# Calls of Python's functions around router and experts, forward and backward, by what issues them: before the exchange,
# and from it on (counted in Megatron-core 0.16.1, of HybridEP's and DeepEP's buffers by their source).
AROUND = {
    "alltoall": ((126, 245), (45, 153)),
    "deepep": ((5, 237), (6, 100)),
    "hybridep": ((5, 74), (6, 28)),
}


@pytest.mark.parametrize("way", AROUND)
@pytest.mark.parametrize("captured", [False, True])
def test_a_host_pays_for_the_calls_of_its_dispatcher(way: str, captured: bool) -> None:
    """For 371 calls forward and 198 backward what was measured of all-to-all; for none that a graph replays."""
    chosen = {"moe_flex_dispatcher_backend": way, "moe_token_dispatcher": "flex"}
    scope = ("moe_router", "moe_preprocess") if captured else ()
    priced = {"expert_layer": 371.0, "expert_layer_backward": 198.0}
    keys = {} if way == "alltoall" else chosen
    unit = layer(priced=priced, cuda_graph_scope=scope, **keys)
    for which, calls in zip((unit.forward, unit.backward), AROUND[way], strict=True):
        paid = sum(part.host for part in which.parts)
        assert paid == pytest.approx(sum(calls[captured:]))


def test_modules_in_a_graph_cost_the_host_nothing() -> None:
    """Of a layer's two parts attention is replayed, and its two modules with it; a router's graph is a part of one."""
    scopes: tuple[tuple[str, ...], ...] = (), ("attn",), ("moe_router",)
    paid = [
        layer(priced={"module": 1.0}, cuda_graph_scope=scope).forward
        for scope in scopes
    ]
    assert [sum(part.host for part in one.parts) for one in paid] == [4, 2, 4]


@pytest.mark.parametrize(
    ("at", "scope", "copies"),
    [
        (0, ("mamba",), (1.0, 1.0)),
        (2, ("attn",), (1.0, 1.0)),
        # Residual stream, rows for experts, what the shared expert made; and fp32 scores of 16 experts.
        (1, ("moe_router",), (1.0, 3.0 + 4 * 16 / (2 * 1024))),
    ],
)
def test_a_graph_copies_what_it_is_given(
    at: int, scope: tuple[str, ...], copies: tuple[float, float]
) -> None:
    """Read and written: its input forward, and gradients of its outputs backward (make_graphed_callables)."""
    model = HYBRID | {"moe_latent": 0, "shared_experts": 1}
    plain, graphed = (
        units(model=model, cuda_graph_scope=names, **HYBRID_EP).layer(at)
        for names in ((), scope)
    )
    size = 2.0 * 2048 * 1024
    for without, within, count in (
        (plain.forward, graphed.forward, copies[0]),
        (plain.backward, graphed.backward, copies[1]),
    ):
        passes = [
            sum(k.bytes for k in kernels(p.uncut) if k.kind == "fused")
            for p in (within, without)
        ]
        assert passes[0] - passes[1] == pytest.approx(2 * count * size)
