"""The account of a rank's memory: owners, modules, and what PyTorch's allocator reserves for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric, predict
from prestep.sim.spec.load import parse_scenario
from prestep.validation.formats.rows import read_rows
from prestep.validation.formats.scenarios import scenario_of
from prestep.workloads.memory.account import OWNERS, Memory, Storage
from prestep.workloads.memory.allocator import MIB, Allocator

MEASURED = Path(__file__).parents[2] / "lab/cases/h200/train_4gpu.jsonl"
SIZES = st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=40)
WAYS = ("none", "ddp", "fsdp", "zero1", "zero2", "zero3")


def scenario(way: str, framework: str = "pytorch-eager", **tables: Any) -> Any:
    return parse_scenario(
        {
            "cluster": {"name": "h200-host-4", "gpus": 4},
            "model": {
                "kind": "transformer",
                "hidden": 1024,
                "layers": 3,
                "heads": 8,
                "ffn": 4096,
                "vocab": 32000,
            },
            "training": {"seq_len": 512, "micro_batch": 2, "framework": framework},
            "parallel": {"dp": 4, "data_parallel": way},
        }
        | tables,
        "account",
    )


@pytest.mark.parametrize("framework", ["pytorch-eager", "deepspeed-eager"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_owners_add_up_and_fit_into_what_is_reserved(
    way: str, framework: str, recompute: str
) -> None:
    """Of every way to shard: the owners' sum is the peak, modules have a part of it, and segments hold it."""
    if framework == "deepspeed-eager" and way in ("none", "ddp", "fsdp"):
        way = "zero2"
    training = {
        "seq_len": 512,
        "micro_batch": 2,
        "framework": framework,
        "recompute": recompute,
    }
    step = scenario(way, framework, training=training)
    for memory in lowered_on(step, load_fabric(step)).memory.values():
        assert sum(memory.at_peak.values()) == pytest.approx(memory.peak, rel=1e-12)
        assert memory.peak <= memory.reserved <= 2 * memory.peak
        assert 0 < sum(memory.modules.values()) <= memory.peak
        assert memory.at_peak.keys() == set(OWNERS)


def test_a_run_says_what_is_alive_at_the_peak() -> None:
    """In the keys of a captured program; ranks that do the same share one table of modules."""
    result = predict(scenario("fsdp"))
    told = json.loads(result.to_json())
    assert set(told["reserved_memory"]) == set("0123")
    assert set(told["memory_by_module"]) == {"0"}
    assert "layers.1.attention" in told["memory_by_module"]["0"]
    rank = told["peak_memory"]["0"]
    assert rank["total"] <= told["reserved_memory"]["0"]
    verdict = told["out_of_memory"]
    outside = verdict["outside"]
    assert verdict["usual"] == told["reserved_memory"]["0"] + outside


#: Measured steps by the error that is left: one rank, tensor parallelism, stages, DDP's buckets, FSDP, convolutions.
RESERVED = {
    "1b-single-b2": 0.01,
    "8b-single-b1": 0.01,
    "1b-tp4-b4": 0.01,
    "1b-pp4-gpipe-m4-b4": 0.01,
    "1b-ddp4-b4-bk1": 0.01,
    "8b-ddp4-b2": 0.01,
    "1b-fsdp4-b2": 0.01,
    "1b-fsdptp22-b4": 0.01,
    "125m-fsdp4-b8": 0.01,
    "rn50-ddp4-b256": 0.01,
}


@pytest.mark.parametrize("name", RESERVED)
def test_what_is_reserved_is_what_was_measured(name: str) -> None:
    """`torch.cuda.max_memory_reserved` of the fullest of four H200: nothing was fitted to it."""
    row = next(r for r in read_rows(MEASURED) if r.name == name)
    cases = (json.loads(line) for line in MEASURED.read_text().splitlines())
    case = next(c for c in cases if c["id"] == name)
    step = scenario_of(row)
    memory = lowered_on(step, load_fabric(step)).memory
    held = max(account.reserved for account in memory.values())
    measured = max(case["peak_reserved_by_rank"].values())
    assert held == pytest.approx(measured, rel=RESERVED[name])


@given(SIZES)
def test_a_new_owner_moves_no_memory(sizes: list[int]) -> None:
    """The owners' sums follow; who asked, and what is reserved, stay."""
    accounts = []
    for changes in (False, True):
        memory = Memory()
        memory.in_blocks, memory.module = True, "layer"
        memory.reset_peak()
        blocks = [Storage(memory, size, "activations") for size in sizes]
        if changes:
            for place in range(len(blocks)):
                blocks[place].change_owner("gradients")
        memory.end_step()
        del blocks
        accounts.append(memory)
    kept, moved = accounts
    assert kept.peak == moved.peak and kept.modules == moved.modules
    assert kept.reserved == moved.reserved
    assert moved.now == 0


def test_what_is_forgotten_was_never_reserved() -> None:
    """A part that is taken back leaves the blocks that came in it and stayed."""
    memory = Memory()
    memory.in_blocks = True
    memory.reset_peak()
    moment = memory.moment()
    gone = memory.take(40 * MIB, "activations")
    stays = memory.take(30 * MIB, "activations")
    memory.give_back(gone)
    memory.forget(moment)
    memory.end_step()
    assert memory.peak == memory.reserved == 30 * MIB
    memory.give_back(stays)
    assert memory.now == 0


def test_the_optimizers_state_comes_with_the_first_update() -> None:
    """So it lies where activations did, and the second step asks the device for more."""
    memory = Memory()
    memory.in_blocks = True
    memory.by_update = [memory.take(40 * MIB, "optimizer")]
    memory.reset_peak()
    memory.give_back(memory.take(60 * MIB, "activations"))
    memory.begin_update()
    memory.end_step()
    assert memory.peak == 100 * MIB
    assert memory.reserved == 120 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_what_is_not_cut_off_a_block_is_in_use(expandable: bool) -> None:
    """11 MiB come from a segment of 12, of which up to 1 MiB is not cut off (kSmallSize); a segment that grows is cut."""
    memory = Memory()
    memory.in_blocks, memory.expandable = True, expandable
    memory.reset_peak()
    block = memory.take(11 * MIB, "activations", module="layer")
    memory.change_owner(block, "gradients")
    memory.end_step()
    size = (11 if expandable else 12) * MIB
    assert memory.peak == memory.at_peak["activations"] == size
    assert memory.modules == {"layer": size}
    assert memory.alive["gradients"] == size
    memory.give_back(block)
    assert memory.now == 0


@given(SIZES, st.booleans())
def test_growing_segments_reserve_no_more_than_blocks_and_pages(
    sizes: list[int], small: bool
) -> None:
    """One segment a stream and pool: all that is alive lies side by side, up to a page."""
    sizes = [min(size, MIB) if small else size + MIB for size in sizes]
    allocator = Allocator(expandable=True)
    for number, size in enumerate(sizes, 1):
        allocator.take(number, size, 0)
    page = 2 * MIB if small else 20 * MIB
    assert allocator.allocated <= allocator.reserved < allocator.allocated + page
    for number in range(1, len(sizes) + 1):
        allocator.give_back(number)
    assert [len(row) for *_, row in allocator.segments()] == [1]


def test_megatrons_layers_say_which_part_keeps_what() -> None:
    """They stand for many blocks, so nothing is reserved; what waits for backward is told part by part."""
    step = scenario("zero1", "megatron")
    for memory in lowered_on(step, load_fabric(step)).memory.values():
        assert memory.reserved == 0
        parts = {"layer.attention", "layer.mlp", "embedding", "head"}
        assert parts <= memory.modules.keys()
        assert 0 < sum(memory.modules.values()) <= memory.at_peak["activations"]
