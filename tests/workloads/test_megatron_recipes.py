"""Switches of Megatron's recipes: parts that run again, CUDA graphs, number formats, kernels that are not fused."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import plan, predict, step_time
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.host_costs import host_costs

DENSE: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 4,
    "heads": 16,
    "ffn": 8192,
    "vocab": 8192,
}
EXPERTS = DENSE | {"ffn": 4096, "moe_ffn": 1024, "experts": 16, "experts_per_token": 4}
LATENT = DENSE | {
    "head_dim": 128,
    "kv_lora_rank": 256,
    "q_lora_rank": 512,
    "rope_head_dim": 64,
    "v_head_dim": 128,
}


def run(
    model: dict[str, Any] = DENSE,
    host: float = 0.01,
    precision: str = "bf16",
    recompute: str = "none",
    parallel: dict[str, Any] | None = None,
    **megatron: Any,
) -> Scenario:
    """A step on one DGX H100 whose host is so fast (by default) that the GPUs decide."""
    layout = {"dp": 8, "data_parallel": "zero1"} | (parallel or {})
    return parse_scenario(
        {
            "cluster": {"name": "dgx-h100", "host_factor": host},
            "model": model,
            "training": {
                "framework": "megatron",
                "seq_len": 4096,
                "micro_batch": 1,
                "global_batch": 16,
                "precision": precision,
                "recompute": recompute,
            },
            "parallel": layout,
            "megatron": megatron,
        },
        "test",
    )


def peak(s: Scenario) -> float:
    return max(memory.total for memory in predict(s).peak_memory.values())


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (DENSE, "layernorm"),
        (DENSE, "mlp"),
        (DENSE, "core_attn"),
        (EXPERTS, "moe_act"),
        (EXPERTS | {"shared_experts": 1}, "shared_experts"),
        (LATENT, "mla_up_proj"),
    ],
)
def test_what_runs_again_takes_time_and_saves_memory(
    model: dict[str, Any], part: str
) -> None:
    """A part that is made again in backward costs kernels and keeps less."""
    plain, again = run(model), run(model, recompute_modules=[part])
    assert step_time(again) > step_time(plain)
    assert peak(again) < peak(plain)


def test_parts_that_a_layer_lacks_change_nothing() -> None:
    """A dense layer has no experts' activation, and no states to expand."""
    assert step_time(
        run(recompute_modules=["moe_act", "mla_up_proj", "shared_experts"])
    ) == step_time(run())


def test_some_layers_run_again() -> None:
    """Time grows and memory falls with the layers that run again, and all of them are full recomputation."""
    some = [run(), *(run(recompute_num_layers=n) for n in (1, 2, 4))]
    times, peaks = list(map(step_time, some)), list(map(peak, some))
    assert times == sorted(times) and len(set(times)) == 4
    assert peaks[3] < peaks[2] < peaks[0]
    assert times[-1] == step_time(run(recompute="full"))


def test_graphs_spare_the_host() -> None:
    """A slow host is felt less with every part that a CUDA graph holds, and by a whole step in one between steps."""
    scopes = ([], ["attn"], ["attn", "mlp"], ["full_iteration"])
    slow = [step_time(run(host=20.0, cuda_graph_scope=scope)) for scope in scopes]
    assert slow[0] > slow[1] > slow[2]
    between = host_costs("megatron")["graph_launch"]
    quick = step_time(run(host=1.0, cuda_graph_scope=["full_iteration"]))
    assert slow[2] < 0.6 * slow[0]
    assert slow[-1] - quick == pytest.approx(19 * between, rel=0.01)
    ahead = {"cuda_graph_scope": ["full_iteration"], "clip_grad_on_device": True}
    assert step_time(run(host=1.0, **ahead)) < quick - 0.99 * between
    # A fast host is spared nothing, and each layer copies its input, its output's gradient, and adds two gradients up.
    copies = step_time(run(cuda_graph_scope=["attn"])) - step_time(run())
    moved = 4 * 2 * (4 + 4 + 6) * 4096 * 2048
    assert moved / 3.35e12 < copies < moved / 1.5e12


def test_a_graph_of_the_router_spares_it_alone() -> None:
    """Of a layer of experts the norm and the router can be captured; a feed-forward layer's graph does not hold them."""
    plain, router, dense = (
        step_time(run(EXPERTS, host=20.0, cuda_graph_scope=scope))
        for scope in ([], ["moe_router"], ["mlp"])
    )
    assert router < plain == dense


def test_counts_of_tokens_cost_the_host() -> None:
    """All-to-all waits for most numbers, DeepEP for fewer, all-to-all with a captured preprocess for fewest."""
    switches: tuple[dict[str, Any], ...] = (
        {"cuda_graph_scope": ["moe_router"]},
        {"cuda_graph_scope": ["moe_router", "moe_preprocess"]},
        {
            "cuda_graph_scope": ["moe_router", "moe_preprocess"],
            "moe_capacity": 1.0,
            "moe_pad_to_capacity": True,
        },
    )
    waits = [step_time(run(EXPERTS, host=20.0, **some)) for some in switches]
    assert waits[0] > waits[1] > waits[2]
    flex = run(EXPERTS, host=20.0, moe_token_dispatcher="flex")
    assert step_time(flex) < step_time(run(EXPERTS, host=20.0))


def test_the_engines_loss_moves_fewer_bytes() -> None:
    """Transformer Engine's loss is faster than Megatron's fused one, which is faster than one kernel for each operation.

    It keeps no probabilities in fp32, whether the vocabulary is spread or not.
    """
    losses: tuple[dict[str, Any], ...] = (
        {"cross_entropy_fusion_impl": "te"},
        {},
        {"cross_entropy_fusion": False},
    )
    words = DENSE | {"vocab": 131072}
    for parallel in ({}, {"dp": 4, "tp": 2}):
        runs = [run(words, parallel=parallel, **loss) for loss in losses]
        times, peaks = list(map(step_time, runs)), list(map(peak, runs))
        assert times == sorted(times) and len(set(times)) == 3
        assert peaks[0] < peaks[1] == peaks[2]


def test_fp8_operands_cost_what_is_written() -> None:
    """Copies that are not transposed cost less; scales that are found first, or many of them, cost more."""
    late, found, small = (
        step_time(run(precision="fp8", fp8_scaling=how))
        for how in ("delayed", "dynamic", "mx")
    )
    assert late < found
    assert late < small
    for how in ("delayed", "dynamic"):
        both = step_time(run(precision="fp8", fp8_scaling=how))
        assert (
            step_time(run(precision="fp8", fp8_scaling=how, fp8_transposes=False))
            < both
        )


def test_ranks_agree_on_scales_that_are_found_first() -> None:
    """With parts of a sequence on each rank, dynamic scales cost an exchange more than what is written; delayed ones none.

    Without sequence parallelism every rank has the whole operand, so nothing is exchanged.
    """
    layout = {"dp": 1, "tp": 8, "data_parallel": "none"}

    def exchanges(how: str, sequence: bool) -> int:
        parallel = layout | {"sequence_parallel": sequence}
        made = plan(run(precision="fp8", fp8_scaling=how, parallel=parallel))
        return sum(len(graph.comms) for graph in made.chains)

    assert exchanges("dynamic", sequence=True) > exchanges("delayed", sequence=True)
    assert exchanges("dynamic", sequence=False) == exchanges("delayed", sequence=False)


def test_attention_in_fp8_has_its_own_kernels() -> None:
    """Only attention and the casts before it change: forward is faster on an H100, whose backward pass is not."""
    wide, narrow = (
        plan(run(precision="fp8", fp8_dot_product_attention=on)) for on in (False, True)
    )

    def formats(made: Any) -> set[str]:
        return {
            kernel.dtype
            for graph in made.chains
            for kernel in graph.kernels
            if "attention" in kernel.kind
        }

    assert formats(wide) == {"bf16"} and formats(narrow) == {"fp8"}


def test_attention_in_fp8_beside_layers_in_16_bits_is_refused() -> None:
    """Transformer Engine takes fp8 attention in layers that are in fp8 or NVFP4, by the fused kernel."""
    for wrong in ({"precision": "bf16"}, {"precision": "fp8", "attention": "unfused"}):
        with pytest.raises(InputError, match="fp8"):
            step_time(run(fp8_dot_product_attention=True, **wrong))


def test_the_head_is_computed_in_16_bits() -> None:
    """Layers alone are quantized: more words cost as much in fp8 as in bf16."""
    layout = {"dp": 1, "tp": 8, "sequence_parallel": True, "data_parallel": "none"}
    many = DENSE | {"vocab": 65536}

    def words(precision: str, **megatron: Any) -> float:
        few, more = (
            step_time(run(model, 0.01, precision, parallel=layout, **megatron))
            for model in (DENSE, many)
        )
        return more - few

    assert words("fp8") == pytest.approx(words("bf16"), rel=1e-6)
    assert words("bf16", tp_comm_overlap=True) == pytest.approx(words("bf16"), rel=1e-6)


def test_user_buffers_take_no_sm_where_copy_engines_move_them() -> None:
    """Rings of copies hold no channel, so products beside them are as fast as alone; other collectives hold some."""
    layout = {"dp": 1, "tp": 8, "sequence_parallel": True, "data_parallel": "none"}
    wide = DENSE | {"hidden": 8192, "heads": 64, "ffn": 28672}
    s = run(wide, parallel=layout, tp_comm_overlap=True)
    chains = plan(s).chains
    moved = [
        pair
        for graph, chain in chains.items()
        for pair in zip(graph.comms, chain.plans, strict=True)
    ]
    assert {how.channels for comm, how in moved if comm.copied} == {0}
    assert min(how.channels for comm, how in moved if not comm.copied) > 0
    assert step_time(s) < step_time(run(wide, parallel=layout))


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (DENSE, {"rope_fusion": False}),
        (EXPERTS, {"moe_permute_fusion": False}),
        (LATENT, {"attention": "unfused"}),
    ],
)
def test_kernels_that_are_not_fused_take_longer(
    model: dict[str, Any], keys: dict[str, Any]
) -> None:
    """Rotation, permutation and latent attention in operators of their own are slower than in one kernel."""
    assert step_time(run(model, **keys)) > step_time(run(model))


def test_unfused_latent_attention_keeps_its_scores() -> None:
    """Sixteen heads' scores of 4,096 tokens squared in each of four layers, unless they are made again."""
    scores = 4 * 16 * 4096**2 * 2
    kept = peak(run(LATENT, attention="unfused")) - peak(run(LATENT))
    assert kept == pytest.approx(scores, rel=0.1)
    again = run(LATENT, attention="unfused", recompute_modules=["core_attn"])
    assert peak(again) < peak(run(LATENT, attention="unfused")) - scores / 2


def test_fused_experts_are_faster_in_fp8_alone() -> None:
    """Activation and quantizing leave the memory; in bf16 there is no such kernel."""
    assert step_time(run(EXPERTS, precision="fp8", moe_fused_mlp=True)) < step_time(
        run(EXPERTS, precision="fp8")
    )
    assert step_time(run(EXPERTS, moe_fused_mlp=True)) == step_time(run(EXPERTS))


def test_unknown_parts_are_told() -> None:
    """Both mistakes at once, with what there is."""
    with pytest.raises(InputError) as told:
        run(
            recompute_modules=["norms"],
            cuda_graph_scope=["everything"],
            recompute_num_layers=0,
        )
    text = str(told.value)
    assert all(
        word in text
        for word in ("norms", "layernorm", "everything", "full_iteration", "at least 1")
    )
