"""Laws of collective plans, and their accuracy on measured rows that were not fitted."""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.fit.calibrate_collectives import FILES, UNALIGNED, read
from prestep.sim.collectives import machine
from prestep.sim.collectives.algorithms import pairwise, tree
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl.protocols import aligned, first_channel, used
from prestep.sim.collectives.nccl.search import search
from prestep.sim.collectives.nccl.tuner import candidates
from prestep.sim.collectives.plan import OPS
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.exchanges import columns, table
from prestep.topologies import load_cluster
from prestep.validation.formats import collective_rows
from tests.sample import together
from tests.sim import transfers
from tests.sim.transfers import replay

#: Ranks' parts do not begin at multiples of 16 bytes.
FABRICS = ("h200-host-2", "h200-host-4", "dgx-h200")


@lru_cache
def cluster(name: str) -> Any:
    return load_cluster(name)


def seconds(op: str, size: float, name: str = "h200-host-4", **nccl: Any) -> float:
    fabric = cluster(name)
    return plan_collective(op, size, fabric.gpus, fabric, Nccl(**nccl)).duration(
        fabric.links.bandwidth
    )


@together(("op", "name"), [*itertools.product(OPS, FABRICS)])
def test_what_is_sent_is_received(op: str, name: str) -> None:
    """Bytes into every NVSwitch equal bytes out, and the GPUs send what the GPUs receive."""
    fabric = cluster(name)
    plan = plan_collective(op, 2.0**24, fabric.gpus, fabric)
    balance: dict[str, float] = {}
    for link, amount in zip(plan.links, plan.usage, strict=True):
        balance[fabric.links.src[link]] = (
            balance.get(fabric.links.src[link], 0.0) - amount
        )
        balance[fabric.links.dst[link]] = (
            balance.get(fabric.links.dst[link], 0.0) + amount
        )
    assert sum(balance.values()) == pytest.approx(0)
    assert all(
        value == pytest.approx(0) for node, value in balance.items() if "switch" in node
    )


@pytest.mark.parametrize("name", FABRICS)
def test_a_ring_all_reduce_sends_the_lower_bound(name: str) -> None:
    """2 (n - 1) / n bytes per payload byte leave every GPU, before headers (Patarasuk and Yuan, 2009)."""
    fabric = cluster(name)
    n = len(fabric.gpus)
    plan = plan_collective(
        "all_reduce", 2.0**30, fabric.gpus, fabric, Nccl(algo="ring", proto="Simple")
    )
    leaving = sum(
        u
        for link, u in zip(plan.links, plan.usage, strict=True)
        if fabric.links.src[link] == fabric.gpus[0]
    )
    assert leaving * 0.934 == pytest.approx(2 * (n - 1) / n)


@given(
    op=st.sampled_from(OPS), size=st.floats(1, 2.0**34), name=st.sampled_from(FABRICS)
)
def test_never_faster_than_the_links(op: str, size: float, name: str) -> None:
    """Latency and the busiest link's bytes over its bandwidth bound every plan from below."""
    fabric = cluster(name)
    plan = plan_collective(op, size, fabric.gpus, fabric)
    busiest = np.max(plan.usage / fabric.links.bandwidth[plan.links])
    assert plan.latency > 0 and plan.rate_cap > 0
    assert plan.duration(fabric.links.bandwidth) >= (plan.latency + size * busiest) * (
        1 - 1e-9
    )


def parts(op: str, size: float, name: str) -> int:
    """Channels that carry one message of an operation among all GPUs."""
    fabric, wanted = cluster(name), Nccl()
    group = group_of(fabric, fabric.gpus, wanted)
    graph = search(group, fabric.gpu_model, wanted, fabric)
    table = machine.of(fabric)
    return pairwise.Messages(op, size, group, graph, table, wanted).parts


@example(op="all_to_all", size=357913943.0, factor=1.5, name="h200-host-2")
@given(
    op=st.sampled_from(OPS),
    size=st.floats(1, 2.0**33),
    factor=st.floats(1, 4),
    name=st.sampled_from(FABRICS),
)
def test_more_bytes_are_never_faster_within_one_choice(
    op: str, size: float, factor: float, name: str
) -> None:
    """Time grows with size as long as algorithm, protocol and channels stay (NCCL's own switches may jump).

    So do the channels of each message of an all-to-all, and parts that are no multiples of 16 bytes: they were measured to be slower.
    """
    fabric = cluster(name)
    n = len(fabric.gpus)
    if aligned(size, n) != aligned(size * factor, n):
        return
    if op in pairwise.MANY and parts(op, size, name) != parts(op, size * factor, name):
        return
    small, large = (
        plan_collective(op, s, fabric.gpus, fabric) for s in (size, size * factor)
    )
    if (small.algo, small.proto, small.channels) == (
        large.algo,
        large.proto,
        large.channels,
    ):
        bandwidth = fabric.links.bandwidth
        assert large.duration(bandwidth) >= small.duration(bandwidth) * (1 - 1e-9)


@together("op", OPS)
def test_more_bandwidth_is_never_slower(op: str) -> None:
    """Twice the NVLink bandwidth makes no size slower under one protocol (NCCL's own choice is only an estimate)."""
    faster = load_cluster("h200-host-4", overrides={"nvlink.bandwidth": "2x"})
    for proto in ("LL", "LL128", "Simple"):
        wanted = {"algo": "ring", "proto": proto}
        for size in 2.0 ** np.arange(10, 33, 2):
            plan = plan_collective(op, size, faster.gpus, faster, Nccl(**wanted))  # type: ignore[arg-type]
            assert plan.duration(faster.links.bandwidth) <= seconds(
                op, size, **wanted
            ) * (1 + 1e-9)


def test_longer_links_cost_their_latency_at_every_hop() -> None:
    """One microsecond more per link is two per hop, and six hops make an all-reduce of four."""
    slower = load_cluster("h200-host-4", overrides={"nvlink.latency": "1.3 us"})
    plan = plan_collective("all_reduce", 1024, slower.gpus, slower)
    assert plan.duration(slower.links.bandwidth) - seconds(
        "all_reduce", 1024
    ) == pytest.approx(12e-6)


def test_a_ring_s_steps_are_what_grows_of_its_latency() -> None:
    """A ring of n hosts takes its launch once, and every host adds as many steps of each kind; Simple has no flags."""
    plans = []
    for hosts in (4, 8, 16):
        fabric = load_cluster("rail-h100", hosts=hosts)
        ring = Nccl(algo="ring", proto="LL128")
        plans.append(plan_collective("all_gather", 2.0**30, fabric.gpus, fabric, ring))
    launch = [plan.latency - plan.hops for plan in plans]
    assert launch == pytest.approx([launch[0]] * 3)
    few, some, many = (plan.hops for plan in plans)
    assert many - some == pytest.approx(2 * (some - few))
    simple = Nccl(algo="ring", proto="Simple")
    assert plan_collective("all_gather", 2.0**30, fabric.gpus, fabric, simple).hops == 0


@pytest.mark.parametrize(
    "op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv"]
)
def test_the_order_of_ranks_changes_nothing(op: str) -> None:
    """Every permutation of the four GPUs takes the same time."""
    fabric = cluster("h200-host-4")
    times = {
        round(
            plan_collective(op, 2.0**26, ranks, fabric).duration(
                fabric.links.bandwidth
            ),
            15,
        )
        for ranks in itertools.permutations(fabric.gpus)
    }
    assert len(times) == 1


def test_the_same_question_gives_the_same_plan() -> None:
    """Plans are remembered."""
    fabric = cluster("h200-host-4")
    assert plan_collective("all_reduce", 1e6, fabric.gpus, fabric) is plan_collective(
        "all_reduce", 1e6, fabric.gpus, fabric
    )


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16])
def test_every_rank_ends_with_every_contribution(n: int) -> None:
    """Ring and trees, played chunk by chunk, all-reduce, gather and scatter correctly."""
    everyone = set(range(n))
    mine = [{c: {r} for c in range(n)} for r in range(n)]
    assert all(
        rank[c] == everyone
        for rank in replay(transfers.ring("all_reduce", n), mine)
        for c in range(n)
    )
    scattered = replay(
        transfers.ring("reduce_scatter", n),
        [{c: {r} for c in range(n)} for r in range(n)],
    )
    assert all(scattered[r][r] == everyone for r in range(n))
    gathered = replay(transfers.ring("all_gather", n), [{r: {r}} for r in range(n)])
    assert all(rank == {c: {c} for c in range(n)} for rank in gathered)
    trees = replay(
        transfers.tree("all_reduce", n), [{0: {r}, 1: {r}} for r in range(n)]
    )
    assert all(rank[0] == rank[1] == everyone for rank in trees)
    assert (
        replay(transfers.ring("reduce", n), [{0: {r}} for r in range(n)])[0][0]
        == everyone
    )
    assert all(
        r[0] == {0}
        for r in replay(
            transfers.ring("broadcast", n), [{0: {0}}, *({} for _ in range(n - 1))]
        )
    )


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_all_to_all_delivers_every_chunk_once(n: int) -> None:
    """Rank q ends with chunk r * n + q of every r; each round sends and receives one chunk per rank."""
    rounds = transfers.pairwise("all_to_all", n)
    arrived = {(s.dst, s.chunk) for sends in rounds for s in sends}
    assert arrived == {(q, r * n + q) for q in range(n) for r in range(n) if r != q}
    assert all(len({s.dst for s in sends}) == n for sends in rounds)


@together("n", range(2, 65))
def test_ranks_are_inner_in_one_tree_only(n: int) -> None:
    """In the two trees no rank has children in both, but for roots, and no rank more than two."""
    first = tree.binary_tree(n)
    second = tree.mirrored(first, n)
    for edges in (first, second):
        assert len(edges) == n - 1
        assert max(sum(parent == r for _, parent in edges) for r in range(n)) <= 2
    both = {p for _, p in first} & {p for _, p in second}
    assert len(both) <= 2


def test_the_choice_is_nccl_s() -> None:
    """The table of the measured host's NCCL_DEBUG log (microseconds and GB/s), and the switch points it implies."""
    fabric = cluster("h200-host-4")
    logged = {
        ("tree", "LL"): (10.4, 43.6),
        ("tree", "LL128"): (21.5, 128.8),
        ("tree", "Simple"): (32.4, 165.6),
        ("ring", "LL"): (10.2, 94.0),
        ("ring", "LL128"): (25.4, 220.8),
        ("ring", "Simple"): (28.8, 240.0),
    }
    for row in candidates("all_reduce", 2.0**40, fabric.gpus, fabric):
        latency, bandwidth = logged[row.algo, row.proto]
        assert (row.latency * 1e6, row.bandwidth / 1e9) == pytest.approx(
            (latency, bandwidth), abs=0.06
        )
    chosen = [
        plan_collective("all_reduce", 2.0**k, fabric.gpus, fabric).proto
        for k in (21, 22, 23, 24)
    ]
    assert chosen == ["LL", "LL128", "LL128", "Simple"]


def test_channels_follow_nccl_s_rules() -> None:
    """The channel counts of the fact sheet: eight GPUs, 1 KiB to 1 MiB; rounds start at bit-reversed channels."""
    sizes = (1024, 32_768, 262_144)
    assert [used("all_reduce", s, 8, "ring", "LL", 24)[0] for s in sizes] == [1, 1, 8]
    assert used("all_reduce", 2.0**28, 8, "ring", "Simple", 24) == (24, 512)
    assert [first_channel(r, 32) for r in range(8)] == [0, 16, 8, 24, 4, 20, 12, 28]


def test_settings_are_honoured() -> None:
    """Forced algorithm, protocol and channels are what runs; what does not exist is an error."""
    fabric = cluster("h200-host-4")
    forced = Nccl(algo="tree", proto="LL128", max_channels=4)
    plan = plan_collective("all_reduce", 2.0**26, fabric.gpus, fabric, forced)
    assert (plan.algo, plan.proto, plan.channels) == ("tree", "LL128", 4)
    assert plan_collective(
        "all_gather", 1e6, fabric.gpus, fabric, Nccl(algo="tree")
    ).notes
    for op, ranks, nccl in (
        ("all_redcue", fabric.gpus, Nccl()),
        ("all_reduce", ("gpu0", "gpu9"), Nccl()),
        ("all_reduce", ("gpu0", "gpu0"), Nccl()),
        ("all_reduce", fabric.gpus, Nccl(algo="nvls")),
        ("send", ("gpu0",), Nccl()),
    ):
        with pytest.raises(InputError):
            plan_collective(op, 1e6, ranks, fabric, nccl)
    with pytest.raises(InputError):
        plan_collective("all_reduce", float("nan"), fabric.gpus, fabric)


@lru_cache
def errors() -> dict[tuple[str, bool], list[float]]:
    """Signed relative errors of the measured rows by series and whether they were held out."""
    found: dict[tuple[str, bool], list[float]] = {}
    for row in read():
        fabric = cluster(f"h200-host-{row.ranks}")
        op, ranks = collective_rows.members(row, fabric.gpus)
        plan = plan_collective(op, row.size, ranks, fabric, row.wanted)
        error = plan.duration(fabric.links.bandwidth) / row.time - 1
        found.setdefault((row.series, row.held_out), []).append(error)
    return found


@together("held_out", [False, True])
@together(
    ("series", "tolerance"),
    [
        ("default, 1 MiB and more", 0.05),
        ("default, below 1 MiB", 0.10),
        ("channel-limited", 0.07),
        *(
            (f"{a}-{p}", 0.10)
            for a in ("Ring", "Tree")
            for p in ("LL", "LL128", "Simple")
        ),
    ],
)
def test_measured_times_are_predicted(
    series: str, tolerance: float, held_out: bool
) -> None:
    """Mean absolute error on the measured H200 rows, fitted and held out apart."""
    assert float(np.abs(errors()[series, held_out]).mean()) <= tolerance


def test_the_sweep_has_nccl_tests_columns() -> None:
    """Sizes double; busbw is algbw by nccl-tests' factor; JSON is plain."""
    rows = table.sweep(cluster("h200-host-4"), min_bytes=1024, max_bytes=4096)
    assert [row.plan.size for row in rows] == [1024, 2048, 4096]
    assert all(row.busbw == pytest.approx(1.5 * row.algbw) for row in rows)
    assert json.loads(json.dumps([row.to_json() for row in rows]))[0]["algo"] == "ring"
    assert "bound by" in columns.render(rows)
    with pytest.raises(InputError):
        table.sweep(cluster("h200-host-4"), ranks=5)


def test_what_nccl_compared_is_listed_where_it_is_asked_for() -> None:
    """`explain` lists every candidate, best first, the chosen one at its head, and changes no time."""
    fabric = cluster("h200-host-4")
    sizes = {"min_bytes": 1024, "max_bytes": 4096}
    plain = table.sweep(fabric, **sizes)
    explained = table.sweep(fabric, **sizes, explain=True)
    assert [row.time for row in plain] == [row.time for row in explained]
    assert not any(row.candidates for row in plain)
    for row in explained:
        best, *others = row.candidates
        assert (best.algo, best.proto) == (row.plan.algo, row.plan.proto)
        assert others and all(best.time <= other.time for other in others)
    assert "NCCL's estimate" in columns.render(explained, explain=True)


def test_the_cases_are_there() -> None:
    """The gate reads the measured rows of the repository."""
    assert all(Path(file).is_file() for file in (*FILES, UNALIGNED))


@together("op", ["all_gather", "reduce_scatter", "all_to_all"])
@together("ranks", [2, 3, 4])
def test_parts_that_are_not_aligned_are_slower(op: str, ranks: int) -> None:
    """A CTA copies element by element where a rank's part does not begin at a multiple of 16 bytes."""
    fabric = cluster("h200-host-4")
    base = ranks * 2**24
    even, odd = (
        plan_collective(op, size, fabric.gpus[:ranks], fabric).duration(
            fabric.links.bandwidth
        )
        for size in (base, base + 2 * ranks)
    )
    assert odd > 1.02 * even


def test_an_all_reduce_cuts_its_own_parts() -> None:
    """Its chunks are NCCL's to choose, so a size that ranks do not divide costs nothing."""
    fabric = cluster("h200-host-4")
    even, odd = (
        plan_collective("all_reduce", size, fabric.gpus, fabric).duration(
            fabric.links.bandwidth
        )
        for size in (2**26, 2**26 + 2)
    )
    assert odd == pytest.approx(even, rel=1e-6)
