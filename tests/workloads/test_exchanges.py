"""Laws of what layers exchange: every byte is on the links, and whoever waits for it says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.analysis.shadow_prices import shadow_prices
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.engine.traffic import Traffic
from prestep.sim.graph.opgraph import Chain
from prestep.sim.spec.sections import Scenario
from prestep.workloads.lowered import Place, Site
from prestep.workloads.megatron.lower import lower
from tests.executed import Executed, executed, of_lowered, reported, step_time
from tests.workloads.test_megatron_folding import EXPERTS, LARGE, scenario

# Of the folding tests' model; PASSES: microbatches.
LAYERS, TOKENS, HIDDEN, HEAD_SIZE, PASSES = 4, 1024, 1024, 64, 4
LAYOUTS = st.sampled_from(
    [
        {"tp": 4, "sequence_parallel": True},
        {"tp": 2, "cp": 2, "sequence_parallel": True},
        {"cp": 4},
        {"tp": 2, "dp": 4, "sequence_parallel": True},
        {"dp": 4, "ep": 4},
        {"tp": 2, "dp": 4, "ep": 4, "sequence_parallel": True},
        {"tp": 2, "dp": 2, "pp": 2, "sequence_parallel": True},
    ]
)


def ran(parallel: dict[str, object], **changes: object) -> Executed:
    """Executed on a host so fast that no layer is disturbed by another's exchange: rates are means of a layer."""
    experts = EXPERTS if "ep" in parallel else {}
    s = scenario(dict(parallel), **experts, **changes)
    return executed(replace(s, cluster=replace(s.cluster, host_factor=0.02)))


def moved(done: Executed, op: str, kind: str = "nvlink") -> float:
    """Bytes of an operation of NCCL on all links of a kind in a step."""
    traffic, links = done.run.traffic, done.fabric.links
    on_kind = links.kind == kind
    total = 0.0
    for row, begin, end in zip(*traffic.segments(), strict=True):
        plan = traffic.plans[traffic.activity[row]]
        if plan.op == op:
            each = plan.usage[on_kind[plan.links]].sum() * plan.copies
            total += traffic.rate[row] * (end - begin) * each
    return float(total) / done.run.steps


def alone(done: Executed, op: str, size: float, ranks: int) -> float:
    """Bytes on all links of one such operation among the first ranks by itself, with its protocol's overhead."""
    plan = plan_collective(op, size, done.gpus[:ranks], done.fabric, done.scenario.nccl)
    return float(plan.usage.sum()) * size


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.sampled_from((2, 4, 8)))
def test_bytes_of_context_parallelism(cp: int) -> None:
    """Every rank sends its keys and values to the next in all steps of the ring but one; backward their gradients too."""
    done = ran({"cp": cp})
    part = 2 * 2.0 * TOKENS / cp * HIDDEN  # keys and values of a rank's tokens
    forth, back = (alone(done, "sendrecv", size, cp) for size in (part, 2 * part))
    assert forth >= cp * part
    expected = LAYERS * PASSES * (cp - 1) * (forth + back)
    assert moved(done, "sendrecv") == pytest.approx(expected, rel=1e-6)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.sampled_from((2, 4, 8)))
def test_bytes_of_expert_parallelism(ep: int) -> None:
    """Every token goes to the ranks of its two experts and back, in both passes; what stays here is on no link."""
    done = ran({"dp": ep, "ep": ep})
    size = 2.0 * TOKENS * HIDDEN * EXPERTS["experts_per_token"]
    one = alone(done, "all_to_all", size, ep)
    assert one >= ep * size * (ep - 1) / ep
    assert moved(done, "all_to_all") == pytest.approx(
        LAYERS * PASSES * 4 * one, rel=3e-3
    )  # mean rates of layers that are disturbed in between


@pytest.mark.parametrize(
    ("ep", "places", "kind"), [(2, 2, "nvlink"), (4, 4, "nvlink"), (16, 2, "nic")]
)
def test_bytes_of_sparse_exchanges(ep: int, places: int, kind: str) -> None:
    """DeepEP sends a token once to each rank that has experts of its choice; over hosts, once to each such host.

    An all-to-all sends a copy for each choice, so that bytes are as the expected number of places over that of choices.
    """
    experts, chosen = 16, 4
    model = EXPERTS | {"experts": experts, "experts_per_token": chosen}
    job = scenario({"dp": ep, "ep": ep}, **model)
    flex = replace(job.megatron, moe_token_dispatcher="flex")
    every = moved(executed(job), "all_to_all", kind)
    sparse = moved(executed(replace(job, megatron=flex)), "all_to_all", kind)
    # Of all ways to choose 4 of 16 experts, those that leave a place out.
    left_out = comb(experts - experts // places, chosen) / comb(experts, chosen)
    reached = places * (1.0 - left_out)
    assert every > 0
    assert sparse / every == pytest.approx(reached / chosen, rel=5e-3)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.sampled_from((2, 4, 8)), st.sampled_from((1, 2)))
def test_bytes_of_tensor_parallelism(tp: int, pp: int) -> None:
    """A layer gathers twice forward and four times backward, and scatters twice in each: so much more with each layer."""
    layout = {"tp": tp, "pp": pp, "sequence_parallel": True}
    shallow, deep = ran(layout, layers=2), ran(layout, layers=4)
    passes = 8 if pp > 1 else PASSES
    for op, times in (("all_gather", 6), ("reduce_scatter", 4)):
        more = moved(deep, op) - moved(shallow, op)
        one = alone(deep, op, 2.0 * TOKENS * HIDDEN, tp)
        assert one >= 2.0 * TOKENS * HIDDEN * (tp - 1)
        assert more == pytest.approx(2 * passes * times * one, rel=1e-6), op


@pytest.mark.parametrize("kv", [1, 2])
def test_bytes_of_shared_heads(kv: int) -> None:
    """Ranks that are more than heads of keys and values gather the whole projection forward, and scatter it backward."""
    layout = {"tp": 4, "sequence_parallel": True}
    own, shared = ran(layout, kv_heads=4), ran(layout, kv_heads=kv)
    projected = HIDDEN + 2 * kv * HEAD_SIZE
    for op in ("all_gather", "reduce_scatter"):
        more = moved(shared, op) - moved(own, op)
        one = alone(shared, op, 2.0 * TOKENS * projected, 4)
        assert more == pytest.approx(LAYERS * PASSES * one, rel=1e-6), op


def test_an_odd_number_of_replicas_is_no_cliff() -> None:
    """With stages beside each other (tp-cp-ep-pp-dp) a replica is a host, and one more of them changes little."""
    beside = {"tp": 2, "pp": 4, "order": "tp-cp-ep-pp-dp"}
    two, three, four = (step_time(ran({**beside, "dp": dp})) for dp in (2, 3, 4))
    assert two <= three <= four
    assert three == pytest.approx((two + four) / 2, rel=0.02)


@settings(max_examples=7, deadline=None, derandomize=True)
@given(LAYOUTS)
def test_shares_sum_to_the_step(layout: dict[str, object]) -> None:
    """Computing, waiting for each axis, bubble and the rest are the step; layers wait along every axis that they use."""
    done = reported(ran(layout, **({} if "ep" in layout else LARGE)))
    assert sum(done.breakdown.values()) == pytest.approx(done.step_time)
    for axis in ("tp", "cp", "ep"):
        if layout.get(axis, 1) > 1:
            assert done.breakdown[f"exposed_{axis}"] > 0
            assert axis in done.scenario["layout"]
    parts = done.critical_path.parts() if done.critical_path else []
    assert sum(part["share"] for part in parts) == pytest.approx(1.0)


@settings(max_examples=7, deadline=None, derandomize=True)
@given(LAYOUTS, st.sampled_from(("0.5x", "0.1x")))
def test_slower_links_are_never_faster(layout: dict[str, object], factor: str) -> None:
    """A step with slower NVLink takes as long or longer."""
    slow = ran(layout, sets={"nvlink.bandwidth": factor})
    assert step_time(slow) >= step_time(ran(layout)) * (1 - 1e-3)


def test_slow_nvlink_is_named() -> None:
    """With NVLink at a tenth most of a tensor-parallel step is its communication, and NVLink has the highest price."""
    layout = {"tp": 8, "sequence_parallel": True}
    slow = ran(layout, **LARGE, sets={"nvlink.bandwidth": "0.1x"})
    shares = reported(slow).breakdown
    assert max(shares, key=shares.__getitem__) == "exposed_tp"
    prices = shadow_prices(slow.planned, slow.run).by_kind
    assert max(prices, key=prices.__getitem__) == "nvlink"


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    st.sampled_from(
        [
            {"dp": 4, "tp": 2, "sequence_parallel": True},
            {"dp": 4, "cp": 2},
            {"dp": 8, "tp": 2, "sequence_parallel": True},
            {"dp": 8, "ep": 2},
        ]
    )
)
def test_folded_bytes_are_unfolded_bytes(layout: dict[str, object]) -> None:
    """One replica of all that are alike stands for the bytes of all of them, on links of every kind."""
    done = ran(layout)
    place = Place(8 if len(done.gpus) > 8 else len(done.gpus), blocking=False)
    lowered = lower(done.scenario, done.model, Site(place=place), apart=True)
    every = of_lowered(done, lowered)
    for kind in ("nvlink", "nic"):
        rows = done.fabric.links.kind == kind
        one, all_of_them = (
            float(d.run.bytes.everywhere[rows].sum()) for d in (done, every)
        )
        assert one == pytest.approx(all_of_them, rel=1e-6), kind


def test_a_wait_for_the_last_stage_is_bubble() -> None:
    """The norm of the gradient is summed over stages: whoever comes to it early waits for the pipeline."""
    done = reported(ran({"pp": 4}, **LARGE))
    assert done.breakdown["exposed_mp"] < 0.01 * done.step_time
    assert done.breakdown["bubble"] > 0.1 * done.step_time


def test_mean_rates_are_under_way_for_their_share() -> None:
    """A flow at a mean rate counts as a transfer for the share of its time in which one moves."""
    traffic = Traffic(
        (),
        np.array([0.0, 4.0]),
        np.zeros(2, int),
        np.full(2, -1),
        np.array([5.0, 0.0]),
        {0: 0.25},
    )
    _, begin, end = traffic.under_way()
    assert begin.tolist() == [0.0] and end.tolist() == [1.0]


@pytest.mark.parametrize("ep", [4, 16])
def test_dispatch_is_turned_round_by_combine(ep: int) -> None:
    """Gradients of a dispatch are combined, and those of a combine dispatched: as many of both, whose kernels it be."""
    model: dict[str, Any] = EXPERTS | {"experts": 16}
    job = scenario({"dp": ep, "ep": ep}, **model)
    for kernel in ("deepep", "hybridep"):
        ways = ways_of(job, kernel)
        assert ways["dispatch"] == ways["combine"] > 0
        assert set(ways) == {"dispatch", "combine"}


def ways_of(job: Scenario, backend: str) -> Counter[str]:
    """Exchanges of tokens in a step's layers, by the kernel's way."""
    o = replace(
        job.megatron,
        moe_token_dispatcher="flex",
        moe_flex_dispatcher_backend=backend,  # type: ignore[arg-type]
    )
    graph = executed(replace(job, megatron=o)).lowered.graph
    chains = [k for k in graph.kernels if isinstance(k, Chain) and not k.tail]
    comms = [comm for chain in chains for comm in chain.graph.comms]
    return Counter(
        comm.tokens.way if comm.tokens else ""
        for comm in comms
        if comm.axis == "ep" and comm.op == "all_to_all"
    )
