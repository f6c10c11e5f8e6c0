"""Laws of folding: one replica stands for all that are alike, and no more than those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.lowered import Place, Site, Unlike
from prestep.workloads.megatron.lower import lower
from prestep.workloads.parallel.folding import Grid, kinds_of
from prestep.workloads.torch.compiled import compiled_block
from prestep.workloads.torch.lower import ANYWHERE
from prestep.workloads.torch.lower import lower as lower_pytorch
from tests.executed import Executed, executed, of_lowered, step_time

DENSE = {
    "kind": "transformer",
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocab": 1024,
    "tied_embeddings": False,
}
LARGE = {"hidden": 4096, "ffn": 16384, "heads": 32}  # the GPU is slower than the host
EXPERTS = {"experts": 8, "experts_per_token": 2, "moe_ffn": 512}


def scenario(
    parallel: dict[str, Any], faults: dict[str, Any] | None = None, **changes: Any
) -> Scenario:
    gpus = (
        parallel.get("dp", 1)
        * parallel.get("tp", 1)
        * parallel.get("pp", 1)
        * parallel.get("cp", 1)
    )
    hosts = (
        {"name": "rail-h100", "hosts": -(-gpus // 8)}
        if gpus > 8
        else {"name": "dgx-h100"}
    )
    sets = changes.pop("sets", {})
    return parse_scenario(
        {
            # A host so fast that GPUs and links decide these small steps.
            "cluster": {**hosts, "gpus": gpus, "set": sets, "host_factor": 0.1},
            "model": DENSE | changes,
            "training": {
                "framework": "megatron",
                "seq_len": 1024,
                "micro_batch": 1,
                "microbatches": 8,
                "grad_accumulation": 1,
            }
            if parallel.get("pp", 1) > 1
            else {
                "framework": "megatron",
                "seq_len": 1024,
                "micro_batch": 1,
                "grad_accumulation": 4,
            },
            "parallel": {
                "data_parallel": "zero1" if parallel.get("dp", 1) > 1 else "none"
            }
            | parallel,
            "faults": faults or {},
        },
        "test",
    )


def apart(s: Executed) -> float:
    """Step time with every replica simulated."""
    place = Place(8 if len(s.gpus) > 8 else len(s.gpus), blocking=False)
    lowered = lower(s.scenario, s.model, Site(host_factor=0.1, place=place), apart=True)
    assert len(lowered.graph.programs) > len(s.lowered.graph.programs)
    return step_time(of_lowered(s, lowered))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_folded_is_unfolded(data: st.DataObject) -> None:
    """Whatever the layout, one replica of all that are alike gives the step time of all of them simulated."""
    tp, pp, cp = (data.draw(st.sampled_from((1, 2))) for _ in range(3))
    dp = data.draw(
        st.sampled_from(
            [n for n in (2, 4, 8) if n * tp * cp % 8 == 0 or n * tp * cp * pp <= 8]
        )
    )
    moe = data.draw(st.booleans())
    ep = (
        data.draw(st.sampled_from([n for n in (1, 2, 4) if dp * cp % n == 0]))
        if moe
        else 1
    )
    schedule = (
        data.draw(st.sampled_from(("1f1b", "zero-bubble", "dualpipe")))
        if pp > 1
        else "1f1b"
    )
    parallel = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "schedule": schedule,
        "sequence_parallel": tp > 1,
    }
    one = executed(scenario(parallel, **(EXPERTS if moe else {})))
    assert len(one.lowered.graph.programs) == pp
    if dp * cp // max(ep, cp) > 1:  # else all ranks are in one team
        assert step_time(one) == pytest.approx(apart(one), rel=1e-9)


HYBRID = {
    "layer_pattern": "MG*E",
    "mamba_heads": 16,
    "linear_key_heads": 4,
}


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("pp", [1, 2])
def test_a_hybrid_folded_is_unfolded(tp: int, pp: int) -> None:
    parallel = {"dp": 4, "tp": tp, "pp": pp, "sequence_parallel": tp > 1}
    one = executed(scenario(parallel | {"ep": 2}, **(EXPERTS | HYBRID)))
    assert len(one.lowered.graph.programs) == pp
    assert step_time(one) == pytest.approx(apart(one), rel=1e-9)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_pytorch_folded_is_unfolded(data: st.DataObject) -> None:
    """The same without Megatron, against every rank simulated."""
    tp, pp = (data.draw(st.sampled_from((1, 2))) for _ in range(2))
    dp = data.draw(st.sampled_from((2, 4) if tp * pp < 4 else (2,)))
    cp = data.draw(st.sampled_from((1, 2) if dp * tp * pp < 8 else (1,)))
    compiled = data.draw(st.booleans())
    experts = data.draw(st.booleans()) and tp == 1
    way = "ddp" if pp > 1 or experts else data.draw(st.sampled_from(("ddp", "fsdp")))
    way = "fsdp" if compiled and tp > 1 else way  # DDP takes no split parameters
    framework = "pytorch-compiled" if compiled else "pytorch-eager"
    parallel = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "data_parallel": way,
        "ep": dp if experts else 1,
    }
    s = parse_scenario(
        {
            "cluster": {"name": "dgx-h100", "gpus": dp * tp * pp * cp},
            "model": DENSE | {"layers": 2} | (EXPERTS if experts else {}),
            "training": {"seq_len": 512, "micro_batch": 1, "framework": framework}
            | ({"microbatches": 4} if pp > 1 else {}),
            "parallel": parallel,
        },
        "test",
    )
    one = executed(s)
    apart, run_block = (
        tuple(range(dp * tp * pp * cp)),
        compiled_block if compiled else None,
    )
    every = lower_pytorch(s, one.model, replace(ANYWHERE, speeds=apart), run_block)
    assert len(every.graph.programs) == dp * tp * pp * cp
    whole = step_time(of_lowered(one, every))
    assert step_time(one) == pytest.approx(whole, rel=1e-9)


def test_only_what_is_touched_is_unfolded() -> None:
    """One slow GPU among 64 makes two kinds of replicas; a whole stage of slow ones makes one again."""
    grid = Grid(8, 4, 2)
    assert len(kinds_of(grid, Unlike())) == 1
    marks = ["slow" if rank == 21 else "" for rank in range(64)]
    first, second = kinds_of(grid, Unlike(tuple(marks), {21: 1.5}))
    assert first.replicas == (0, 1, 3, 4, 5, 6, 7) and second.replicas == (
        2,
    )  # rank 21 is in stage 1, replica 2
    assert second.pacers == (-1, 21, -1, -1) and set(first.pacers) == {-1}
    stage = tuple("slow" if rank < 16 else "" for rank in range(64))
    [every] = kinds_of(grid, Unlike(stage, dict.fromkeys(range(16), 1.5)))
    assert every.pacers[0] in range(16) and len(every.replicas) == 8


def test_ranks_that_exchange_tokens_are_one_kind() -> None:
    """With experts over four replicas, the slow one's three neighbours wait for it in every layer."""
    marks = tuple("slow" if rank == 5 else "" for rank in range(8))
    kinds = kinds_of(Grid(8, 1, 1, ep=4), Unlike(marks, {5: 1.5}))
    assert [kind.replicas for kind in kinds] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_slow_gpu_slows_the_step_by_its_computation() -> None:
    """Wherever it is among data-parallel ranks; the step grows by the same with every further fifth of its time.

    The first fifth counts less: eight equal GPUs already wait for the slowest of them.
    """
    parallel = {"dp": 8}
    even = step_time(executed(scenario(parallel, **LARGE)))

    def slow(rank: int, factor: float) -> float:
        return step_time(
            executed(
                scenario(parallel, {"slow_rank": rank, "slow_factor": factor}, **LARGE)
            )
        )

    one, other, more, most = slow(0, 1.2), slow(5, 1.2), slow(5, 1.4), slow(5, 1.6)
    assert one == pytest.approx(other, rel=1e-6)
    assert most - more == pytest.approx(more - one, rel=0.01)
    assert 0.8 * (more - one) < one - even <= more - one
    assert one > 1.05 * even


def test_a_slow_gpu_slows_its_tensor_parallel_group_alone() -> None:
    """As much as if all ranks of that group were slow."""
    parallel = {"dp": 4, "tp": 2, "sequence_parallel": True}
    one = executed(scenario(parallel, sets={"gpu[3].clock": "0.7x"}, **LARGE))
    two = executed(
        scenario(
            parallel, sets={"gpu[2].clock": "0.7x", "gpu[3].clock": "0.7x"}, **LARGE
        )
    )
    assert len(one.lowered.graph.programs) == 2
    assert step_time(one) == pytest.approx(step_time(two), rel=1e-9)


def test_extra_time_in_every_layer() -> None:
    """`slow_per_layer` costs layers times passes; `slow_factor` below one is a faster GPU, for which nobody waits."""
    even = step_time(executed(scenario({"dp": 8}, **LARGE)))
    late = step_time(
        executed(
            scenario({"dp": 8}, {"slow_rank": 2, "slow_per_layer": "5 ms"}, **LARGE)
        )
    )
    assert late - even == pytest.approx(4 * 4 * 5e-3, rel=0.05)
    fast = step_time(
        executed(scenario({"dp": 8}, {"slow_rank": 2, "slow_factor": 0.5}, **LARGE))
    )
    assert fast == pytest.approx(even, rel=0.02)


def test_a_degraded_link_unfolds_the_replicas_on_its_host() -> None:
    """NVLinks of one host, a NIC of one host: only what lies there is simulated apart, and the step takes longer."""
    parallel = {"dp": 4, "tp": 8, "pp": 2, "sequence_parallel": True}
    even = executed(scenario(parallel, **LARGE))
    for key in ("nvlink[host5].bandwidth", "nic[host5].bandwidth"):
        worse = executed(scenario(parallel, **LARGE, sets={key: "0.2x"}))
        assert len(worse.lowered.graph.programs) == 4
        assert step_time(worse) > 1.01 * step_time(even)
    everywhere = executed(
        scenario(parallel, **LARGE, sets={"nvlink.bandwidth": "0.2x"})
    )
    assert len(everywhere.lowered.graph.programs) == 2


@pytest.mark.parametrize("fast", [0, 1])
def test_a_team_goes_at_the_pace_of_its_slowest(fast: int) -> None:
    """Whichever of them is simulated: one fast GPU of two helps nobody, both do."""
    parallel = {"tp": 2, "sequence_parallel": True}
    usual, one, both = (
        step_time(executed(scenario(parallel, sets=sets, **LARGE)))
        for sets in ({}, {f"gpu[{fast}].flops": "1.5x"}, {"gpu.flops": "1.5x"})
    )
    assert one == pytest.approx(usual, rel=1e-9) and both < 0.95 * usual


@pytest.mark.parametrize("change", ["gpu.hbm_bandwidth", "gpu.clock", "gpu.flops"])
@pytest.mark.parametrize("slow", [0, 1])
def test_less_of_all_gpus_is_no_faster_where_one_was_slow(
    slow: int, change: str
) -> None:
    """The slow one remains the slowest, though none is as its model any more."""
    sets = {f"gpu[{slow}].flops": "0.7x"}
    before, after = (
        step_time(executed(scenario({"tp": 2}, sets=sets | more, **LARGE)))
        for more in ({}, {change: "0.8x"})
    )
    assert after > before
