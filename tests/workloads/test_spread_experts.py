"""Experts spread over ranks and averaged or sharded over their copies, or split over tensor-parallel ranks, in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.workloads import recipes
from tests.executed import executed, step_time
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    MLP,
    SEQ,
    communications,
    lowered,
    ops,
    scenario,
    volume,
)

OF_EXPERTS = LAYERS * 4 * 3 * HIDDEN * 512  # parameters
ACTIVATION = 2.0 * 2 * SEQ * HIDDEN


def spread(ep: int, way: str = "fsdp", **how: Any) -> Any:
    return lowered(EXPERTS, how.pop("training", None), ep=ep, data_parallel=way, **how)


@pytest.mark.parametrize("way", ["ddp", "ddp-no-overlap"])
@pytest.mark.parametrize("pp", [1, 2])
def test_experts_are_averaged_over_their_copies(way: str, pp: int) -> None:
    """Each rank averages its half of the experts with the one other rank that has it, the rest with all."""
    batches = {"microbatches": 2} if pp > 1 else {}
    dp = 4 // pp
    found = spread(dp // (2 if pp == 1 else 1), way, dp=dp, pp=pp, training=batches)
    ranks = range(pp)
    rest = 2.0 * (found.parameters - OF_EXPERTS)
    assert sum(volume(found, "dp all_reduce", rank) for rank in ranks) == rest
    copies = sum(volume(found, "edp all_reduce", rank) for rank in ranks)
    assert copies == (2.0 * OF_EXPERTS / 2 if pp == 1 else 0)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_experts_are_sharded_over_the_ranks_that_have_them(ep: int) -> None:
    """Gathered twice and reduced once like other parts of blocks, but among dp / ep ranks, own experts alone."""
    found = spread(ep, dp=4)
    rest = 2.0 * (found.parameters - (OF_EXPERTS if ep > 1 else 0))
    root = 2.0 * (2 * 1000 + 1) * HIDDEN  # stays between its passes
    assert volume(found, "dp all_gather") == 2 * rest - root
    assert volume(found, "dp reduce_scatter") == rest
    own = 2.0 * OF_EXPERTS / ep if ep == 2 else 0.0  # with ep = dp nobody else has them
    assert volume(found, "edp all_gather") == 2 * own
    assert volume(found, "edp reduce_scatter") == own


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_a_rank_keeps_its_share_however_experts_are_spread(ep: int) -> None:
    """A quarter of all parameters, in bf16, and two moments of each."""
    found = spread(ep, dp=4)
    before = found.memory[0].before
    assert before["parameters"] == pytest.approx(2 * found.parameters / 4, rel=0.01)
    assert before["optimizer"] == pytest.approx(4 * found.parameters / 4, rel=0.02)


@pytest.mark.parametrize("ep", [2, 4])
def test_tokens_travel_as_they_do_without_shards(ep: int) -> None:
    """Dispatch and combine, forward and backward; each token goes to two experts."""
    for way in ("none", "fsdp"):
        found = spread(ep, way, dp=4)
        assert volume(found, "ep all_to_all") == 4 * LAYERS * 2 * ACTIVATION


def test_copies_of_hybrid_shards_have_all_experts() -> None:
    """Two copies of two ranks, each with half of the experts: shards of both kinds are summed between copies."""
    found = spread(2, dp=4, fsdp_shards=2)
    between = (found.parameters - OF_EXPERTS) / 2 + OF_EXPERTS / 2
    assert volume(found, "replicas all_reduce") == 2.0 * between
    groups = {(c.axis, c.groups) for c in found.graph.comms}
    assert ("ep", ((0, 1), (2, 3))) in groups
    assert ("replicas", ((0, 2), (1, 3))) in groups
    with pytest.raises(InputError, match="has all experts"):
        executed(scenario(EXPERTS, dp=4, ep=4, data_parallel="fsdp", fsdp_shards=2))


def test_a_block_gathers_the_next_one_and_its_experts() -> None:
    """torchtitan's explicit prefetch: behind each block's own two gathers come those of the next block."""
    rows = [
        op.comms[0].axis
        for op in ops(spread(2, dp=4))
        if op.name == "all_gather" and op.phase == "forward"
    ]
    # The root, the first block and its next; its own experts where they run; then each block the two of the next.
    assert rows == ["dp", "dp", "dp", "edp", "edp", *["dp", "edp"] * 2]


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
def test_split_experts_sum_their_results_once(tp: int, sequence: bool) -> None:
    """A block has attention's four sums (three of the input's gradient, one of the output) and two of the experts."""
    found = lowered(EXPERTS, tp=tp, sequence_parallel=sequence)
    if not sequence:
        assert communications(found)["tp all_reduce"] == 6 * LAYERS
        assert volume(found, "tp all_reduce") == 6 * LAYERS * ACTIVATION
    else:
        assert volume(found, "tp reduce_scatter") == 6 * LAYERS * ACTIVATION


def test_split_experts_share_their_work() -> None:
    """Products of blocks: a quarter of each on four ranks, but for the gate, which all of them compute."""

    def flops(tp: int) -> float:
        rows = ops(lowered(EXPERTS, tp=tp))
        return sum(op.kernel.flops for op in rows if op.kernel and op.layer >= 0)

    tokens = 2 * SEQ
    gate = 3 * LAYERS * 2 * tokens * HIDDEN * 4
    assert flops(4) - gate == pytest.approx((flops(1) - gate) / 4)


def whole(ep: int, **how: Any) -> Any:
    """Experts whole on the ranks of a tensor-parallel pair, among others."""
    given = {"dp": 2, "tp": 2, "sequence_parallel": True, "data_parallel": "fsdp"}
    return lowered(EXPERTS, None, **({"ep": ep, "etp": 1} | given | how))


@pytest.mark.parametrize("ep", [2, 4])
def test_whole_experts_send_the_tokens_of_their_part_of_the_sequence(ep: int) -> None:
    """A rank sends two copies of each of its tokens, there and back, forward and backward; its pair sends the others."""
    found = whole(ep)
    per_exchange = 2 * ACTIVATION / 2
    assert volume(found, "ep all_to_all") == pytest.approx(4 * LAYERS * per_exchange)
    # Attention's four sums alone: nothing is gathered or summed for experts.
    assert volume(found, "tp reduce_scatter") == 4 * LAYERS * ACTIVATION


@pytest.mark.parametrize(("ep", "copies"), [(2, 2), (4, 1)])
def test_whole_experts_are_sharded_over_the_ranks_that_have_them(
    ep: int, copies: int
) -> None:
    found = whole(ep)
    own = 2.0 * OF_EXPERTS / ep if copies > 1 else 0.0
    assert volume(found, "edp all_gather") == 2 * own
    assert volume(found, "edp reduce_scatter") == own


def test_whole_experts_do_the_same_work_as_split_ones() -> None:
    """Products of blocks, but for the gate's, which ranks that split experts all compute."""

    def flops(found: Any) -> float:
        return sum(op.kernel.flops for op in ops(found) if op.kernel and op.layer >= 0)

    tokens = 2 * SEQ
    gate = 3 * LAYERS * 2 * tokens * HIDDEN * 4
    split = whole(2, etp=2)
    assert flops(split) - flops(whole(2)) == pytest.approx(gate / 2)


@pytest.mark.parametrize("ep", [2, 4])
@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_whole_experts_folded_are_unfolded(ep: int, way: str) -> None:
    """One replica stands for all; with a slow GPU's layout every rank is simulated, to the same time."""
    layout = {"dp": 2, "tp": 2, "ep": ep, "etp": 1, "sequence_parallel": True}
    folded = scenario(EXPERTS, data_parallel=way, **layout)
    slow = replace(folded, faults=replace(folded.faults, slow_rank=0, slow_factor=1.0))
    assert len(executed(slow).lowered.graph.programs) == 4
    times = [step_time(executed(one)) for one in (folded, slow)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_shared_experts_beside_whole_ones_are_split() -> None:
    """Gathered once forward and summed once, backward the same, over other layers' exchanges."""
    model = {**EXPERTS, "shared_experts": 1}
    given = {"dp": 2, "tp": 2, "sequence_parallel": True, "data_parallel": "fsdp"}
    found = lowered(model, None, ep=2, etp=1, **given)
    assert volume(found, "tp reduce_scatter") == 6 * LAYERS * ACTIVATION


def test_whole_experts_that_nobody_spreads_are_refused() -> None:
    with pytest.raises(InputError, match=r"parallel\.etp"):
        scenario(EXPERTS, tp=2, etp=1)


def test_flat_parameters_do_not_spread_experts() -> None:
    s = scenario(EXPERTS, dp=4, ep=2, data_parallel="fsdp")
    with pytest.raises(InputError, match="FSDP2"):
        executed(type(s)(**{**vars(s), "pytorch": type(s.pytorch)(fsdp="1")}))


@pytest.mark.parametrize(("group", "communicators"), [("own", 2), ("ddp", 1)])
def test_kernels_of_one_communicator_take_turns(group: str, communicators: int) -> None:
    """NCCL runs kernels of a communicator one after the other: tokens wait where reductions have theirs, and only there."""
    s = scenario(
        EXPERTS, None, {"expert_group": group}, dp=4, ep=4, data_parallel="ddp"
    )
    result = executed(s)
    comms = result.lowered.graph.comms
    assert len({each.communicator for each in comms}) == communicators
    sent = sum(each.size for each in comms if each.op == "all_to_all")
    assert sent == 4 * LAYERS * 2 * ACTIVATION  # two of four experts, there and back


def test_other_ranks_than_ddps_have_a_communicator_of_their_own() -> None:
    with pytest.raises(InputError, match=r"expert_group.*ep = dp \* cp = 4"):
        executed(scenario(EXPERTS, None, {"expert_group": "ddp"}, dp=4, ep=2))


@pytest.mark.parametrize("model", [MLP, EXPERTS])
def test_without_spread_experts_ranks_meet_once(model: dict[str, Any]) -> None:
    """All gradients are reduced in one go; a second round is for experts that are spread."""

    def rounds(ep: int) -> float:
        low = lowered(model, dp=4, ep=ep, data_parallel="ddp-no-overlap")
        return low.host_operations[0]["ranks_meet"]

    assert rounds(1) == 1
    assert model is MLP or (rounds(2), rounds(4)) == (2, 1)


TITAN = """
[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
expert_parallel_degree = 8
"""


@pytest.mark.parametrize(
    ("more", "etp"),
    [
        ("", 1),
        ("expert_tensor_parallel_degree = 1", 1),
        ("expert_tensor_parallel_degree = 2", None),
    ],
)
def test_torchtitans_experts_are_whole(tmp_path: Path, more: str, etp: Any) -> None:
    path = tmp_path / "titan.toml"
    path.write_text(TITAN + more + "\n")
    recipe = recipes.read(recipes.document_of(path))
    keys = {setting.key: setting.value for setting in recipe.settings.values()}
    assert keys.get("parallel.etp") == etp
    assert not recipe.lost
