"""Laws of Megatron's overlapped reductions and gathers: when they set off, and that their bytes stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario
from prestep.workloads.megatron.pipeline import alignment_of
from prestep.workloads.schedules.runtime import Compute
from tests.executed import executed
from tests.workloads.test_megatron import scenario

OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True}
LAYOUT = {"dp": 2, "pp": 2, "vpp": 4, "schedule": "interleaved"}
WIDE = {"layers": 16, "vocab": 8192, "tied_embeddings": False}
# Links without latency that carry everything at once.
FREE = {"nvlink.bandwidth": "10000x", "nvlink.latency": "0.0001x"}


def sharded(megatron: dict[str, Any], free: bool = False, **layout: Any) -> Scenario:
    """A pipeline with the distributed optimizer on a host; ``free``: links cost nothing."""
    cluster = {"name": "dgx-h100", "gpus": 4, "set": FREE if free else {}}
    parallel = LAYOUT | {"data_parallel": "zero1"} | layout
    return scenario(parallel, {"global_batch": 8}, megatron, cluster, **WIDE)


def moved(s: Scenario, op: str) -> float:
    """Bytes of all operations of a kind over the data-parallel ranks."""
    comms = executed(s).lowered.graph.comms
    return sum(comm.size for comm in comms if comm.axis == "dp" and comm.op == op)


SWITCHES = [
    {},
    OVERLAP,
    OVERLAP | {"align_param_gather": False},
    OVERLAP | {"align_param_gather": False, "param_gather_from_start": True},
    OVERLAP | {"align_grad_reduce": False},
    OVERLAP | {"overlap_param_gather_with_optim_step": True},
    OVERLAP | {"bucket_size": 1_000_000},
]


@pytest.mark.parametrize("schedule", [LAYOUT, {"vpp": 1, "schedule": "1f1b"}])
def test_every_gradient_is_reduced_and_every_parameter_gathered_once(
    schedule: dict[str, Any],
) -> None:
    """However reductions and gathers overlap: their bytes are those of all parameters of the stages."""
    plain = sharded({}, **schedule)
    reduced, gathered = (moved(plain, op) for op in ("reduce_scatter", "all_gather"))
    assert reduced == 2 * gathered > 0  # fp32 and bf16
    for switches in SWITCHES:
        other = sharded(switches, **schedule)
        assert moved(other, "reduce_scatter") == pytest.approx(reduced, rel=1e-12)
        assert moved(other, "all_gather") == pytest.approx(gathered, rel=1e-12)


def test_layers_gathered_in_fp8_move_half() -> None:
    """Of layers; the embedding and the head stay in 16 bits."""
    whole = sharded({})
    half = moved(sharded({"fp8_param_gather": True}), "all_gather")
    tables = 2 * 2 * 2048 * 8192
    layers = moved(whole, "all_gather") - tables
    assert half == pytest.approx(tables + layers / 2, rel=0.01)


@pytest.mark.parametrize("switches", SWITCHES)
def test_overlap_with_free_links_is_never_slower(switches: dict[str, Any]) -> None:
    """Communication that costs nothing hides nothing, and delays nobody."""
    plain = predict(sharded({}, free=True)).step_time
    assert predict(sharded(switches, free=True)).step_time <= plain * 1.002


def test_wider_links_are_never_slower() -> None:
    """With every overlap on: NVLink of 1/8, 1/4, 1/2 and the whole of its bandwidth."""
    switches = OVERLAP | {"overlap_param_gather_with_optim_step": True}
    times = []
    for factor in (0.125, 0.25, 0.5, 1.0):
        cluster = {
            "name": "dgx-h100",
            "gpus": 4,
            "set": {"nvlink.bandwidth": f"{factor}x"},
        }
        parallel = LAYOUT | {"data_parallel": "zero1"}
        made = scenario(parallel, {"global_batch": 8}, switches, cluster, **WIDE)
        times.append(predict(made).step_time)
    assert times == sorted(times, reverse=True)


def passes(kind: str, chunks: list[int], microbatches: int = 2) -> list[Compute]:
    """Microbatches through one chunk after the other."""
    return [Compute(c, kind, m) for c in chunks for m in range(microbatches)]


def test_chunks_set_off_at_the_same_pass_of_the_pipeline() -> None:
    """A gather begins with the first rank's pass through the chunk before it, a reduction with the end of its last."""
    chunks = [0, 2, 4, 6]
    forward, backward = passes("F", chunks), passes("B", chunks[::-1])
    for rank in (0, 1):
        shift = [chunk + rank for chunk in chunks]
        moved = [Compute(c.stage + rank, c.kind, c.microbatch) for c in forward]
        back = [Compute(c.stage + rank, c.kind, c.microbatch) for c in backward]
        alignment = alignment_of([*moved, *back], rank)
        order = [(c.stage, c.microbatch) for c in moved]
        ends = [(c.stage, c.microbatch) for c in back]
        assert alignment.gathers == {
            order[2 - rank]: shift[2],
            order[4 - rank]: shift[3],
        }
        whole = {
            ends[at + rank]: chunk
            for at, chunk in zip((1, 3, 5), shift[:0:-1], strict=True)
        }
        assert alignment.reductions == whole | (
            {ends[7]: shift[0]} if rank == 0 else {}
        )


def test_orders_of_ranks_take_the_same_time_on_a_flat_fabric() -> None:
    """Where all GPUs are equally far from each other, it does not matter which of them are a stage's or a replica's."""

    def time(order: str) -> float:
        parallel = LAYOUT | {"tp": 2, "data_parallel": "zero1", "order": order}
        return predict(
            scenario(parallel, {"global_batch": 8}, OVERLAP, **WIDE)
        ).step_time

    default = time("tp-cp-ep-dp-pp")
    assert time("tp-cp-ep-pp-dp") == pytest.approx(default, rel=1e-9)
    assert time("dp-pp-tp") == pytest.approx(default, rel=1e-9)
