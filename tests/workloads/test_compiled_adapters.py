"""Laws of adapters in compiled blocks: what of a step they spare, what they add, and what of eager blocks they keep."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.lowering import lower as lower_on
from prestep.sim.predict import load_fabric, predict
from prestep.sim.spec.load import check_layout
from prestep.workloads.host_costs import host_costs
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.compiled import compiled_block
from prestep.workloads.torch.lower import lower
from tests.sample import together
from tests.workloads import test_low_rank as eager
from tests.workloads.small import EXPERTS, HIDDEN, LAYERS, SEQ, TRANSFORMER, ops, volume
from tests.workloads.test_low_rank import LORA, RANK, WIDTHS, products, work

ALL = {**LORA, "targets": ["all"]}
PLACES = st.sets(st.sampled_from(sorted(WIDTHS)), min_size=1)


def scenario(adapter: dict[str, Any] | None, **keys: Any) -> Any:
    training = {"framework": "pytorch-compiled", **keys.pop("training", {})}
    return eager.scenario(adapter, training=training, **keys)


def lowered(adapter: dict[str, Any] | None = None, **keys: Any) -> Lowered:
    s = scenario(adapter, **keys)
    return lower(s, load_model(s.model), run_block=compiled_block)


def fused(low: Lowered) -> float:
    """Bytes of Inductor's kernels."""
    kernels = (op.kernel for op in ops(low) if op.kernel is not None)
    return sum(k.bytes for k in kernels if k.kind.startswith("fused"))


@given(PLACES, st.sampled_from(("output", "inner")), st.sampled_from((0.0, 0.1)))
@settings(max_examples=12, deadline=None)
def test_products_are_those_of_eager_blocks(
    targets: set[str], scaled: str, dropout: float
) -> None:
    """Behind the first layer, whose unwanted gradients AOTAutograd leaves out inside the block as well."""
    chosen = {"targets": sorted(targets), "scaled": scaled, "dropout": dropout}
    compiled = lowered({**LORA, **chosen})
    plain = eager.lowered({**LORA, **chosen})
    for layer in range(1, LAYERS):
        assert products(compiled, layer) == products(plain, layer)
    first, others = products(compiled, 0), products(plain, 0)
    assert first["nt"] == others["nt"] and first["tn"] == others["tn"]
    assert first["nn"] == others["nn"]
    assert work(compiled) == pytest.approx(work(plain))


@given(
    PLACES,
    st.sampled_from(("none", "full")),
    st.sampled_from(("none", "ddp", "zero1", "fsdp")),
)
@settings(max_examples=12, deadline=None)
def test_adapters_cost_less_than_training_everything(
    targets: set[str], recompute: str, way: str
) -> None:
    """Less time and less memory, in every way of data parallelism.

    Not with every other product kept: thin ones count, and so may leave out the wrong ones of the others.
    """
    keys = {
        "training": {"recompute": recompute, "seq_len": 4096},
        "model": TRANSFORMER | {"hidden": 4096, "ffn": 16384},  # the host keeps up
        "dp": 1 if way == "none" else 2,
        "data_parallel": way,
    }
    chosen = {**LORA, "targets": sorted(targets)}
    full, lora = (predict(scenario(a, **keys)) for a in (None, chosen))
    assert lora.step_time < full.step_time
    assert lora.peak_memory[0].total < full.peak_memory[0].total


@pytest.mark.parametrize("model", [TRANSFORMER, TRANSFORMER | {"gated": False}])
@pytest.mark.parametrize("fp32", [False, True])
def test_compiled_steps_take_no_longer_than_eager_ones(
    model: dict[str, Any], fp32: bool
) -> None:
    """Nor more memory, but for a gradient of the widest value that is written beside the one that it is scaled from."""
    keys = {"model": model | {"hidden": 2048, "ffn": 8192}}
    chosen = {**ALL, "fp32": fp32, "dropout": 0.1}
    training = {"seq_len": 2048}
    slow = predict(eager.scenario(chosen, training=training, **keys))
    fast = predict(scenario(chosen, training=training, **keys))
    assert fast.step_time < slow.step_time
    widest = 2 * 2 * 2048 * 8192
    assert fast.peak_memory[0].total < slow.peak_memory[0].total + widest


def test_ranks_add_products_alone() -> None:
    """Twice the rank: twice the work of thin products, as many kernels, and as many bytes of Inductor's."""
    few, more, frozen = (lowered({**ALL, "rank": rank}) for rank in (RANK, 2 * RANK, 1))
    assert Counter(op.name for op in ops(few)) == Counter(op.name for op in ops(more))
    assert fused(few) == fused(more)
    thin = work(more) - work(few)
    assert work(few) - work(frozen) == pytest.approx(thin * (RANK - 1) / RANK)


@given(PLACES)
@settings(max_examples=8, deadline=None)
def test_a_first_block_sends_nothing_to_its_input(targets: set[str]) -> None:
    """Products for inputs' gradients: those behind the first adapter, and none of frozen weights before it."""
    found = products(lowered({**LORA, "targets": sorted(targets)}), 0)
    count = sum(len(WIDTHS[target]) for target in targets)
    assert found["tn"] == 2 * count
    behind = {"qkv": 4, "proj": 3, "fc1": 1, "fc2": 0}
    base = max(behind[target] for target in targets)
    gets = {  # adapters whose input's gradient is wanted: those behind the first
        "qkv": ("proj", "fc1", "fc2"),
        "proj": ("fc1", "fc2"),
        "fc1": ("fc2",),
        "fc2": (),
    }
    first = next(each for each in ("qkv", "proj", "fc1", "fc2") if each in targets)
    thin = sum(len(WIDTHS[each]) for each in gets[first] if each in targets)
    assert found["nn"] == base + thin + count


@pytest.mark.parametrize("way", ["ddp", "ddp-no-overlap", "zero1"])
@pytest.mark.parametrize("fp32", [False, True])
def test_adapters_alone_are_reduced(way: str, fp32: bool) -> None:
    found = lowered({**LORA, "fp32": fp32}, dp=2, data_parallel=way)
    size = 4.0 if fp32 else 2.0
    assert volume(found, "dp all_reduce") == size * eager.adapters("qkv", "proj")


@pytest.mark.parametrize("cap", ["1 KiB", "25 MiB"])
@pytest.mark.parametrize("gated", [True, False])
def test_buckets_cut_blocks_by_what_is_trained(cap: str, gated: bool) -> None:
    """However a block is cut, products are the same."""
    model = TRANSFORMER | {"gated": gated}
    whole = lowered(ALL, model=model)
    cut = lowered(ALL, model=model, dp=2, data_parallel="ddp", bucket_cap=cap)
    for layer in range(LAYERS):
        assert products(cut, layer) == products(whole, layer)


def test_shards_of_adapters_are_scattered() -> None:
    found = lowered(LORA, dp=2, data_parallel="fsdp")
    own = 2.0 * eager.adapters("qkv", "proj")
    assert volume(found, "dp reduce_scatter") == own
    root = 2.0 * (2 * 1000 + 1) * HIDDEN  # stays between its passes
    assert volume(found, "dp all_gather") == 2 * (2.0 * found.parameters + own) - root


def test_dropout_is_part_of_kernels() -> None:
    """No kernel of its own: a mask and what is left of an input are written by the kernel that makes it."""
    plain, dropping = (lowered({**ALL, "dropout": share}) for share in (0.0, 0.1))
    kinds, others = (
        Counter(op.kernel.kind for op in ops(low) if op.kernel is not None)
        for low in (plain, dropping)
    )
    assert kinds == others
    inputs = sum(pair[0] for pairs in WIDTHS.values() for pair in pairs)
    rows = 2 * SEQ
    forward = LAYERS * 3.0 * rows * inputs
    backward = LAYERS * 1.0 * rows * inputs - 3.0 * rows * HIDDEN  # not of layer 0's
    # A mask that two gradients take in one kernel is read once.
    assert forward < fused(dropping) - fused(plain) <= forward + backward


def test_matrices_in_fp32_are_converted_and_inputs_are_not() -> None:
    """Two matrices forward, two gradients backward, six bytes an element; nothing else is moved."""
    wide, narrow = (lowered({**ALL, "fp32": fp32}) for fp32 in (True, False))
    assert fused(wide) - fused(narrow) == 2 * 6.0 * eager.adapters(*WIDTHS)


@pytest.mark.parametrize(
    "model",
    [
        EXPERTS,
        TRANSFORMER | {"qk_norm": True, "head_dim": 64},
        TRANSFORMER | {"attention_gate": True},
        {k: v for k, v in TRANSFORMER.items() if k != "layers"}
        | {"layer_pattern": "*-*-"},
    ],
)
@together(
    "keys",
    [{}, {"dp": 2, "data_parallel": "ddp"}, {"pp": 2, "training": {"microbatches": 2}}],
)
def test_other_blocks_have_the_products_of_eager_ones(
    model: dict[str, Any], keys: dict[str, Any]
) -> None:
    compiled, plain = (
        make(ALL, model=model, **keys) for make in (lowered, eager.lowered)
    )
    for layer in range(1, LAYERS):
        assert products(compiled, layer) == products(plain, layer)


@pytest.mark.parametrize(
    ("adapter", "keys", "said"),
    [
        ({}, {"tp": 2}, "parallel.tp"),
        ({}, {"training": {"precision": "fp8"}}, "training.precision"),
        ({"base": "nf4"}, {}, "adapter.base"),
    ],
)
def test_what_is_not_simulated_is_named(
    adapter: dict[str, Any], keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        scenario({**LORA, **adapter}, **keys)


def test_latent_attention_with_adapters_is_refused() -> None:
    latent = TRANSFORMER | {"kv_heads": 8, "kv_lora_rank": 64}
    s = scenario(LORA, model=latent)
    assert "adapter.kind" in {m.key for m in check_layout(s, model=load_model(s.model))}


def test_compiled_blocks_spare_the_host_what_was_measured() -> None:
    """Host time of compiled steps over that of eager ones: 0.67 on one start of a machine.

    The mean of all weights, adapters everywhere, and beside queries and values, at two widths
    (lab/cases/peft/h100-compiled.jsonl).
    """
    ratios = []
    for adapter in (None, ALL, {**LORA, "targets": ["qkv"]}):
        spent = []
        for framework in ("pytorch-compiled", "pytorch-eager"):
            training, model = {"framework": framework}, TRANSFORMER | {"gated": True}
            s = eager.scenario(adapter, training=training, model=model)
            counts = lower_on(s, load_fabric(s)).lowered.host_operations[0]
            prices = host_costs(framework)
            spent.append(sum(prices[name] * n for name, n in counts.items()))
        ratios.append(spent[0] / spent[1])
    assert sum(ratios) / 3 == pytest.approx(0.673, rel=0.15)
