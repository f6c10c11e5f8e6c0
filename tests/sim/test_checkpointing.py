"""Saves in a scenario, as a user types them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.storage.contents import pieces


def saved(mode: str, *changes: str) -> Any:
    arguments = ["run", "llama1b-ddp4", "--json", "--set", f"checkpoint.mode={mode}"]
    result = CliRunner().invoke(
        main, [*arguments, *(part for change in changes for part in ("--set", change))]
    )
    return (
        json.loads(result.output)["checkpoint"]
        if result.exit_code == 0
        else result.output
    )


def test_who_writes_and_who_waits() -> None:
    """Four writers stall for less than one, an asynchronous save for less still; it is durable no sooner."""
    rank0, sharded, behind = saved("rank0"), saved("sharded"), saved("async")
    assert behind["save_stall"] < sharded["save_stall"] < rank0["save_stall"]
    assert behind["time_until_durable"] >= sharded["time_until_durable"]
    assert behind["step_time_beside"] > sharded["step_time_beside"]
    assert rank0["writers"] == 1 and sharded["writers"] == 4
    assert rank0["time_until_durable"] > rank0["save_stall"] + 30


def test_pinned_buffers_and_processes_disturb_less() -> None:
    """A pinned staging copy stalls for less; a writer of its own process slows no steps on links that training does not use."""
    plain = saved("async")
    assert saved("async", "checkpoint.pinned=true")["save_stall"] < plain["save_stall"]
    assert saved("async", "checkpoint.writer=process")["background_slowdown"] == 0


def test_later_saves_find_what_the_first_made() -> None:
    """The first save pins memory and makes contexts on the host's first GPU; another one costs no more, an interval is
    made of those, and one GPU makes no context."""
    for mode in ("sharded", "async"):
        made = saved(mode, "checkpoint.every=1000")
        later = made["later"]
        assert later["save_stall"] <= made["save_stall"]
        assert later["step_time_beside"] <= made["step_time_beside"]
        assert made["interval"] < 1000 * later["step_time_beside"] + made["save_stall"]
    sharded = saved("sharded")
    assert sharded["later"]["save_stall"] < 0.95 * sharded["save_stall"]
    four = saved("async")
    assert four["later"]["step_time_beside"] < four["step_time_beside"]
    alone = saved("async", "parallel.dp=1", "training.global_batch=2", "cluster.gpus=1")
    assert alone["later"]["step_time_beside"] == alone["step_time_beside"]


def test_faster_disks_never_take_longer() -> None:
    """A disk of twice the bandwidth syncs sooner."""
    assert (
        saved("sharded", "nvme.bandwidth=2x")["save_stall"]
        < saved("sharded")["save_stall"]
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (('checkpoint.capacity="1 GB"',), "at most"),
        (("checkpoint.every=2",), "longer than a save"),
        (("checkpoint.storage=wekka",), "did you mean"),
        (("checkpoint.storage=lustre", "checkpoint.gpudirect=true"), "gpudirect"),
        (("checkpoint.storage=superpod",), "no storage servers"),
    ],
)
def test_saves_that_cannot_be(changes: tuple[str, ...], told: str) -> None:
    """A checkpoint larger than the storage, an interval shorter than the save and unknown storage are refused."""
    output = saved("sharded", *changes)
    assert isinstance(output, str) and told in output and "Traceback" not in output


EIGHT = ("parallel.dp=8", "training.global_batch=16")


def test_disks_of_the_cluster_may_be_too_small() -> None:
    """A checkpoint that does not fit the disks of its writers, or a volume, is refused before anything is simulated."""
    big = ("model.ffn=16000000", "model.layers=60", "cluster.name=aws-p5", *EIGHT)
    for storage in ("nvme", "ebs", "lustre"):
        output = saved("rank0", *big, f"checkpoint.storage={storage}")
        assert isinstance(output, str) and "at most" in output
    assert isinstance(saved("rank0", *big, "checkpoint.storage=weka"), dict)


@pytest.mark.parametrize("mode", ["rank0", "sharded"])
def test_local_disks_beat_an_object_store(mode: str) -> None:
    """What is uploaded is serialised as well: on a p5, local NVMe ends its save sooner than an object store."""
    p5 = ("cluster.name=aws-p5", *EIGHT)
    stalls = {
        name: saved(mode, *p5, f"checkpoint.storage={name}")["save_stall"]
        for name in ("nvme", "nvme-raid", "object")
    }
    assert max(stalls["nvme"], stalls["nvme-raid"]) < stalls["object"]


def test_peers_need_another_host() -> None:
    """A copy in memory needs a second host."""
    assert "two hosts" in saved("peer")


def test_every_reader_opens_all_that_overlaps() -> None:
    """Fewer readers open more files each; as many readers as writers open one."""
    assert [pieces(8, n) for n in (8, 4, 2, 1)] == [1, 2, 4, 8]
    assert pieces(6, 4) == 2


def test_an_input_bound_step_shows_it() -> None:
    """A step that waits for its readers takes as long as they do; with enough of them it waits for nothing."""

    def run(*changes: str) -> Any:
        parts = [part for change in changes for part in ("--set", change)]
        return json.loads(
            CliRunner().invoke(main, ["run", "llama1b-ddp4", "--json", *parts]).output
        )["dataload"]

    slow = run('dataload.batch_time="500 ms"', "dataload.workers=4")
    assert slow["input_bound"] and slow["step_time_with"] == pytest.approx(0.125)
    fast = run('dataload.batch_time="500 ms"', "dataload.workers=16")
    assert not fast["input_bound"] and fast["exposed"] == 0


def test_a_save_says_what_it_rests_on() -> None:
    """Every leg has the constant that binds it, with grade and source; the shares add up."""
    made = saved("sharded")
    assert [row["leg"] for row in made["rests_on"]] == list(made["legs"])
    assert sum(row["seconds"] for row in made["rests_on"]) == pytest.approx(
        made["legs"]["finish"]
    )
    assert sum(made["evidence"].values()) == pytest.approx(1.0)
    grades = {row["leg"]: row["evidence"] for row in made["rests_on"]}
    assert (
        grades["serialise"] == "measured"
        and grades["copy"] == "measured"
        and grades["plan"] == "fitted"
    )
    assert all(row["source"] for row in made["rests_on"])


def test_storage_that_is_a_guess_is_told() -> None:
    """A save bound by a guessed rate rests on a guess; one bound by a client that was measured does not."""
    cluster = ("cluster.name=dgx-h100", "cluster.gpus=4")
    lustre, object_store, nvme = (
        next(
            row
            for row in saved("sharded", f"checkpoint.storage={name}", *cluster)[
                "rests_on"
            ]
            if row["leg"] == "sync"
        )
        for name in ("lustre", "object", "nvme")
    )
    assert lustre["what"] == "lustre: client" and lustre["evidence"] == "measured"
    assert object_store["what"].startswith("object: ") and object_store["evidence"] in (
        "guess",
        "datasheet",
    )
    assert nvme["what"].startswith("link ")


def test_many_hosts_write_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every host has NICs of its own, all writers beside the steps slow them as the first host's alone do."""
    from prestep.sim.storage import saving

    big = [
        part
        for change in (
            "cluster.name=dgx-h100-superpod",
            "cluster.hosts=6",
            "parallel.dp=48",
            "model.layers=2",
            "training.global_batch=96",
            "checkpoint.storage=weka",
            "checkpoint.writer=process",
        )
        for part in ("--set", change)
    ]

    def slower() -> Any:
        result = CliRunner().invoke(
            main,
            ["run", "llama1b-ddp4", "--json", "--set", "checkpoint.mode=async", *big],
        )
        return json.loads(result.output)["checkpoint"]["step_time_beside"]

    whole = slower()
    monkeypatch.setattr(saving, "BESIDE", 0)
    assert whole == pytest.approx(slower(), rel=0.02)
