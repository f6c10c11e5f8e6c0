"""Laws of adapters beside frozen weights in PyTorch's own modules, as Hugging Face's trainers run them."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario, check_layout, parse_scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.lower import lower
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    MLP,
    SEQ,
    TRANSFORMER,
    ops,
    volume,
)

RANK = 8
LORA = {"kind": "lora", "rank": RANK, "targets": ["qkv", "proj"]}
WIDTHS = {  # inputs and outputs of the projections of `small.TRANSFORMER`
    "qkv": ((HIDDEN, HIDDEN), (HIDDEN, 128), (HIDDEN, 128)),
    "proj": ((HIDDEN, HIDDEN),),
    "fc1": ((HIDDEN, 512), (HIDDEN, 512)),
    "fc2": ((512, HIDDEN),),
}
WAYS = ("none", "ddp", "ddp-no-overlap", "zero1", "fsdp", "zero2")


def scenario(
    adapter: dict[str, Any] | None = None,
    model: dict[str, Any] = TRANSFORMER,
    training: dict[str, Any] | None = None,
    pytorch: dict[str, Any] | None = None,
    **parallel: Any,
) -> Scenario:
    gpus = prod(parallel.get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": gpus},
        "model": model,
        "training": {"seq_len": SEQ, "micro_batch": 2, **(training or {})},
        "parallel": parallel,
        "pytorch": pytorch or {},
        "adapter": adapter or {},
    }
    return parse_scenario(tables, "adapted.toml")


def lowered(adapter: dict[str, Any] | None = None, **keys: Any) -> Lowered:
    s = scenario(adapter, **keys)
    return lower(s, load_model(s.model))


def adapters(*targets: str) -> int:
    """Elements of all adapters: rank x (inputs + outputs) of each projection."""
    widths = [pair for target in targets for pair in WIDTHS[target]]
    return LAYERS * RANK * sum(inputs + outputs for inputs, outputs in widths)


def products(low: Lowered, layer: int | None = None) -> Counter[str]:
    """Products by their layout: forward "nt", of inputs "nn", of weights "tn"."""
    return Counter(
        op.kernel.layout
        for op in ops(low)
        if isinstance(op.kernel, Kernel)
        and op.kernel.kind == "aten mm"
        and layer in (None, op.layer)
    )


def work(low: Lowered) -> float:
    """Floating-point operations of all kernels."""
    kernels = (op.kernel for op in ops(low))
    return sum(each.flops for each in kernels if isinstance(each, Kernel))


@given(st.sets(st.sampled_from(sorted(WIDTHS)), min_size=1))
@settings(max_examples=8, deadline=None)
def test_frozen_weights_have_no_products_of_their_own(targets: set[str]) -> None:
    """A layer behind the first: inputs' gradients of all products, weights' gradients of adapters alone."""
    count = sum(len(WIDTHS[target]) for target in targets)
    frozen = sum(map(len, WIDTHS.values()))
    found = products(lowered({**LORA, "targets": sorted(targets)}), LAYERS - 1)
    assert found == {
        "nt": frozen + 2 * count,
        "nn": frozen + 2 * count,
        "tn": 2 * count,
    }


def test_the_first_layers_inputs_need_no_gradient() -> None:
    """Behind a frozen embedding nothing is sent on, and nothing is scattered there."""
    first, last = (products(lowered(LORA), layer) for layer in (0, LAYERS - 1))
    assert first["tn"] == last["tn"] and first["nn"] == last["nn"] - 6
    kinds = {op.name for op in ops(lowered(LORA))}
    assert "aten.embedding.default" in kinds
    assert "aten.embedding_dense_backward.default" not in kinds


@pytest.mark.parametrize("way", ("ddp", "ddp-no-overlap", "zero1"))
def test_adapters_alone_are_reduced(way: str) -> None:
    """All-reduced bytes are those of the adapters."""
    found = lowered(LORA, dp=2, data_parallel=way)
    assert volume(found, "dp all_reduce") == 2.0 * adapters("qkv", "proj")


@pytest.mark.parametrize("recompute", ("none", "full"))
def test_shards_of_everything_are_gathered_and_of_adapters_scattered(
    recompute: str,
) -> None:
    """FSDP2 gathers frozen weights too, before each pass (its root once); it scatters the gradients that there are."""
    training = {"recompute": recompute}
    found = lowered(LORA, training=training, dp=2, data_parallel="fsdp")
    own = 2.0 * adapters("qkv", "proj")
    root = 2.0 * (2 * 1000 + 1) * HIDDEN  # stays between its passes
    assert volume(found, "dp all_gather") == 2 * (2.0 * found.parameters + own) - root
    assert volume(found, "dp reduce_scatter") == own


def test_a_flat_parameter_is_scattered_whole() -> None:
    """FSDP1 with the model's own parameters: a frozen weight beside an adapter has its place in the gradient."""
    flat = {"fsdp": "1"}
    found = lowered(LORA, pytorch=flat, dp=2, data_parallel="fsdp")
    own = 2.0 * adapters("qkv", "proj")
    outside = 2.0 * (2 * 1000 * HIDDEN + HIDDEN)  # embedding, head and last norm
    blocks = 2.0 * found.parameters + own - outside
    assert volume(found, "dp reduce_scatter") == blocks


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("recompute", ("none", "products", "alternate", "full"))
def test_adapters_cost_less_than_training_everything(way: str, recompute: str) -> None:
    """Every way of data parallelism and of checkpointing: less time for products, less memory."""
    dp = 1 if way == "none" else 2
    keys = {
        "training": {"recompute": recompute, "seq_len": 1024},
        "model": TRANSFORMER | {"hidden": 1024, "ffn": 4096},
        "dp": dp,
        "data_parallel": way,
    }
    full, lora = (predict(scenario(a, **keys)) for a in (None, LORA))
    assert lora.peak_memory[0].total < full.peak_memory[0].total
    assert work(lowered(LORA, **keys)) < work(lowered(None, **keys))


@pytest.mark.parametrize("schedule", ("1f1b", "gpipe", "zero-bubble", "interleaved"))
def test_pipelines_train_adapters(schedule: str) -> None:
    """Stages send activations and gradients on; zero-bubble schedules put the adapters' gradients off."""
    vpp = 2 if schedule in ("zero-bubble", "interleaved") else 1
    training = {"microbatches": 4}
    found = lowered(LORA, training=training, pp=2, vpp=vpp, schedule=schedule, dp=1)
    total = sum(
        isinstance(op.kernel, Kernel) and op.kernel.layout == "tn"
        for rank in (0, 1)
        for op in ops(found, rank)
        if isinstance(op.kernel, Kernel) and op.kernel.kind == "aten mm"
    )
    assert total == 4 * LAYERS * 2 * 4  # microbatches, layers, matrices, projections


def test_dropout_is_a_kernel_that_adapters_alone_have() -> None:
    """One for every adapter, forward and backward; where its input needs a gradient."""
    plain, dropping = (
        Counter(op.name for op in ops(lowered({**LORA, "dropout": share})))
        for share in (0.0, 0.1)
    )
    assert not any("dropout" in name for name in plain)
    assert dropping["aten.native_dropout.default"] == 4 * LAYERS
    # The first layer's qkv reads a frozen embedding.
    assert dropping["aten.native_dropout_backward.default"] == 4 * LAYERS - 3


ALL = {**LORA, "targets": ["all"]}
OF_EXPERT = RANK * 3 * (HIDDEN + 512)  # elements of the adapters of an expert


def test_experts_have_adapters_where_they_are_targets() -> None:
    """Two weight gradients for each adapted weight, of experts too; none of a frozen one."""
    assert products(lowered(LORA, model=EXPERTS))["tn"] == 2 * 4 * LAYERS
    assert products(lowered(ALL, model=EXPERTS))["tn"] == 2 * (4 + 4 * 3) * LAYERS
    shared = EXPERTS | {"shared_experts": 1, "dense_layers": 1}
    of_experts = (LAYERS - 1) * (4 + 1) * 3 + 3
    assert products(lowered(ALL, model=shared))["tn"] == 2 * (4 * LAYERS + of_experts)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("ep", [1, 2])
def test_adapters_of_experts_are_reduced_among_their_copies(way: str, ep: int) -> None:
    """A rank has adapters of its own experts alone, and reduces them with the ranks that have the same ones."""
    low = lowered(ALL, model=EXPERTS, dp=4, ep=ep, data_parallel=way)
    op = "all_reduce" if way == "ddp" else "reduce_scatter"
    own = 2.0 * LAYERS * OF_EXPERT * 4 / ep
    rest = 2.0 * adapters("qkv", "proj")
    assert volume(low, f"dp {op}") == rest + (own if ep == 1 else 0.0)
    assert volume(low, f"edp {op}") == (own if ep > 1 else 0.0)


def test_latent_attention_has_adapters() -> None:
    """Beside each of its four projections in front of attention, and the one behind."""
    latent = TRANSFORMER | {"kv_heads": 8, "kv_lora_rank": 64, "q_lora_rank": 96}
    assert products(lowered(LORA, model=latent))["tn"] == 2 * 5 * LAYERS


def test_grouped_experts_have_no_layers_to_adapt() -> None:
    s = scenario(ALL, model=EXPERTS, pytorch={"experts": "grouped"})
    wrong = check_layout(s, model=load_model(s.model))
    assert "adapter.targets" in {mistake.key for mistake in wrong}


def test_what_is_not_simulated_is_named() -> None:
    """Muon, Megatron's keys, models without projections."""
    for keys, said in (({"training": {"optimizer": "muon"}}, "training.optimizer"),):
        with pytest.raises(InputError, match=said):
            scenario(LORA, **keys)
    for key, value in (("fp8_weights", True), ("all_to_all", False)):
        with pytest.raises(InputError, match=f"adapter.{key}"):
            scenario({**LORA, key: value})
    s = scenario(LORA, model=MLP)
    wrong = check_layout(s, model=load_model(s.model))
    assert "adapter.kind" in {mistake.key for mistake in wrong}


SPLIT = {"column": ("qkv", "fc1"), "row": ("proj", "fc2")}


def shared_by_ranks(ranks: int, *targets: str) -> int:
    """Elements of the adapters on one of so many tensor-parallel ranks: a column's B and a row's A are split."""
    count = 0
    for target in targets:
        for inputs, outputs in WIDTHS[target]:
            row = target in SPLIT["row"]
            split, whole = (inputs, outputs) if row else (outputs, inputs)
            count += split // ranks + whole
    return LAYERS * RANK * count


@given(
    st.sets(st.sampled_from(sorted(WIDTHS)), min_size=1),
    st.sampled_from((1, 2)),
    st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_gradients_of_split_adapters_are_their_parameters(
    targets: set[str], tp: int, sequence: bool
) -> None:
    """What replicas reduce is what a rank trains; nothing of frozen weights."""
    chosen = {**LORA, "targets": sorted(targets)}
    found = lowered(
        chosen, dp=2, tp=tp, data_parallel="ddp", sequence_parallel=sequence and tp > 1
    )
    assert volume(found, "dp all_reduce") == 2.0 * shared_by_ranks(tp, *targets)


def test_ranks_exchange_thin_values_beside_what_they_did() -> None:
    """A column's gradient and a row's value of the rank's width, once each for an adapter; the rest is as without."""
    plain, lora = (volume(lowered(a, tp=2), "tp all_reduce") for a in (None, ALL))
    thin = 2.0 * 2 * SEQ * RANK
    rows, columns = 2, 5
    # The first layer's input needs no gradient: its queries, keys and values send none back.
    none = 3 * 2.0 * 2 * SEQ * HIDDEN
    assert lora == plain - none + LAYERS * (rows + columns) * thin


def test_parts_of_the_sequence_sum_what_each_has_a_part_of() -> None:
    """With sequence parallelism matrices that are whole on every rank have a part of their gradient on each."""
    found = lowered(ALL, tp=2, sequence_parallel=True)
    whole = shared_by_ranks(1, *WIDTHS) - 2 * (
        shared_by_ranks(1, *WIDTHS) - shared_by_ranks(2, *WIDTHS)
    )
    assert volume(found, "tp all_reduce") == 2.0 * whole


@pytest.mark.parametrize("sequence", (False, True))
def test_more_split_adapters_take_longer(sequence: bool) -> None:
    """A higher rank is never faster, and more adapters are slower."""
    keys = {"tp": 2, "sequence_parallel": sequence}
    few, more = (
        predict(scenario({**LORA, "rank": rank}, **keys)).step_time for rank in (8, 64)
    )
    all_of_them = predict(scenario({**ALL, "rank": 64}, **keys)).step_time
    assert few <= more * (1 + 1e-12)
    assert more < all_of_them


def test_split_experts_have_adapters() -> None:
    """Thin values of experts do not travel: outputs and gradients are summed with the experts' own."""
    plain, lora = (
        lowered(a, model=EXPERTS, tp=2, dp=1)
        for a in ({**LORA, "targets": ["qkv"]}, {**LORA, "targets": ["qkv", "mlp"]})
    )
    each = RANK * 2 * HIDDEN + RANK * HIDDEN  # A of two columns, B of a row
    more = volume(lora, "tp all_reduce") - volume(plain, "tp all_reduce")
    assert more == 2.0 * LAYERS * EXPERTS["experts"] * each


@pytest.mark.parametrize("base", ["nf4", "nf4-double"])
def test_weights_in_four_bits_are_written_out_for_each_product(base: str) -> None:
    """Half a byte of an element and its share of scales are kept; each pass writes it once in 16 bits."""
    whole, packed = (
        predict(scenario({**LORA, "base": form})) for form in ("bf16", base)
    )
    each = [n * k for widths in WIDTHS.values() for n, k in widths]
    elements = LAYERS * sum(each)
    share = 0.5 + (4.0 if base == "nf4" else 1.0 + 4.0 / 256) / 64
    saved = whole.peak_memory[0].parameters - packed.peak_memory[0].parameters
    blocks = 512 * LAYERS * len(each)  # the allocator's
    assert saved == pytest.approx((2.0 - share) * elements, abs=blocks)
    assert packed.peak_memory[0].total < whole.peak_memory[0].total
    assert packed.step_time > whole.step_time


def test_all_of_four_bits_is_written_out_forward_and_backward() -> None:
    """Kernels over whole weights: one for a frozen product, one for its input's gradient; the first layer has none."""

    def over(base: str, layer: int) -> int:
        low = lowered({**LORA, "base": base})
        return sum(
            op.kernel.shape[0]
            for op in ops(low)
            if isinstance(op.kernel, Kernel)
            and op.kernel.kind == "fused"
            and op.layer == layer
        )

    each = sum(n * k for widths in WIDTHS.values() for n, k in widths)
    last = LAYERS - 1
    assert over("nf4", last) - over("bf16", last) == 2 * each
    assert each < over("nf4", 0) - over("bf16", 0) < 2 * each


@pytest.mark.parametrize(
    ("changed", "parallel"),
    [({}, {"dp": 2, "data_parallel": "fsdp"}), ({"framework": "megatron"}, {})],
)
def test_four_bits_elsewhere_are_refused(
    changed: dict[str, Any], parallel: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"adapter\.base"):
        scenario({**LORA, "base": "nf4"}, training=changed, **parallel)
