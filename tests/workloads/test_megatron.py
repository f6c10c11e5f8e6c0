"""Laws of Megatron's training step: what it computes, keeps and sends does not depend on how it is put together."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.predict import predict, step_time
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import load_model
from tests.executed import Executed, executed

GPT = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 8,
    "heads": 16,
    "ffn": 8192,
    "vocab": 50257,
    "gated": False,
    "activation": "gelu",
    "norm": "layer",
    "bias": True,
    "positions": "learned",
    "max_positions": 2048,
    "tied_embeddings": True,
}


def scenario(
    parallel: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    **model: Any,
) -> Scenario:
    parallel = parallel or {}
    gpus = 1
    for axis in ("dp", "tp", "pp", "cp"):
        gpus *= parallel.get(axis, 1)
    return parse_scenario(
        {
            "cluster": cluster
            or (
                # A host so fast that GPUs decide these small steps.
                {"name": "dgx-h100", "host_factor": 0.1}
                | ({"gpus": gpus} if gpus < 8 else {})
            ),
            "model": GPT | model,
            "training": {
                "framework": "megatron",
                "seq_len": 2048,
                "micro_batch": 1,
                "global_batch": 8,
            }
            | (training or {}),
            "parallel": {
                "data_parallel": "ddp" if parallel.get("dp", 1) > 1 else "none"
            }
            | parallel,
            "megatron": megatron or {},
        },
        "test",
    )


def peak(s: Scenario) -> float:
    return max(memory.total for memory in predict(s).peak_memory.values())


def resident(simulation: Executed, owner: str) -> float:
    return sum(m.at_peak[owner] for m in simulation.lowered.memory.values())


def test_ranks_hold_the_models_parameters() -> None:
    """Two bytes for each parameter over all stages; the tied head of the last stage is a copy of the embedding."""
    model = load_model(scenario().model, "test")
    one = executed(scenario(megatron={"vocab_multiple": 1}))
    assert resident(one, "parameters") == pytest.approx(
        2 * stage_parameters(model, 8, True, True), rel=1e-6
    )
    two = executed(scenario({"pp": 2}, megatron={"vocab_multiple": 1}))
    copy = 2 * model.vocab * model.hidden
    assert resident(two, "parameters") == pytest.approx(
        resident(one, "parameters") + copy, rel=1e-6
    )


def test_whole_activations_take_longer_between_hosts() -> None:
    """Without the scatter every tensor-parallel rank sends all of an activation: never faster, slower between hosts."""
    hosts = {"name": "a100-hdr800", "hosts": 2, "gpus": 16}
    layout = {"tp": 8, "pp": 2}
    parted = step_time(scenario(layout, cluster=hosts))
    whole = step_time(
        scenario(
            layout,
            megatron={"scatter_gather_tensors_in_pipeline": False},
            cluster=hosts,
        )
    )
    assert whole > parted
    alone = scenario({"pp": 2}, megatron={"scatter_gather_tensors_in_pipeline": False})
    assert step_time(alone) == step_time(scenario({"pp": 2}))


def test_a_gradients_all_reduce_hides_behind_the_weights_gradient() -> None:
    """Waiting for it first is never faster; without tensor parallelism it is the same step."""
    late = {"async_tensor_model_parallel_allreduce": False}
    assert step_time(scenario({"tp": 8}, megatron=late)) > step_time(
        scenario({"tp": 8})
    )
    assert step_time(scenario(megatron=late)) == step_time(scenario())


def test_nvfp4_is_faster_than_fp8_where_there_are_units_for_it() -> None:
    """Large products in four bits take less time than in eight on a B200."""
    wide = {
        "hidden": 8192,
        "heads": 64,
        "ffn": 32768,
        "layers": 2,
        "vocab": 1024,
        "tied_embeddings": False,
    }
    cluster = {"name": "dgx-b200", "gpus": 1}
    times = [
        step_time(
            scenario(None, {"precision": p, "micro_batch": 4}, cluster=cluster, **wide)
        )
        for p in ("nvfp4", "fp8")
    ]
    assert times[0] < times[1]


def test_work_grows_with_microbatches() -> None:
    """Sixteen microbatches take as much longer than eight as eight more take, whatever comes once in a step."""
    four, eight, sixteen = (
        step_time(scenario(training={"global_batch": n})) for n in (4, 8, 16)
    )
    assert sixteen - eight == pytest.approx(2 * (eight - four), rel=1e-2)


def test_recomputation_trades_time_for_memory() -> None:
    """Full recomputation costs about a forward pass more and keeps less; selective lies between."""
    made = {
        kind: scenario(training={"recompute": kind})
        for kind in ("none", "selective", "full")
    }
    times = [step_time(s) for s in made.values()]
    assert times[0] < times[1] < times[2] < 1.45 * times[0]
    assert peak(made["full"]) < peak(made["none"])


def test_sharded_optimizer_states_are_smaller_and_cost_no_less() -> None:
    """ZeRO-1 keeps a part of Adam's states on each rank; the bytes of gradients and parameters move all the same."""
    whole, sharded = (
        scenario({"dp": 8, "data_parallel": kind}, {"global_batch": 64})
        for kind in ("ddp", "zero1")
    )
    assert peak(sharded) < peak(whole)
    assert step_time(sharded) == pytest.approx(step_time(whole), rel=0.1)


def test_overlap_never_slows_a_step() -> None:
    """Gradients reduced beside the last backward pass, parameters gathered beside the first forward pass."""
    plain = scenario({"dp": 8, "data_parallel": "zero1"}, {"global_batch": 16})
    both = {
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "bucket_size": 60_000_000,
    }
    beside = scenario({"dp": 8, "data_parallel": "zero1"}, {"global_batch": 16}, both)
    assert step_time(beside) < step_time(plain)


@pytest.mark.parametrize("hidden", [4096, 16384])
def test_input_gradients_are_summed_beside_weight_gradients(hidden: int) -> None:
    """Two of a layer's four sums over tensor-parallel ranks hide, whether or not a product begins with a reset."""
    plain, beside = (
        predict(
            scenario(
                {"tp": 4},
                {"global_batch": 1},
                {"async_tensor_model_parallel_allreduce": asynchronous},
                hidden=hidden,
                ffn=4 * hidden,
            )
        )
        for asynchronous in (False, True)
    )
    half = plain.breakdown["exposed_tp"] / 2
    assert beside.breakdown["exposed_tp"] == pytest.approx(half, rel=0.02)
    assert beside.step_time < plain.step_time


def test_the_pipelines_bubble() -> None:
    """With m microbatches on p stages a step takes about (m + p - 1) / m of what the work alone does; interleaving less."""
    wide = {
        "layers": 16,
        "hidden": 8192,
        "heads": 64,
        "ffn": 32768,
        "vocab": 1024,
        "tied_embeddings": False,
    }
    long, short = (
        step_time(scenario({"pp": 4}, {"global_batch": n}, **wide)) for n in (64, 16)
    )
    each = (long - short) / 48
    assert short == pytest.approx(each * (16 + 3), rel=0.08)
    chunks = scenario(
        {"pp": 4, "vpp": 4, "schedule": "interleaved"}, {"global_batch": 16}, **wide
    )
    assert step_time(chunks) < short


def test_fewer_microbatches_than_stages() -> None:
    """Megatron runs 1F1B with fewer microbatches than stages; PyTorch refuses it."""
    assert step_time(scenario({"pp": 8}, {"global_batch": 2})) > 0


def test_eight_bits_are_faster_and_long_sequences_can_be_split() -> None:
    """fp8 GEMMs take less time; context parallelism halves what a rank computes and adds what it sends."""
    large = {"hidden": 8192, "heads": 64, "ffn": 28672, "layers": 2}
    assert step_time(scenario(training={"precision": "fp8"}, **large)) < step_time(
        scenario(**large)
    )
    whole, split = (
        scenario({"cp": n}, {"seq_len": 32768, "global_batch": 1}, max_positions=32768)
        for n in (1, 2)
    )
    assert 0.5 < step_time(split) / step_time(whole) < 0.75


def test_sequence_parallelism_keeps_less() -> None:
    """Norms, dropouts and residuals are split along the sequence; the bytes that cross NVLink are the same."""
    large = {"hidden": 8192, "heads": 64, "ffn": 32768}
    plain, split = (
        scenario({"tp": 8, "sequence_parallel": on}, {"global_batch": 2}, **large)
        for on in (False, True)
    )
    assert peak(split) < peak(plain)
    assert step_time(split) == pytest.approx(step_time(plain), rel=0.15)
