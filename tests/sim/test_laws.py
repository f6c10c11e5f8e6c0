"""Laws of a predicted step, on small models: bounds, monotony, folding, relabelling, conservation, determinism."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prestep.sim import predict
from prestep.sim.analysis.arrow import to_arrow
from prestep.sim.analysis.report import work_of_step
from prestep.sim.analysis.spans import timeline_of
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.graph.opgraph import COMM, KERNEL
from prestep.sim.planning.planned import LAUNCH_LATENCY, slowest_of
from prestep.sim.predict import load_fabric
from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric
from tests.executed import Executed, executed, reported
from tests.sample import together
from tests.sim.timeline_laws import check
from tests.workloads.small import EXPERTS, MLP, TRANSFORMER, scenario

GOLDEN = Path(__file__).parent / "goldens" / "mlp-ddp2.txt"
SMALL = TRANSFORMER | {"layers": 2}
# Wide enough that its communication is more than latency.
WIDE = SMALL | {"hidden": 1024, "ffn": 4096, "vocab": 8192}
WAYS: dict[str, dict[str, Any]] = {
    "single": {"model": SMALL},
    "mlp-ddp4": {"model": {"kind": "mlp", "sizes": [2048, 2048, 2048, 8]}, "dp": 4},
    "ddp4": {"model": WIDE, "dp": 4},
    "ddp4-no-overlap": {"model": WIDE, "dp": 4, "data_parallel": "ddp-no-overlap"},
    "fsdp4": {"model": WIDE, "dp": 4, "data_parallel": "fsdp"},
    "tp4": {"model": WIDE, "tp": 4},
    "tp2-sp": {"model": WIDE, "tp": 2, "sequence_parallel": True},
    "tp2-sp-compiled": {
        "model": WIDE,
        "training": {"seq_len": 1024, "framework": "pytorch-compiled"},
        "tp": 2,
        "sequence_parallel": True,
    },
    "pp2": {"model": WIDE, "pp": 2, "microbatches": 4},
    "pp2-zero-bubble": {
        "model": WIDE,
        "pp": 2,
        "microbatches": 4,
        "schedule": "zero-bubble",
    },
    "pp2-dp2": {"model": WIDE, "pp": 2, "dp": 2, "microbatches": 2},
    "pp2-tp2": {"model": WIDE, "pp": 2, "tp": 2, "microbatches": 2},
    "hsdp2x2": {"model": WIDE, "dp": 4, "data_parallel": "fsdp", "fsdp_shards": 2},
    "pp2-fsdp2": {
        "model": WIDE,
        "pp": 2,
        "dp": 2,
        "microbatches": 4,
        "data_parallel": "fsdp",
    },
    "cp2-fsdp2": {"model": WIDE, "cp": 2, "dp": 2, "data_parallel": "fsdp"},
    "fsdp2-tp2": {"model": WIDE, "dp": 2, "tp": 2, "data_parallel": "fsdp"},
    "ep4": {
        "model": EXPERTS | {"layers": 2},
        "dp": 4,
        "ep": 4,
        "data_parallel": "none",
    },
}
SPREAD = [way for way in WAYS if way != "single"]
every_way = pytest.mark.parametrize("way", WAYS)
every_spread_way = pytest.mark.parametrize("way", SPREAD)


def said(way: str) -> Scenario:
    """A scenario bound by GPUs and links: its host is so fast that it hides nothing."""
    s = scenario(**{"training": {"seq_len": 1024}, **WAYS[way]})
    return replace(s, cluster=replace(s.cluster, host_factor=0.01))


@lru_cache
def done(way: str) -> Executed:
    return executed(said(way))


def step_time(s: Scenario) -> float:
    return reported(executed(s)).step_time


def changed(s: Scenario, **links: str) -> Scenario:
    """The scenario with its NVLinks changed."""
    return replace(
        s,
        cluster=replace(
            s.cluster, set={f"nvlink.{key}": value for key, value in links.items()}
        ),
    )


@every_way
def test_time_runs_forward(way: str) -> None:
    """No stream overlaps itself and nothing starts before it is launched."""
    check(timeline_of(done(way).lowered.graph, done(way).run))


def grow(s: Scenario) -> list[float]:
    """Step times on links ever wider."""
    return [
        step_time(changed(s, bandwidth=f"{factor}x")) for factor in (0.1, 0.5, 1, 2, 10)
    ]


@every_spread_way
def test_more_bandwidth_is_never_slower(way: str) -> None:
    """The step gets no longer as links get wider, whatever the protocol."""
    s = said(way)
    for proto in ("LL128", "Simple"):
        times = grow(replace(s, nccl=replace(s.nccl, algo="ring", proto=proto)))
        assert all(b <= a * (1 + 1e-9) for a, b in pairwise(times)), times
        assert times[0] > 1.05 * times[-1]


@every_spread_way
def test_more_bandwidth_costs_little_where_nccl_chooses(way: str) -> None:
    """NCCL chooses by an estimate: where it goes over to another protocol a step may lose 2 %, no more."""
    assert all(b <= a * 1.02 for a, b in pairwise(grow(said(way))))


@every_spread_way
def test_less_latency_is_never_slower(way: str) -> None:
    """The step gets no longer as links get quicker to answer."""
    times = [
        step_time(changed(said(way), latency=f"{factor}x"))
        for factor in (100, 10, 1, 0.1)
    ]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(times)), times


@together("way", WAYS)
def test_never_faster_than_the_roofline(way: str) -> None:
    """Not than all model flops at the peak of all GPUs; nor than a rank's kernels' bytes and flops."""
    d = done(way)
    result = reported(d)
    _, flops = work_of_step(d.planned)
    assert result.step_time > flops / (d.gpu.peak["bf16"] * d.lowered.layout.world)
    assert 0 < result.mfu < 1
    spans = result.timeline
    assert spans is not None
    assert (
        spans["end"] - spans["start"] >= spans["flops"] / d.gpu.peak["bf16"] - 1e-12
    ).all()


@together("way", WAYS)
def test_never_faster_than_its_busiest_stream(way: str) -> None:
    """The run takes at least the time of any stream's operations alone: kernels, alpha-beta times of transfers."""
    d = done(way)
    for p, start in zip(d.lowered.graph.programs, d.run.start, strict=True):
        duration = d.planned.durations
        alone = np.zeros(len(d.lowered.graph.streams))
        for i in range(len(p)):
            if p.kind[i] == KERNEL:
                alone[p.stream[i]] += duration[p.payload[i]]
            elif p.kind[i] == COMM:
                plans = [d.run.plans[c] for c in p.parts[int(p.payload[i])]]
                alone[p.stream[i]] += max(
                    x.duration(d.fabric.links.bandwidth) for x in plans
                )
        assert d.run.finished >= len(start) * alone.max() + LAUNCH_LATENCY


@together("way", WAYS)
def test_no_transfer_is_faster_than_its_alpha_beta_time(way: str) -> None:
    """From the last arrival to the end: latency and size over the narrowest link, and its share of that link only."""
    d = done(way)
    for p, end, ready in zip(
        d.lowered.graph.programs, d.run.end, d.run.ready, strict=True
    ):
        for g, began in ready.items():
            i = g % len(p)
            plans = [d.run.plans[c] for c in p.parts[int(p.payload[i])]]
            assert (
                end.ravel()[g] - began
                >= min(x.duration(d.fabric.links.bandwidth) for x in plans) - 1e-12
            )


@pytest.mark.parametrize("way", ["ddp4-no-overlap", "tp4"])
def test_exposed_communication_is_at_least_its_alpha_beta_time(way: str) -> None:
    """Where nothing overlaps, the step is at least its kernels and its transfers, one after the other."""
    d = done(way)
    (p,) = d.lowered.graph.programs
    duration = d.planned.durations
    alone = float(duration[p.payload[p.kind == KERNEL]].sum())
    alone += sum(
        d.run.plans[c].duration(d.fabric.links.bandwidth)
        for part in p.parts
        for c in part
    )
    assert reported(d).step_time >= alone


def unfolded(way: str) -> Scenario:
    """Every rank simulated: rank 0 is "slow" by exactly as much as all of them."""
    s, d = said(way), done(way)
    p = s.parallel
    together = slowest_of(p.dp * p.cp * p.tp, d.gpu.spread)
    return replace(s, faults=replace(s.faults, slow_rank=0, slow_factor=together))


@every_spread_way
def test_folded_is_unfolded(way: str) -> None:
    """Simulating one of the ranks that do the same gives, for all of them, what simulating each gives."""
    folded, all_of_them = reported(done(way)), executed(unfolded(way))
    assert len(all_of_them.lowered.graph.programs) == all_of_them.lowered.layout.world
    apart = reported(all_of_them)
    assert apart.step_time == pytest.approx(folded.step_time, rel=1e-9)
    assert apart.step_time_by_rank == pytest.approx(folded.step_time_by_rank, rel=1e-9)
    assert all_of_them.run.bytes.carried == pytest.approx(
        done(way).run.bytes.carried, rel=1e-9
    )
    assert apart.peak_memory == folded.peak_memory


@pytest.mark.parametrize("way", ["ddp4", "pp2-dp2", "fsdp2-tp2"])
def test_the_same_scenario_gives_the_same_bytes(way: str) -> None:
    """Nothing depends on chance: timeline and result are equal to the last bit."""
    first, second = (reported(executed(said(way))) for _ in range(2))
    assert first.timeline is not None and second.timeline is not None
    assert to_arrow(first.timeline).equals(to_arrow(second.timeline))
    assert replace(first, timeline=None) == replace(second, timeline=None)


@pytest.mark.parametrize("model", [SMALL, MLP], ids=["transformer", "mlp"])
@pytest.mark.parametrize("mode", ["ddp", "ddp-no-overlap", "fsdp"])
def test_parallelism_of_degree_one_is_the_identity(
    model: dict[str, Any], mode: str
) -> None:
    """One rank needs nobody: no communication, and the time of a single GPU."""
    alone, one = (
        executed(scenario(model)),
        executed(scenario(model, dp=1, data_parallel=mode)),
    )
    assert one.lowered.graph.comms == ()
    assert reported(one).step_time == reported(alone).step_time
    assert reported(one).peak_memory == reported(alone).peak_memory


def placed(fabric: Fabric, order: tuple[int, ...]) -> Fabric:
    """The fabric with rank r on its GPU `order[r]`."""
    moved = replace(fabric)
    moved.__dict__["gpus"] = tuple(fabric.gpus[i] for i in order)
    return moved


@every_spread_way
def test_placement_on_a_symmetric_host_changes_nothing(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All GPUs of a host behind NVSwitches are alike: which rank has which does not matter."""
    usual = reported(done(way)).step_time  # before, for other tests have it, too
    monkeypatch.setattr(
        predict, "load_fabric", lambda s: placed(load_fabric(s), (2, 0, 3, 1))
    )
    assert step_time(said(way)) == pytest.approx(usual, rel=1e-9)


def calls(d: Executed) -> Iterator[tuple[int, str, int]]:
    """(rank, stream, communication) in the order in which each rank issues them."""
    for p in d.lowered.graph.programs:
        for i in np.flatnonzero(p.kind == COMM):
            for c in p.parts[int(p.payload[i])]:
                yield p.rank, d.lowered.graph.streams[p.stream[i]], c


@every_spread_way
def test_every_communication_has_exactly_its_members(way: str) -> None:
    """Each is called once by every member, in one order by all members of a group on a stream."""
    d = executed(unfolded(way), steps=1)
    comms, callers = d.lowered.graph.comms, defaultdict(list)
    orders: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank, _, c in calls(d):
        callers[c].append(rank)
        if comms[c].op != "send":
            orders[comms[c].groups[0]][rank].append(c)
    assert {c: sorted(ranks) for c, ranks in callers.items()} == {
        c: sorted(x.groups[0]) for c, x in enumerate(comms)
    }
    assert all(len(x.groups) == 1 and x.arrivals == len(x.groups[0]) for x in comms)
    for group, by_rank in orders.items():
        assert (
            set(by_rank) == set(group)
            and len({tuple(order) for order in by_rank.values()}) == 1
        )


@pytest.mark.parametrize("way", ["pp2", "pp2-zero-bubble", "pp2-dp2", "pp2-tp2"])
def test_bytes_sent_are_bytes_received(way: str) -> None:
    """Activations go down the pipeline and gradients of the same size come back, once per microbatch."""
    graph = executed(unfolded(way), steps=1).lowered.graph
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for c in graph.comms:
        if c.op == "send":
            sent[c.groups[0][0], c.groups[0][1]] += c.size
    assert sent and all(sent[b, a] == size for (a, b), size in sent.items())
    s = said(way)
    activation = 2.0 * s.training.micro_batch * s.training.seq_len * WIDE["hidden"]
    assert set(sent.values()) == {activation * (s.parallel.microbatches or 0)}


@together("way", SPREAD)
def test_links_carry_the_bytes_of_all_transfers(way: str) -> None:
    """What the links carried in three steps is what the plans put on them, and every plan uses its links."""
    d = done(way)
    put = np.zeros(len(d.fabric.links.bandwidth))
    for p in d.run.plans:
        assert (p.usage > 0).all()
        np.add.at(put, p.links, p.usage * p.size)
    assert d.run.bytes.carried == pytest.approx(3 * put, rel=1e-9)


@pytest.mark.parametrize("proto", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100", "mi300x"])
def test_links_count_the_data_of_rings(cluster: str, proto: str) -> None:
    """A ring all-reduce of S bytes sends 2 S (n - 1) / n from every rank, whatever flags and headers go with it."""
    s = scenario(model=WIDE, dp=8)
    s = replace(
        s,
        cluster=replace(s.cluster, name=cluster),
        nccl=replace(s.nccl, algo="ring", proto=proto),
    )
    d = executed(s)
    sizes = [c.size for c in d.lowered.graph.comms if c.op == "all_reduce"]
    expected = 3 * sum(2 * size * 7 / 8 for size in sizes)
    source = np.array([str(name) for name in d.fabric.links.src])
    for gpu in d.fabric.gpus:
        assert d.run.bytes.data[source == gpu].sum() == pytest.approx(
            expected, rel=1e-9
        )
    result = reported(d)
    kind = result.link_kinds[0]
    hops = 1 if cluster == "mi300x" else 2  # through a switch or not
    assert kind.bytes == pytest.approx(8 * hops * expected, rel=1e-9)
    assert all(0 < link.utilisation <= 1 for link in result.links)
    # What protocols add is not data, but fills the link.
    added = (
        d.run.bytes.carried[d.run.bytes.carried > 0]
        / d.run.bytes.data[d.run.bytes.carried > 0]
    )
    assert (added > 1.0).all()


@together("way", SPREAD)
def test_data_is_no_more_than_what_links_carry(way: str) -> None:
    """Everything but copies has flags or headers; links of other hosts that stand for the same count both alike."""
    run = done(way).run
    assert (run.bytes.data <= run.bytes.carried * (1 + 1e-12)).all()
    assert (run.bytes.data_everywhere <= run.bytes.everywhere * (1 + 1e-12)).all()
    assert ((run.bytes.data > 0) == (run.bytes.carried > 0)).all()


def test_a_slow_rank_slows_all_that_wait_for_it() -> None:
    """One GPU at half speed: the step of DDP is longer on every rank, about twice its kernels' time at most."""
    s = said("ddp4")
    slow = reported(
        executed(replace(s, faults=replace(s.faults, slow_rank=2, slow_factor=2.0)))
    )
    base = reported(done("ddp4")).step_time
    assert all(base <= time <= 2 * base for time in slow.step_time_by_rank.values())


def drawn() -> str:
    """The last step of a two-layer perceptron on two GPUs, times in microseconds from its first kernel."""
    d = executed(
        scenario({"kind": "mlp", "sizes": [4096, 4096, 8]}, {"micro_batch": 256}, dp=2)
    )
    last = timeline_of(d.lowered.graph, d.run).of_step(2)
    begin = last["start"].min()
    stream = last["stream"].astype(str)
    order = np.lexsort((last["end"], stream, last["rank"], last["start"]))
    return table(last.select(order), begin)


def table(spans: Timeline, begin: float) -> str:
    lines = [
        f"{'rank':>4}  {'stream':<8} {'name':<16} {'phase':<14} {'start us':>9} {'us':>8} {'bytes':>10}"
    ]
    for row in range(len(spans)):
        text = {
            name: spans[name][row]
            for name in ("rank", "stream", "name", "phase", "start", "end", "bytes")
        }
        start, length = (
            (text["start"] - begin) * 1e6,
            (text["end"] - text["start"]) * 1e6,
        )
        size = f"{text['bytes']:10.0f}" if text["bytes"] else " " * 10
        lines.append(
            f"{text['rank']:4}  {text['stream']:<8} {text['name']:<16} {text['phase']:<14} {start:9.1f} {length:8.1f} {size}".rstrip()
        )
    return "\n".join(lines) + "\n"


def test_golden_timeline() -> None:
    """A step looks as in goldens/; after a change that is meant: `python -m tests.sim.test_laws`, and read the diff."""
    assert drawn() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(drawn(), encoding="utf-8")
