"""Ranks whose hosts differ, and processes on the wrong socket: laws of what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.exchanges import collective as report
from prestep.sim.exchanges.table import Row
from prestep.sim.predict import predict, step_time
from prestep.sim.spec.load import load_scenario
from prestep.topologies import load_cluster

TINY = """
[cluster]
name = "dgx-h200"
gpus = 4
[model]
name = "llama3-1b-plain"
layers = 4
vocab = 256
[training]
micro_batch = 1
seq_len = 64
[parallel]
"""
DP, TP = 'dp = 4\ndata_parallel = "ddp"\n', "dp = 1\ntp = 4\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hosts")
    for name, parallel in (("dp", DP), ("tp", TP)):
        (made / f"{name}.toml").write_text(TINY + parallel)
    return made


def seconds(path: Path, *changes: str) -> float:
    return float(step_time(load_scenario(path, changes)))


@settings(max_examples=8, deadline=None)
@given(factors=st.lists(st.floats(0.8, 2.5), min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["dp", "tp"])
def test_a_step_lies_between_those_of_its_fastest_and_its_slowest_host(
    folder: Path, name: str, factors: list[float]
) -> None:
    """Ranks wait for each other, so no step is faster than its fastest host makes it, nor slower than its slowest."""
    path = folder / f"{name}.toml"
    mixed = seconds(path, f"cluster.host_factor_by_rank={factors}")
    least, most = (
        seconds(path, f"cluster.host_factor={f}") for f in (min(factors), max(factors))
    )
    assert least * 0.99 <= mixed <= most * 1.01  # copies in flight change a little


def test_equal_ranks_are_as_one_factor(folder: Path) -> None:
    """A list of one number is that number over the host's factor, and a tensor-parallel group waits for its slowest."""
    path = folder / "tp.toml"
    whole = seconds(path, "cluster.host_factor=1.8")
    halves = "cluster.host_factor=1.2", "cluster.host_factor_by_rank=[1.5]"
    assert seconds(path, *halves) == pytest.approx(whole)
    one = seconds(path, "cluster.host_factor=1", "cluster.host_factor_by_rank=[1, 1.8]")
    assert one == pytest.approx(whole, rel=0.02)


def test_frameworks_that_know_no_ranks_by_host_say_so(folder: Path) -> None:
    """Megatron's step is refused with what to do instead."""
    changes = "training.framework=megatron", "cluster.host_factor_by_rank=[1, 2]"
    result = run(folder / "tp.toml", *changes)
    assert result.exit_code == 2 and "host_factor is that of the slowest" in str(
        result.output
    )


def test_the_wrong_socket_costs_host_time_and_nothing_else(folder: Path) -> None:
    """A step that the host bounds is slower by the host's ratio; one that it does not bound is as it was."""
    tiny = folder / "dp.toml"
    right, wrong = (seconds(tiny, f"cluster.numa={at}") for at in ("local", "wrong"))
    assert 1.05 < wrong / right < 1.12
    large = "training.seq_len=4096", "training.micro_batch=4"
    times = [seconds(tiny, *large, f"cluster.numa={at}") for at in ("local", "wrong")]
    assert times[0] == pytest.approx(times[1], rel=1e-3)


def test_copies_from_the_wrong_socket_share_the_link_between(folder: Path) -> None:
    """What the GPU waits for its data is longer: all ranks of a socket cross one link."""
    data = "dataload.batch_time=1ms", "dataload.workers=16", "dataload.copy=pinned"
    slow = "cluster.set.socket.bandwidth=0.05x"
    loads = [
        predict(load_scenario(folder / "dp.toml", [*data, slow, f"cluster.numa={at}"]))
        for at in ("local", "wrong")
    ]
    copies = [load.effects["dataload"]["copy_time"] for load in loads]
    assert copies[0] < copies[1]


def test_a_host_of_one_socket_has_no_wrong_one(folder: Path) -> None:
    """The mistake names the key, the cluster and what to do."""
    result = run(folder / "dp.toml", "cluster.name=h200-host-4", "cluster.numa=wrong")
    assert result.exit_code == 2 and "cluster.numa" in result.output
    assert "sockets" in result.output


def test_memory_of_the_other_socket_is_as_far_as_its_firmware_says() -> None:
    """Distances 10 and 32 of numactl on an AWS p5: 3.2 times the latency."""
    fabric = load_cluster("aws-p5")
    near, far = (
        fabric.links.latency[fabric.route("memory0", cpu)].sum()
        for cpu in ("cpu0", "cpu1")
    )
    assert far / near == pytest.approx(3.2)


def run(path: Path, *changes: str) -> Any:
    options = [word for change in changes for word in ("--set", change)]
    return CliRunner().invoke(cli.main, ["run", str(path), *options])


def test_a_wrong_socket_says_what_it_slows(folder: Path) -> None:
    """Code by 5 % of waiting x (3.2 - 1) = 11 %, copies; where a step feels nothing of it, this is why."""
    right, wrong = (
        predict(load_scenario(folder / "dp.toml", [f"cluster.numa={at}"])).warnings
        for at in ("local", "wrong")
    )
    [added] = set(wrong) - set(right)
    assert "1.11 times as long" in added and "copies" in added


def collective(op: str, hosts: int, size: float, *changes: str, **options: Any) -> Row:
    [row] = report.collective(
        "aws-p5",
        op,
        hosts=hosts,
        min_bytes=size,
        max_bytes=size,
        overrides=list(changes),
        **options,
    ).rows
    return row


def test_proxies_on_the_wrong_socket_cross_it_four_times_a_step() -> None:
    """One step between hosts: 4 x 220 ns more; the GPU's flag, the doorbell, the completion, the flag to the GPU."""
    right, wrong = (
        collective("sendrecv", 2, 8, f"cluster.numa={at}", gpus="0,8").time
        for at in ("local", "wrong")
    )
    assert wrong - right == pytest.approx(4 * 220e-9)


def test_a_ring_pays_for_its_proxies_in_every_step_between_hosts() -> None:
    """An all-reduce over n hosts of one GPU each is 2 (n - 1) such steps."""
    one_each = ",".join(str(8 * host) for host in range(5))
    ring = "nccl.algo=ring", "nccl.proto=LL"
    right, wrong = (
        collective("all_reduce", 5, 8, *ring, f"cluster.numa={at}", gpus=one_each).time
        for at in ("local", "wrong")
    )
    assert wrong - right == pytest.approx(2 * 4 * 4 * 220e-9)


def test_buffers_on_the_wrong_socket_lie_beyond_the_link_between() -> None:
    """Two GPUs of a socket hand each other S through memory: S there and S back, both GPUs, each way of the link."""
    size, slow = 2.0**28, 1e9
    settings = "nccl.p2p_disable=true", f"socket.bandwidth={slow / 1e9}GB/s"
    right, wrong = (
        collective("sendrecv", 1, size, *settings, f"cluster.numa={at}", gpus="0,1")
        for at in ("local", "wrong")
    )
    assert right.time < size / slow
    # No faster than the bytes, and slower by no more than packet headers.
    assert 2 * size / slow <= wrong.time <= 1.2 * 2 * size / slow
    assert "cpu0-cpu1" in wrong.bottleneck or "cpu1-cpu0" in wrong.bottleneck


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_gpus_of_a_socket_share_its_memory_without_peer_to_peer(gpus: int) -> None:
    """Each byte is written and read, on one bus: k GPUs that send S each move 2 k S over it, and take no less."""
    size, slow = 2.0**28, 4e9
    settings = "nccl.p2p_disable=true", f"memory.bandwidth={slow / 1e9}GB/s"
    row = collective("sendrecv", 1, size, *settings, ranks=gpus)
    assert row.time == pytest.approx(2 * gpus * size / slow, rel=0.1)
    assert row.time >= 2 * gpus * size / slow
    assert "memory0" in row.bottleneck


def test_a_step_feels_where_nccl_has_its_threads(folder: Path) -> None:
    """Through memory beyond a slow link between sockets a step takes longer, as its collectives alone do."""
    slow = "nccl.p2p_disable=true", "cluster.set.socket.bandwidth=0.01x"
    right, wrong = (
        seconds(folder / "dp.toml", *slow, f"cluster.numa={at}")
        for at in ("local", "wrong")
    )
    assert wrong > 1.5 * right
