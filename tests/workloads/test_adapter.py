"""Laws of adapters beside frozen weights, and of packed samples, in Megatron's layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import KERNEL, Chain, Comm
from prestep.sim.predict import predict, step_time
from prestep.sim.spec.load import Scenario, check_layout, parse_scenario
from prestep.workloads import recipes
from prestep.workloads.job.adapter import USUAL, targets_of
from prestep.workloads.lowered import Place, Site
from prestep.workloads.megatron.lower import lower
from prestep.workloads.models.model import load_model
from tests.executed import Executed, executed, of_lowered
from tests.executed import step_time as time_of

SMALL = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 4,
    "heads": 16,
    "kv_heads": 4,
    "ffn": 5632,
    "vocab": 32000,
}
LORA = {"kind": "lora", "rank": 16, "targets": ["qkv", "proj"]}


def scenario(
    adapter: dict[str, Any] | None = None,
    parallel: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    **training: Any,
) -> Scenario:
    parallel = parallel or {}
    gpus = 1
    for axis in ("dp", "tp", "pp", "cp"):
        gpus *= parallel.get(axis, 1)
    return parse_scenario(
        {
            "cluster": cluster or {"name": "dgx-h100", "gpus": gpus},
            "model": model or SMALL,
            "training": {
                "framework": "megatron",
                "seq_len": 2048,
                "global_batch": 8,
                **training,
            },
            "parallel": {
                "data_parallel": "ddp" if parallel.get("dp", 1) > 1 else "none",
                **parallel,
            },
            "megatron": megatron or {},
            "adapter": adapter or {},
        },
        "test",
    )


def kernels(done: Executed, way: str) -> Counter[tuple[Any, ...]]:
    """Kernels of a direction of the second layer: kind, shape, layout."""
    chains = [
        kernel
        for kernel in done.lowered.graph.kernels
        if isinstance(kernel, Chain) and kernel.name == f"layer {way}"
    ]
    graph = max(chains, key=lambda chain: chain.times).graph
    program = graph.programs[0]
    launched = [graph.kernels[k] for k in program.payload[program.kind == KERNEL]]
    return Counter((one.kind, one.shape, one.layout) for one in launched)


def by_owner(done: Executed, owner: str) -> float:
    return sum(memory.at_peak[owner] for memory in done.lowered.memory.values())


def sent(done: Executed, axis: str, op: str) -> float:
    """Bytes of the collectives of an axis, on the simulated ranks."""
    graph = done.lowered.graph
    return sum(comm.size for comm in graph.comms if comm.axis == axis and comm.op == op)


def test_llama2_70b_has_as_many_trained_parameters_as_by_hand() -> None:
    """Rank 16 in attention: 80 layers of 16 x (8192 + 10240) and 16 x (8192 + 8192)."""
    s = scenario(
        {**LORA, "fp8_weights": True},
        {"tp": 8, "dp": 1},
        {"name": "llama2-70b"},
        recompute="full",
    )
    done = executed(s)
    trained = 80 * 16 * (8192 + 10240 + 8192 + 8192)
    assert trained == 44_564_480
    assert by_owner(done, "gradients") == pytest.approx(4 * trained / 8)
    assert by_owner(done, "optimizer") == pytest.approx(12 * trained / 8)
    whole = load_model(s.model, "test")
    layers = 80 * (
        2 * whole.hidden + whole.hidden * (10240 + 8192) + 3 * whole.hidden * whole.ffn
    )
    held = by_owner(done, "parameters") * 8
    # Layers in 8 bits, norms on every rank; embedding, head and adapters in 16.
    assert held == pytest.approx(layers + 4 * 32768 * 8192 + 2 * trained, rel=2e-3)


def test_frozen_weights_have_no_gradients_of_their_own() -> None:
    """Backward has the products for inputs, and none for weights but those of adapters."""
    plain, lora = (
        kernels(executed(scenario(a)), "backward") for a in (None, {**LORA, "rank": 8})
    )
    products = {key: n for key, n in plain.items() if key[0] == "aten mm"}
    weights = {key for key in products if key[2] == "tn"}
    assert weights
    assert not weights & lora.keys()
    # Frozen layers make the gradient of their input by the same products; "nn" with a rank are adapters'.
    assert {key for key in products if key[2] == "nn"} <= lora.keys()
    assert all(8 in key[1] for key in lora if key[0] == "aten mm" and key[2] == "tn")


def test_forward_is_the_frozen_models_and_the_adapters() -> None:
    """Forward has every kernel of the model without adapters, and beside them thin products and elementwise ones."""
    plain, lora = (
        kernels(executed(scenario(a)), "forward") for a in (None, {**LORA, "rank": 8})
    )
    assert plain <= lora
    more = lora - plain
    assert more
    assert all(8 in shape or kind != "aten mm" for kind, shape, _ in more)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"dp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "sequence_parallel": False},
        {"pp": 2, "dp": 2},
        {"pp": 2, "vpp": 2, "schedule": "interleaved"},
        {"pp": 2, "schedule": "zero-bubble"},
        {"cp": 2, "dp": 2, "data_parallel": "zero1"},
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_lora_is_faster_and_smaller_than_full_training(
    layout: dict[str, Any], precision: str
) -> None:
    gpus = math.prod(layout.get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
    # A host that is no matter: adapters launch more kernels than they save.
    fast = {"name": "dgx-h100", "gpus": gpus, "host_factor": 0.01}
    full, lora = (
        predict(scenario(a, layout, cluster=fast, precision=precision))
        for a in (None, LORA)
    )
    assert lora.step_time < full.step_time
    assert max(m.total for m in lora.peak_memory.values()) < max(
        m.total for m in full.peak_memory.values()
    )


@settings(max_examples=6, deadline=None)
@given(
    st.sets(st.sampled_from(USUAL), min_size=1),
    st.sampled_from((4, 16, 64)),
    st.sampled_from((1, 2)),
)
def test_gradients_that_are_reduced_are_the_adapters(
    targets: set[str], rank: int, tp: int
) -> None:
    """Every adapter's parameters once in fp32, by hand; nothing of frozen weights."""
    inner, group = 2048, 4 * 128  # queries, and keys or values
    shapes = {
        "qkv": (2048, inner + 2 * group),
        "proj": (2048, 2048),
        "fc1": (2048, 2 * 5632),
        "fc2": (5632, 2048),
    }
    chosen = {"kind": "lora", "rank": rank, "targets": sorted(targets)}
    done = executed(scenario(chosen, {"dp": 2, "tp": tp}), steps=1)
    count = 4 * sum(rank * sum(shapes[target]) for target in targets)  # layers
    assert sent(done, "dp", "all_reduce") == pytest.approx(4 * count / tp)


def test_more_adapters_take_longer() -> None:
    """More of them, of a higher rank, with dropout: never faster where the host launches them in time."""
    all_targets = {**LORA, "targets": list(USUAL)}
    fast = {"name": "dgx-h100", "gpus": 1, "host_factor": 0.1}
    steps = [
        step_time(scenario(adapter, cluster=fast))
        for adapter in (
            LORA,
            {**LORA, "dropout": 0.1},
            {**all_targets, "dropout": 0.1},
            {**all_targets, "dropout": 0.1, "rank": 256},
        )
    ]
    assert steps == sorted(steps)
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 4, "tp": 2, "sequence_parallel": True},
        {"dp": 4, "pp": 2, "data_parallel": "zero1"},
        {"dp": 4, "cp": 2},
    ],
)
def test_folded_is_unfolded(layout: dict[str, Any]) -> None:
    """One replica stands for all, with the step time of all of them simulated."""
    done = executed(scenario(LORA, layout))
    lowered = lower(
        done.scenario, done.model, Site(place=Place(8, blocking=False)), apart=True
    )
    assert len(lowered.graph.programs) > len(done.lowered.graph.programs)
    every = of_lowered(done, lowered)
    assert time_of(done) == pytest.approx(time_of(every), rel=1e-9)


def test_names_of_other_frameworks_mean_the_same() -> None:
    known = step_time(scenario(LORA))
    for names in (
        ["linear_qkv", "linear_proj"],
        ["q_proj", "k_proj", "v_proj", "o_proj"],
        ["*.layers.*.linear_qkv", "attention_dense"],
        ["attention"],
    ):
        assert step_time(scenario({**LORA, "targets": names})) == known
    assert targets_of(("lm_head",)) == ((), ("lm_head",))
    with pytest.raises(InputError, match="lm_head"):
        scenario({**LORA, "targets": ["lm_head"]})


def test_frozen_weights_are_gathered_and_never_reduced() -> None:
    """Megatron's FSDP shards them too: what is gathered grows by their bytes, twice; what is reduced are adapters alone."""
    sent = {kind: _data_parallel_bytes(kind, LORA) for kind in ("fsdp", "zero1")}
    assert sent["fsdp"]["reduce_scatter"] == sent["zero1"]["reduce_scatter"] > 0
    trained = _data_parallel_bytes("fsdp", None)
    adapters = 2 * sent["zero1"]["all_gather"]
    gathered = trained["all_gather"] + adapters
    assert sent["fsdp"]["all_gather"] == pytest.approx(gathered, rel=1e-12)


def _data_parallel_bytes(kind: str, adapter: Any) -> dict[str, float]:
    """Bytes of a rank's exchanges by data parallelism of this kind, by operation, in a step of one microbatch."""
    asked = scenario(adapter, {"dp": 2, "data_parallel": kind}, global_batch=2)
    graph = executed(asked).lowered.graph
    sent: dict[str, float] = {}
    for part in (part for parts in graph.programs[0].parts for part in parts):
        comm = graph.comms[part]
        if comm.axis == "dp":
            sent[comm.op] = sent.get(comm.op, 0.0) + comm.size
    return sent


def test_adapters_elsewhere_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"adapter\.kind"):
        scenario(LORA, framework="deepspeed-eager")
    with pytest.raises(InputError, match=r"adapter\.dropout"):
        scenario({**LORA, "dropout": 1.0})
    with pytest.raises(InputError, match="orthogonal"):
        scenario(LORA, optimizer="muon")
    compressed = scenario({**LORA, "targets": ["qkv"]}, model={"name": "deepseek-v2"})
    wrong = check_layout(compressed, model=load_model(compressed.model, "test"))
    assert [mistake.key for mistake in wrong] == ["adapter.targets"]
    assert "q_down" in str(wrong[0])


HYBRID = {
    **{key: value for key, value in SMALL.items() if key != "layers"},
    "layer_pattern": "G-*-G-*-",
    "linear_key_heads": 8,
    "linear_value_heads": 8,
}
EXPERTS = {**SMALL, "experts": 8, "experts_per_token": 2, "moe_ffn": 1024}


@pytest.mark.parametrize("model", [EXPERTS, HYBRID], ids=["experts", "hybrid"])
def test_experts_and_scans_stay_frozen(model: dict[str, Any]) -> None:
    """Beside adapters of attention no layer computes a gradient of another weight, and none has a state."""
    kinds = {
        (kernel.kind, kernel.layout)
        for adapter in (LORA,)
        for chain in executed(scenario(adapter, model=model)).lowered.graph.kernels
        if isinstance(chain, Chain)
        for kernel in chain.graph.kernels
        if kernel.layout == "tn" and LORA["rank"] not in kernel.shape
    }
    assert not kinds
    full, lora = (predict(scenario(a, model=model)) for a in (None, LORA))
    assert lora.peak_memory[0].total < full.peak_memory[0].total


def test_model_flops_of_frozen_weights() -> None:
    """Four, not six, for a parameter and token; attention as before."""
    full, lora = (predict(scenario(a, seq_len=128)) for a in (None, LORA))
    ratio = (
        lora.tflops_per_gpu * lora.step_time / (full.tflops_per_gpu * full.step_time)
    )
    assert ratio == pytest.approx(4 / 6, rel=0.01)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from((128, 256, 512, 1024)))
def test_shorter_documents_take_less_attention(length: int) -> None:
    """Monotone in the documents' length; one document of the sample's length is the sample."""
    quick = {"name": "dgx-h100", "gpus": 1, "host_factor": 0.1}

    def step(**training: int) -> float:
        return step_time(scenario(cluster=quick, seq_len=2048, **training))

    assert step(packed=length) < step(packed=2 * length) <= step()
    assert step(packed=2048) == step()


def test_packed_samples_elsewhere_are_refused() -> None:
    with pytest.raises(InputError, match=r"training\.packed"):
        scenario(framework="pytorch-eager", packed=128)
    with pytest.raises(InputError, match=r"training\.packed"):
        scenario(packed=4096)
    with pytest.raises(InputError, match=r"training\.packed"):
        scenario(packed=128, megatron={"attention": "unfused"})


def test_heads_spread_by_all_to_alls() -> None:
    """Queries, keys, values and output forward, and their gradients backward; no rounds of keys and values."""
    layout = {"cp": 2}
    ring = executed(scenario(None, layout), steps=1)
    spread = executed(scenario(None, {**layout, "ring_degree": 1}), steps=1)
    ops = {comm.op for comm in _inner(spread) if comm.axis == "cp"}
    assert ops == {"all_to_all"}
    assert {comm.op for comm in _inner(ring) if comm.axis == "cp"} == {"sendrecv"}
    row = 2 * 1024 * 128  # bytes of a head of this rank's tokens
    queries, keys = 16 * row, 4 * row
    layer = sum(comm.size for comm in _inner(spread) if comm.axis == "cp")
    assert layer == pytest.approx(4 * queries + 4 * keys)


def _inner(done: Executed) -> Sequence[Comm]:
    """Communications of one layer, of both passes: they are recorded on one tape."""
    chains = (k for k in done.lowered.graph.kernels if isinstance(k, Chain))
    return next(c.graph.comms for c in chains if c.name == "layer forward")


BRIDGE = """
from megatron.bridge.peft.lora import LoRA
def llama3_70b_peft_config():
    cfg = _pretrain_common()
    cfg.model = from_hf_pretrained("meta-llama/Meta-Llama-3-70B")
    cfg.model.tensor_model_parallel_size = 2
    cfg.peft = LoRA(dim=8, target_modules=["linear_qkv", "linear_fc1"], dropout=0.05)
    return cfg
"""
LAUNCHER = """
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  mcore_gpt: true
  tensor_model_parallel_size: 8
  global_batch_size: 8
  micro_batch_size: 1
  encoder_seq_length: 4096
  peft:
    peft_scheme: lora
    lora_tuning: {adapter_dim: 4, target_modules: [attention_dense]}
"""
SCRIPT = """
export MINIBS=4
export TP=4
export DGXNNODES=1
export DGXNGPU=8
export FP8=True
export LORA_A2A=0
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "bridge.py",
            BRIDGE,
            {"rank": 8, "targets": ["qkv", "fc1"], "dropout": 0.05, "kind": "lora"},
        ),
        ("nemo.yaml", LAUNCHER, {"rank": 4, "targets": ["proj"], "kind": "lora"}),
        (
            "llama2_70b_lora/config_x.sh",
            SCRIPT,
            {"rank": 16, "targets": ["qkv", "proj"], "all_to_all": False},
        ),
    ],
)
def test_recipes_say_adapters(
    tmp_path: Path, name: str, text: str, expected: dict[str, Any]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    recipe = recipes.read(recipes.document_of(path))
    keys = {setting.key: setting.value for setting in recipe.settings.values()}
    assert {f"adapter.{k}": v for k, v in expected.items()}.items() <= keys.items()
    assert not [m for m in recipe.lost if "adapter" in str(m)]
