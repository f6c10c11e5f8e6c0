"""NCCL over TCP sockets: what proxy threads send, and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lab import CASES
from prestep.cli import main
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import socket
from prestep.sim.engine.fluid import cap_of
from prestep.topologies import load_cluster
from tests.conftest import ReportOf

FOUR, TWO = load_cluster("h200-leafspine-4x1"), load_cluster("h200-leafspine-2x2")
KIB = 1024.0


def plain(fabric: Any) -> Any:
    """The cluster without token buckets."""
    facts = {key: fact for key, fact in fabric.facts.items() if key != "token_bucket"}
    return fabric.with_facts(f"plain {fabric.name}", facts)


def time(op: str, size: float, fabric: Any, **said: Any) -> float:
    plan = plan_collective(op, size, fabric.gpus, fabric, Nccl(**said))
    return float(plan.duration(fabric.links.bandwidth))


def traffic(op: str, size: float, fabric: Any, **said: Any) -> socket.Traffic:
    wanted = Nccl(**said)
    plan = plan_collective(op, size, fabric.gpus, fabric, wanted)
    found = socket.traffic_of(
        plan, group_of(fabric, fabric.gpus, wanted), fabric, wanted
    )
    assert found is not None
    return found


@given(
    st.sampled_from(
        ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv"]
    ),
    st.sampled_from([FOUR, TWO]),
    st.integers(18, 30),
)
def test_threads_send_every_byte(op: str, fabric: Any, log: int) -> None:
    """Rounds times bytes of a round are what a rank has to send to other hosts by rings and messages."""
    size = 2.0**log
    found = traffic(op, size, fabric, algo="ring", proto="Simple")
    hosts = group_of(fabric, fabric.gpus).nodes
    share = {
        "all_reduce": 6 / 4,
        "all_to_all": (4 - 4 / hosts) / 4,
        "sendrecv": 1.0,
    }.get(op, 3 / 4)
    assert found.rounds * found.amount == pytest.approx(size * share)
    assert found.part * found.data >= found.amount * (1 - 1e-9)


@given(
    st.sampled_from(
        [
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "broadcast",
            "all_to_all",
            "sendrecv",
            "send",
        ]
    ),
    st.sampled_from([FOUR, TWO, plain(FOUR), plain(TWO)]),
    st.integers(3, 30),
    st.sampled_from([None, "LL", "Simple"]),
)
def test_never_faster_than_its_bytes_or_a_smaller_one(
    op: str, fabric: Any, log: int, proto: str | None
) -> None:
    """Time is at least a launch and the bytes at the port's rate; twice the size never takes less on the ring."""
    size = 2.0**log
    algo = {} if op in ("all_to_all", "sendrecv", "send") else {"algo": "ring"}
    took = time(op, size, fabric, proto=proto, **algo)
    plan = plan_collective(op, size, fabric.gpus, fabric, Nccl(proto=proto, **algo))
    least = size * max(plan.usage / fabric.links.bandwidth[plan.links])
    assert took >= max(least * (1 - 1e-9), 8e-6)
    if proto or not algo:
        assert time(op, 2 * size, fabric, proto=proto, **algo) >= took * (1 - 1e-9)


def test_small_data_travels_with_its_header() -> None:
    """Between 64 and 65 bytes of a rank's part an all-gather with LL, which doubles them, gets dearer by a half."""
    inline, apart = (
        time("all_gather", 4 * part, FOUR, algo="ring", proto="LL") for part in (64, 72)
    )
    tcp = socket.tcp_of(FOUR)
    assert apart - inline == pytest.approx(
        3 * (1 - tcp.control) * (tcp.send + tcp.receive), rel=0.1
    )


def test_small_chunks_have_an_empty_second_half() -> None:
    """Up to 32 KiB of a channel go in one message and an empty one follows; above, in two; with LL always in one."""
    said = {"algo": "ring", "proto": "Simple", "min_channels": 1, "max_channels": 1}
    small, large = (
        traffic("all_gather", 4 * chunk * KIB, FOUR, **said) for chunk in (32, 64)
    )
    assert (small.data, small.empty, small.part) == (1, 1, 32 * KIB)
    assert (large.data, large.empty, large.part) == (2, 0, 32 * KIB)
    assert traffic("all_gather", 4 * KIB, FOUR, algo="ring", proto="LL").empty == 0


def test_a_thread_that_also_receives_needs_longer() -> None:
    """Hosts of one GPU send and receive in one thread; with two GPUs one sends and the other receives."""
    assert (
        traffic("all_gather", 64 * KIB, FOUR).shared
        and not traffic("all_gather", 64 * KIB, TWO).shared
    )
    one = socket.message_time(
        traffic("all_gather", 64 * KIB, FOUR), "Simple", socket.tcp_of(FOUR), Nccl()
    )
    alone = replace(traffic("all_gather", 64 * KIB, FOUR), shared=False)
    assert one[0] > socket.message_time(alone, "Simple", socket.tcp_of(FOUR), Nccl())[0]


def test_loops_lower_the_rate_and_leave_the_port_to_others() -> None:
    """From 2 MiB a rank and channel on, pauses between loops cost a few percent as a cap, not as time on the link."""
    short, long = (
        plan_collective("all_gather", mib * 2.0**20, FOUR.gpus, FOUR) for mib in (4, 64)
    )
    rates = [float(min(FOUR.links.bandwidth[p.links] / p.usage)) for p in (short, long)]
    assert (
        short.rate_cap == pytest.approx(rates[0], rel=1e-6)
        and 0.9 < long.rate_cap / rates[1] < 0.99
    )
    assert short.usage.tolist() == pytest.approx(long.usage.tolist())


def test_kernels_do_not_slow_threads_of_the_cpu() -> None:
    """A cap that comes from proxy threads stays what it is beside kernels; a cap of channels does not."""
    plan = plan_collective("all_gather", 2.0**26, FOUR.gpus, FOUR)
    near = plan_collective("all_gather", 2.0**26, TWO.gpus[:2], TWO)
    assert (
        cap_of(plan, 0.5) == plan.rate_cap and cap_of(near, 0.5) == 0.5 * near.rate_cap
    )


def test_helper_threads_share_large_messages() -> None:
    """Threads copy parts of at least 64 KiB; sockets without threads change nothing; small messages only wait for them."""
    assert socket.helpers(2.0**20, Nccl(nsocks_perthread=8)) == (1.0, 0.0)
    assert socket.helpers(2.0**20, Nccl(socket_nthreads=4)) == (4.0, 2.0)
    assert socket.helpers(2.0**16, Nccl(socket_nthreads=4, nsocks_perthread=4)) == (
        1.0,
        2.0,
    )
    assert socket.helpers(2.0**27, Nccl(socket_nthreads=64, nsocks_perthread=64)) == (
        16.0,
        2.0,
    )
    fast = load_cluster("rail-h100", 2)
    slow, quick = (
        time("all_reduce", 2.0**28, fast, net="socket", socket_nthreads=n)
        for n in (0, 8)
    )
    assert quick < slow / 2
    assert time("all_gather", 8 * KIB, FOUR, socket_nthreads=4) > time(
        "all_gather", 8 * KIB, FOUR
    )


def test_sockets_instead_of_rdma() -> None:
    """[nccl] net = "socket" slows what crosses hosts, several times, and nothing that does not."""
    two, one = load_cluster("rail-h100", 2), load_cluster("rail-h100", 1)
    for size in (2.0**13, 2.0**28):
        assert time("all_reduce", size, two, net="socket") > 1.2 * time(
            "all_reduce", size, two
        )
        assert time("all_reduce", size, one, net="socket") == time(
            "all_reduce", size, one
        )
    same_host = [two.gpus[0], two.gpus[1], two.gpus[8]]
    pair = [
        plan_collective("send", 2.0**20, same_host, two, Nccl(net=net)).latency
        for net in (None, "socket")
    ]
    assert pair[0] == pair[1]


def test_measured_rows_that_no_constant_saw(report_of: ReportOf) -> None:
    """On the emulated network, rows kept apart from the fit are within 7 % in the mean, below and above 1 MiB."""
    cases = [one for one in report_of("collectives-leafspine").cases if not one.fitted]
    for small in (True, False):
        errors = [
            abs(one.prediction.time / one.measured - 1)
            for one in cases
            if (one.size < 2**20) == small
        ]
        assert len(errors) > 15 and sum(errors) / len(errors) < 0.07


def test_the_command_line_knows_the_keys() -> None:
    """A scenario sets them as any other; what NCCL does not have is refused with the choice."""
    run = CliRunner().invoke
    keys = [
        "run",
        "--set",
        "nccl.net=socket",
        "--set",
        "nccl.socket_nthreads=4",
        "--json",
    ]
    assert run(main, keys).exit_code == 0
    wrong = run(
        main, ["run", "--set", "nccl.net=tcp", "--set", "nccl.socket_nthreads=-1"]
    )
    assert (
        wrong.exit_code == 2
        and "socket" in wrong.output
        and "at least 0" in wrong.output
    )
    shown = run(
        main,
        [
            "collective",
            "--cluster",
            "h200-leafspine-2x2",
            "--max-bytes",
            "64",
            "--json",
        ],
    )
    assert shown.exit_code == 0 and json.loads(shown.output)


def test_a_sender_is_done_when_buffers_hold_the_rest() -> None:
    """Its kernel ends as early as measured (sockets/messages.jsonl), and its receiver's no sooner than the bytes."""
    fabric = load_cluster("h200-leafspine-4x1")
    ranks = [fabric.gpus[0], fabric.gpus[2]]
    text = (CASES / "h200" / "sockets" / "messages.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    measured = {
        row["bytes"]: row["ms"] / 1e3
        for row in rows
        if row["kind"] == "message"
        and row["rank"] == 0
        and row["receiver_late"] == 0
        and row["bytes"] >= 4e6
    }
    assert len(measured) == 4
    for size, sender in measured.items():
        plan = plan_collective(
            "send", float(size), ranks, fabric, Nccl(version="2.28.9")
        )
        moving = plan.duration(fabric.links.bandwidth)
        done = moving * (1 - plan.buffered / plan.size)
        assert done == pytest.approx(sender, rel=0.12)
        assert moving >= size / 1.984e9 * (1 - 1e-9)
