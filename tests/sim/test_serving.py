"""Disaggregated inference, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.api import load
from prestep.sim.engine.storage import Leg
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.predict import load_fabric, timed_kernels
from prestep.sim.serving.requests import Request, Sending, serve

SCENARIO = """
[cluster]
name = "dgx-h100"
[model]
name = "llama3-8b"
[inference]
prefill_gpus = 4
decode_gpus = 4
prompt = 8192
output = 16
requests = 8
rate = 4
"""


def run(folder: Path, *changes: str, code: int = 0, command: str = "run") -> Any:
    (folder / "serve.toml").write_text(SCENARIO, encoding="utf-8")
    parts = [part for change in changes for part in ("--set", change)]
    more = ["--json"] if code == 0 else []
    result = CliRunner().invoke(
        main, [command, str(folder / "serve.toml"), *more, *parts]
    )
    assert result.exit_code == code and "Traceback" not in result.output, result.output
    return json.loads(result.output) if code == 0 else result.output


def test_the_example_runs() -> None:
    """As its first lines say."""
    example = Path(__file__).parents[2] / "examples" / "serving" / "prefill-decode.toml"
    result = CliRunner().invoke(main, ["run", str(example)])
    assert result.exit_code == 0 and "time to first token" in result.output, (
        result.output
    )
    assert result.output.startswith("The first token comes after ")


def test_a_cache_is_as_large_as_its_model_says(tmp_path: Path) -> None:
    """Keys and values of 32 layers, 8 heads of 128, 8192 tokens in two bytes: 1 GiB; half of it in fp8."""
    assert run(tmp_path)["kv_bytes"] == 2**30
    assert run(tmp_path, "inference.kv_dtype=fp8")["kv_bytes"] == 2**29


def test_ways_from_fast_to_slow(tmp_path: Path) -> None:
    """NVLink beats RDMA beats a detour through memory, disks are last; auto takes NVLink inside a host."""
    times = [
        run(tmp_path, f"inference.path={way}")["transfer_alone"]
        for way in ("nvlink", "rdma", "host", "nvme")
    ]
    assert times == sorted(times) and len(set(times)) == 4
    assert (
        run(tmp_path)["paths"] == ["nvlink"]
        and run(tmp_path)["transfer_alone"] == times[0]
    )
    assert times[1] == pytest.approx(2**30 / 48e9, rel=0.05)  # a 400 Gbit/s NIC


def test_overlap_hides_the_transfer(tmp_path: Path) -> None:
    """What is sent while later layers run is not waited for: the time to the first token is shorter, never longer."""
    slow = "inference.path=host"
    hidden, after = (
        run(tmp_path, slow, f"inference.overlap={way}") for way in ("true", "false")
    )
    assert hidden["time_to_first_token"]["mean"] < after["time_to_first_token"]["mean"]
    assert after["parts"]["transfer"] >= after["transfer_alone"] * 0.999
    assert hidden["prefill_time"] == after["prefill_time"]


@pytest.mark.parametrize("way", ["nvlink", "rdma", "host", "nvme"])
def test_overlap_is_never_later(tmp_path: Path, way: str) -> None:
    """With overlap a request waits for the last layer's way alone where the link keeps up; a faster link shortens that."""
    path = f"inference.path={way}"
    hidden = run(tmp_path, path)
    after = run(tmp_path, path, "inference.overlap=false")
    assert hidden["time_to_first_token"]["mean"] <= after["time_to_first_token"]["mean"]
    tail = hidden["transfer_alone"] / 32
    if way == "nvme":  # one disk is slower than the prefill
        assert hidden["parts"]["transfer"] > tail
    else:
        assert hidden["parts"]["transfer"] == pytest.approx(tail)


def test_the_tail_depends_on_the_link(tmp_path: Path) -> None:
    """What overlap does not hide shrinks as the link grows, and vanishes with it."""
    tails = [
        run(tmp_path, "inference.path=nvlink", f"nvlink.bandwidth={factor}x")["parts"][
            "transfer"
        ]
        for factor in (1, 2, 10)
    ]
    assert tails[0] == pytest.approx(2 * tails[1]) == pytest.approx(10 * tails[2])


def test_what_is_reused_is_loaded_and_not_prefilled(tmp_path: Path) -> None:
    """More of a prompt that is there already is never slower from memory; its load takes bytes over the link's rate."""
    first = [
        run(tmp_path, f"inference.reuse={share}", "inference.requests=1")
        for share in (0, 0.25, 0.5, 1)
    ]
    times = [made["time_to_first_token"]["mean"] for made in first]
    loads = [made["parts"]["load"] for made in first]
    assert times == sorted(times, reverse=True)
    assert loads[0] == 0 and loads[3] == pytest.approx(2 * loads[2])
    assert loads[3] == pytest.approx(2**30 / 51e9, rel=0.1)  # PCIe 5.0 x16
    nearer = run(tmp_path, "inference.reuse=1", "inference.requests=1")
    further = run(
        tmp_path,
        "inference.reuse=1",
        "inference.requests=1",
        "inference.reuse_from=weka",
    )
    assert further["parts"]["load"] > nearer["parts"]["load"]


def test_a_copy_for_everybody_takes_as_much_longer(tmp_path: Path) -> None:
    """Copies leave over the links of their prefill worker: four take four times as long, and everybody waits for all."""
    one, four = (
        run(tmp_path, "inference.path=rdma", f"inference.copies={copies}")["parts"]
        for copies in (1, 4)
    )
    assert four["transfer"] == pytest.approx(4 * one["transfer"])


@pytest.mark.parametrize("name", ["weka", "object", "nvme-raid"])
def test_caches_go_through_storage(tmp_path: Path, name: str) -> None:
    """A cache may be written to a storage system and read from it; nothing does so faster than over NVLink."""
    made = run(tmp_path, f"inference.path={name}")
    assert made["paths"] == [name]
    assert made["transfer_alone"] > run(tmp_path)["transfer_alone"]


def test_the_parts_are_the_time_to_first_token(tmp_path: Path) -> None:
    """Queue, prefill, transfer, place and first step add up; every byte of every cache crosses the links."""
    made = run(tmp_path, "inference.rate=100")
    assert sum(made["parts"].values()) == pytest.approx(
        made["time_to_first_token"]["mean"]
    )
    assert made["parts"]["queue"] > 0 and made["links"][0]["utilisation"] <= 1
    assert run(tmp_path, "inference.path=rdma", "inference.rate=100")["links"][0][
        "bytes"
    ] == pytest.approx(2 * 2**30)


def test_tiers_are_slower_the_further_away(tmp_path: Path) -> None:
    """A cache in HBM is read faster than one in the host's memory, and that faster than one on disks."""
    times = [
        run(tmp_path, f"inference.tier={tier}")["time_per_output_token"]
        for tier in ("hbm", "cpu", "nvme")
    ]
    assert times == sorted(times) and len(set(times)) == 3


def test_memory_next_to_the_gpu_is_nearer_over_c2c(tmp_path: Path) -> None:
    """A Grace board reads its host's memory over NVLink-C2C, faster than a DGX over PCIe."""
    pools = (
        "inference.prefill_gpus=2",
        "inference.decode_gpus=2",
        "inference.tier=cpu",
    )
    board = run(tmp_path, "cluster.name=gh200-quad", *pools)["time_per_output_token"]
    assert board < run(tmp_path, *pools)["time_per_output_token"]


def test_more_gpus_in_a_worker_are_faster(tmp_path: Path) -> None:
    """Two GPUs make a prompt and a token sooner than one; the cache goes out over the links of both."""
    two = run(tmp_path, "inference.prefill_tp=2", "inference.decode_tp=2")
    one = run(tmp_path)
    for name in ("prefill_time", "time_per_output_token", "transfer_alone"):
        assert two[name] < one[name]


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-b200", "mi300x"])
def test_a_prefill_is_the_forward_pass_of_training(
    tmp_path: Path, cluster: str
) -> None:
    """The kernels of the blocks in a compiled step of as many tokens, one after the other."""
    sizes = {"training.seq_len": 8192, "training.micro_batch": 1, "parallel.dp": 1}
    where = {"cluster.name": cluster, "cluster.gpus": 1, "training.global_batch": 1}
    how = {"model.name": "llama3-8b", "training.framework": "pytorch-compiled"}
    scenario = load("llama1b-ddp4", {**sizes, **where, **how})
    lowered, times = timed_kernels(scenario, load_fabric(scenario))
    program = lowered.graph.programs[0]
    mine = (program.kind == KERNEL) & (program.phase == 0) & (program.layer >= 0)
    forward = float(times.durations[program.payload[mine]].sum())
    found = run(tmp_path, f"cluster.name={cluster}")["prefill_time"]
    assert found == pytest.approx(forward, rel=0.01)


def test_a_larger_model_is_never_faster(tmp_path: Path) -> None:
    """More words, layers or wider networks; how the vocabulary's rows lie is nothing to a prompt's blocks."""
    a100 = "cluster.name=dgx-a100"
    plain = run(tmp_path, a100)["prefill_time"]
    for words in (128352, 128368):  # no multiple of 16 bytes in half of the cases
        assert run(tmp_path, a100, f"model.vocab={words}")["prefill_time"] == plain
    for larger in ("model.layers=40", "model.ffn=16384"):
        assert run(tmp_path, a100, larger)["prefill_time"] > plain


@pytest.mark.parametrize("reuse", [0, 0.5, 0.999])
def test_a_prefill_takes_at_least_its_arithmetic(tmp_path: Path, reuse: float) -> None:
    """Two flops for a weight of the blocks and a new token, and causal attention to all before it, at peak."""
    new = 8192 - min(8191, round(8192 * reuse))
    weights = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    pairs = 8192**2 / 2 - (8192 - new) ** 2 / 2
    flops = 2.0 * weights * new + 32 * 2 * 2.0 * 4096 * pairs
    found = run(tmp_path, f"inference.reuse={reuse}")["prefill_time"]
    assert found > flops / 989.4e12
    assert found > 2.0 * weights / 3.35e12  # every weight is read once


def test_hosts_without_nics_send_caches_through_their_memory(tmp_path: Path) -> None:
    """Eight L40S on PCIe have neither NVLink nor NICs; who asks for either is told which key to change."""
    l40s = "cluster.name=l40s-host"
    assert run(tmp_path, l40s)["paths"] == ["host"]
    refused = run(tmp_path, l40s, "inference.path=rdma", code=2)
    assert "inference.path" in refused and "nic" in refused
    assert "inference.tier" in run(tmp_path, l40s, "inference.tier=nvme", code=2)


def test_transfers_share_links() -> None:
    """Two caches on one link at once take twice as long; one after the other in a queue they do not."""
    leg = Leg("way", 100.0, links=np.array([0]), usage=np.array([1.0]))
    for queue, sent in (((0, 1), 30.0), ((0, 0), 20.0)):
        ways = (Sending((leg,)),)
        requests = [Request(0.0, at, 10.0, ways, 0, 1.0, 1.0) for at in queue]
        found, carried = serve(requests, 2, np.array([10.0]))
        assert found[0].sent == pytest.approx(sent) and carried[0] == pytest.approx(
            200.0
        )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("inference.decode_gpus=5",), "at most 8"),
        (("inference.prefill_tp=3",), "a divisor"),
        (("inference.decode_batch=100000",), "memory of a decode worker"),
        (("model.name=resnet50",), "KV cache"),
        (("inference.path=wires",), "inference.path"),
        (("inference.reuse=1.5",), "at most 1"),
        (("inference.reuse=1", "inference.reuse_from=weca"), "inference.reuse_from"),
        (
            (
                "inference.reuse=1",
                "inference.reuse_from=weka",
                "inference.path=object",
            ),
            "one storage system",
        ),
        (("inference.copies=5",), "at most 4 decode workers"),
        (("inference.rate=0",), "more than 0"),
        (
            (
                "cluster.name=dgx-h100-superpod",
                "cluster.hosts=2",
                "inference.prefill_gpus=8",
                "inference.path=nvlink",
            ),
            "NVLink connects",
        ),
        (
            (
                "cluster.name=dgx-h100-superpod",
                "cluster.hosts=2",
                "inference.prefill_gpus=8",
                "inference.path=nvme",
            ),
            "pools on one host",
        ),
    ],
)
def test_mistakes(tmp_path: Path, changes: tuple[str, ...], told: str) -> None:
    """Pools that do not fit, caches without room and ways that are not there are refused with the key."""
    assert told in run(tmp_path, *changes, code=2)


def test_other_commands_say_that_they_do_not_serve(tmp_path: Path) -> None:
    """A training step of a scenario with [inference] is refused."""
    assert "inference" in run(tmp_path, code=2, command="goodput")
