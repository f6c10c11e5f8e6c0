"""Laws of layers as NeMo Automodel's recipes compose them: eager operators, DTensors, adapters, and where the host waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import SYNC, Chain
from prestep.sim.predict import plan, step_time
from prestep.sim.spec.load import Scenario, check_layout, parse_scenario

HIDDEN, FFN, TOKENS, VOCAB, RANK = 1024, 4096, 2048, 4096, 16
MODEL = {
    "kind": "transformer",
    "layers": 2,
    "hidden": HIDDEN,
    "heads": 16,
    "ffn": FFN,
    "vocab": VOCAB,
    "gated": True,
    "norm": "rms",
}
LORA = {"kind": "lora", "rank": RANK, "scaled": "inner", "dropout_position": "post"}
# Bytes an element by hand. RMSNorm forward: to fp32 (6), square (8), mean (4), times the reciprocal root (8), to 16 bits
# (6), times the weight (4). Backward: times the weight (4), to fp32 (6), the product's two gradients (8, 12) and the sum
# of one over the row (4), the mean's gradient spread (4), the square's (8, 8, 12), the sum of both ways (12), to 16 bits
# (6). SwiGLU of two halves: SiLU (4), product (6); its two gradients (12), SiLU's (6), the halves joined (8).
NORM, NORM_BACK, GATED, GATED_BACK = 36, 84, 10, 26
EAGER = {"eager_operators": ["norm", "activation"]}
MOE = {"experts": 8, "experts_per_token": 2, "moe_ffn": 512}


def scenario(
    pytorch: dict[str, Any] | None = None,
    adapter: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    recompute: str = "none",
    **parallel: Any,
) -> Scenario:
    layout: dict[str, Any] = {"data_parallel": "none"} | parallel
    gpus = layout.get("tp", 1) * layout.get("dp", 1)
    training = {"framework": "automodel", "seq_len": TOKENS, "micro_batch": 1}
    return parse_scenario(
        {
            "cluster": {"name": "dgx-h100", "gpus": gpus},
            "model": MODEL | (model or {}),
            "training": training | {"recompute": recompute},
            "parallel": layout,
            "pytorch": pytorch or {},
            "megatron": megatron or {},
            "adapter": adapter or {},
        },
        "test",
    )


def chains(s: Scenario, name: str) -> list[Chain]:
    return [
        kernel
        for kernel in plan(s).lowered.graph.kernels
        if isinstance(kernel, Chain) and kernel.name == name and not kernel.tail
    ]


def moved(s: Scenario, name: str) -> float:
    """Bytes of the kernels of a pass that are no products and no attention."""
    graph = chains(s, name)[0].graph
    return sum(
        float(graph.kernels[k].bytes)
        for k in graph.programs[0].payload[graph.programs[0].kind == 0]
        if not (graph.kernels[k].is_product or "attention" in graph.kernels[k].kind)
    )


def exchanged(s: Scenario, name: str) -> Counter[tuple[str, float]]:
    """Collectives of a pass: what, and how many bytes."""
    graph = chains(s, name)[-1].graph
    program = graph.programs[0]
    parts = [c for at in program.payload[program.kind == 1] for c in program.parts[at]]
    return Counter((graph.comms[c].op, graph.comms[c].size) for c in parts)


def test_eager_operators_move_what_their_operators_read_and_write() -> None:
    """Two norms and an activation of a layer, by hand; one kernel each moves two or three values in place of them."""
    norms, gate = 2 * TOKENS * HIDDEN, TOKENS * FFN
    # One kernel reads the weight beside, and writes or reads a statistic of each row in fp32.
    beside = 2 * (2 * HIDDEN + 4 * TOKENS)
    way = {
        "layer forward": norms * (NORM - 4) - beside + gate * (GATED - 6),
        "layer backward": norms * (NORM_BACK - 6) - beside + gate * (GATED_BACK - 10),
    }
    for name, more in way.items():
        difference = moved(scenario(EAGER, LORA), name) - moved(
            scenario({}, LORA), name
        )
        # Numbers of a row are left out.
        assert difference == pytest.approx(more, rel=1e-3)
    assert step_time(scenario(EAGER, LORA)) > step_time(scenario({}, LORA))


def test_an_adapter_between_dtensors_adds_thin_exchanges_alone() -> None:
    """With an adapter or without one a projection's output, and its input's gradient, are summed over ranks once."""
    wide = 2.0 * TOKENS * HIDDEN
    thin = 2.0 * TOKENS * RANK
    for name, sums in (("layer forward", 2), ("layer backward", 2)):
        plain = exchanged(scenario(tp=2), name)
        adapted = exchanged(scenario({}, LORA, tp=2), name)
        assert plain == Counter({("all_reduce", wide): sums})
        # Of the columns' adapters outputs are gathered, of the rows' reduce-scattered; backward the other way round.
        assert adapted - plain == Counter(
            {("all_gather", thin): 2, ("reduce_scatter", thin): 2}
        )


def test_scaling_between_an_adapters_matrices_is_thin() -> None:
    """On one GPU: output by output in 4 bytes an element, against 16 columns."""
    inner = moved(scenario({}, LORA), "layer forward")
    outer = moved(scenario({}, LORA | {"scaled": "output"}), "layer forward")
    widths = (3 * HIDDEN, HIDDEN, 2 * FFN, HIDDEN)
    assert outer - inner == pytest.approx(
        4 * TOKENS * sum(width - RANK for width in widths)
    )


def test_dropout_behind_an_adapter_is_on_its_output() -> None:
    some = LORA | {"dropout": 0.1}
    behind = moved(scenario({}, some), "layer forward")
    ahead = moved(scenario({}, some | {"dropout_position": "pre"}), "layer forward")
    outputs, inputs = 3 * HIDDEN + HIDDEN + 2 * FFN + HIDDEN, 3 * HIDDEN + FFN
    assert behind - ahead == pytest.approx(5 * TOKENS * (outputs - inputs))


def test_compiled_layers_are_no_slower_and_cost_the_host_less() -> None:
    layouts: tuple[dict[str, Any], ...] = ({}, {"tp": 2})
    for layout in layouts:
        eager = scenario({}, LORA, recompute="full", **layout)
        compiled = scenario({"compiled_layers": True}, LORA, recompute="full", **layout)
        assert step_time(compiled) <= step_time(eager)


def test_a_loss_of_dtensors_gathers_all_logits() -> None:
    """In the type of the loss: fp32 behind the cast."""
    torch = {"cross_entropy_fusion_impl": "torch-fp32"}
    head = exchanged(scenario(tp=2, megatron=torch), "head forward")
    assert head[("all_gather", 4.0 * TOKENS * VOCAB)] == 1


def waits(s: Scenario, name: str) -> float:
    """Synchronisations right behind parts of a pass, for each time that it runs."""
    program = plan(s).lowered.graph.programs[0]
    kinds, names = program.kind.tolist(), program.names
    stops = sum(
        kind == SYNC and before == name
        for kind, before in zip(kinds[1:], names, strict=False)
    )
    parts = names.count(name) / 2  # a chain is two kernels
    passes = parts - stops  # a pass is one part more than it has stops
    return stops / passes


def test_the_host_waits_in_attention_where_asked() -> None:
    """Once a forward pass, and once more where it runs again; the pass then takes no less than the host's time."""
    asks = {"attention_waits": True}
    assert waits(scenario(), "layer forward") == 0
    assert waits(scenario(asks), "layer forward") == 1
    assert waits(scenario(asks), "layer backward") == 0
    assert waits(scenario(asks, recompute="full"), "layer backward") == 1
    assert step_time(scenario(asks)) >= step_time(scenario())


@pytest.mark.parametrize(
    ("dispatcher", "times"), [("flex", 1), ("alltoall", 1), ("allgather", 0)]
)
def test_the_host_waits_for_counts_of_tokens(dispatcher: str, times: int) -> None:
    """Forward, where the splits are not known; backward they are."""
    way = {"moe_token_dispatcher": dispatcher}
    s = scenario(model=MOE, megatron=way, dp=4, ep=4, data_parallel="fsdp")
    assert waits(s, "layer forward") == times
    assert waits(s, "layer backward") == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eager_operators", ["norm"]),
        ("attention_waits", True),
        ("timed_rounds", True),
        ("compiled_layers", True),
        ("experts_reduce_dtype", "bf16"),
    ],
)
def test_its_switches_count_nowhere_else(key: str, value: object) -> None:
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 1},
        "model": {"name": "llama3-8b", "layers": 2},
        "training": {"framework": "pytorch-eager", "seq_len": 2048},
        "pytorch": {key: value},
    }
    with pytest.raises(InputError, match=key):
        check_layout(parse_scenario(tables, "test"))
