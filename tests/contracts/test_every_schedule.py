"""What every pipeline schedule keeps to, found by its file."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads import schedules
from prestep.workloads.schedules import Action, check, find, needs, placement, schedule
from tests.sample import together

SIZES = list(itertools.product((1, 2, 3, 4), (1, 2, 4, 6, 8), (1, 2)))


def legal(name: str) -> list[tuple[int, int, int]]:
    """The sizes among SIZES that the schedule says it can run."""
    return [size for size in SIZES if not check(name, *size)]


@pytest.mark.parametrize("name", schedules.names())
def test_a_schedule_runs_several_sizes(name: str) -> None:
    """More than one stage, more than one microbatch; PLACEMENT is one of the two that the runtime knows."""
    assert (
        len(
            {
                (ranks, microbatches)
                for ranks, microbatches, _ in legal(name)
                if ranks > 1
            }
        )
        >= 4
    )
    assert find(name).PLACEMENT in ("loop", "v")


@pytest.mark.parametrize("name", schedules.names())
def test_each_forward_and_backward_once_in_a_legal_order(name: str) -> None:
    """On its own rank; after what it needs; a backward is whole, or an input's gradient and then the weights'."""
    for ranks, microbatches, chunks in legal(name):
        rows = schedule(name, ranks, microbatches, chunks)
        seen = Counter(action for row in rows for action in row)
        assert set(seen.values()) == {1}
        for stage, mb in itertools.product(range(ranks * chunks), range(microbatches)):
            kinds = {kind for kind in "FBIW" if Action(stage, kind, mb) in seen}
            assert kinds in ({"F", "B"}, {"F", "I", "W"})
        owned = placement(find(name).PLACEMENT, ranks, chunks)
        assert [{action.stage for action in row} for row in rows] == [
            set(stages) for stages in owned
        ]
        assert in_order(rows)


def in_order(rows: tuple[tuple[Action, ...], ...]) -> bool:
    """Whether the rows can be played to their end, each action after all that it needs."""
    last = max(action.stage for row in rows for action in row)
    done: set[Action] = set()
    waiting = [list(row) for row in rows]
    progress = True
    while progress:
        progress = False
        for row in waiting:
            while row and all(need in done for need in needs(row[0], last)):
                action = row.pop(0)
                done.add(action._replace(kind="I") if action.kind == "B" else action)
                progress = True
    return not any(waiting)


@pytest.mark.parametrize("name", schedules.names())
def test_a_schedule_is_a_pure_function(name: str) -> None:
    """Asked twice it says the same, and each rank's row can be asked for alone."""
    ranks, microbatches, chunks = legal(name)[-1]
    rows = schedule(name, ranks, microbatches, chunks)
    assert rows == schedule(name, ranks, microbatches, chunks)
    module = find(name)
    assert rows[-1] == tuple(module.actions(ranks - 1, ranks, microbatches, chunks))


@together("name", schedules.names())
def test_only_a_split_backward_pass_is_refused_under_sharded_megatron(
    name: str,
) -> None:
    """What a schedule's actions contain decides, not its name: halves (I, W) of a backward pass cannot be gathered for."""
    # Megatron interleaves two chunks or more: of the sizes that are legal, one with the most.
    ranks, microbatches, chunks = max(
        (size for size in legal(name) if size[0] == 2 and size[1] >= 4),
        key=lambda size: size[2],
    )
    kinds = {
        action.kind
        for row in schedule(name, ranks, microbatches, chunks)
        for action in row
    }
    scenario = parse_scenario(
        {
            "cluster": {"name": "h200-host-4"},
            "model": {"name": "llama3-8b", "layers": 4},
            "training": {
                "framework": "megatron",
                "seq_len": 512,
                "microbatches": microbatches,
            },
            "parallel": {
                "pp": 2,
                "dp": 2,
                "vpp": chunks,
                "schedule": name,
                "data_parallel": "fsdp",
            },
        },
        "toy",
    )
    if kinds & {"I", "W"}:
        with pytest.raises(InputError, match="whole"):
            predict(scenario)
    else:
        assert predict(scenario).step_time > 0
