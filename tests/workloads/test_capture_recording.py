"""A recorded program: its file, and the graph that is made of it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError
from prestep.sim.predict import STEPS, predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.groups import alike, axis_of, copies
from prestep.workloads.capture.lower import lower
from prestep.workloads.capture.summary import ranges
from prestep.workloads.host_costs import host_costs
from tests.sample import together

SIZE = 4096


def matrix(rows: int = SIZE, columns: int = SIZE) -> dict[str, Any]:
    return {"dtype": "bf16", "shape": [rows, columns]}


def product() -> list[Any]:
    return ["aten.mm.default", [matrix(), matrix()], {}, [matrix()]]


def all_reduce(number: int, size: int = 1 << 28, stream: int = 0) -> list[Any]:
    return ["communicate", stream, number, "all_reduce", "0:0", size, "bf16", -1, 0, 0]


def tables(events: list[list[Any]], world: int = 1) -> dict[str, Any]:
    """A recording in which every rank does the same."""
    return {
        "format": recording.FORMAT,
        "version": recording.VERSION,
        "world": world,
        "operations": [product()],
        "ranks": [
            {"rank": 0, "represents": list(range(world)), "events": events, "alive": {}}
        ],
        "groups": {"0:0": list(range(world))},
        "parameters": SIZE * SIZE,
        "step": 3,
        "gpu": "h200",
        "assumed": {},
        "compiled": [],
        "command": ["train.py"],
        "versions": {"torch": "2.11.0"},
    }


Recorded = Callable[..., Path]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    def written(events: list[list[Any]], world: int = 1) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.capture"
        recording.write(path, tables(events, world))
        return path

    return written


def step_time(path: Path, *overrides: str) -> float:
    scenario = load_scenario(path, ["cluster.name=h200-host-4", *overrides])
    return predict(scenario).step_time


COMPUTE = [["operate", 0, 0, 0, 0]] * 20
#: A power limit that products in a row do not reach: pauses for communication give them none of it back.
COOL = "gpu.power_limit=1.5x"


def test_a_recording_is_read_as_it_was_written(recorded: Recorded) -> None:
    """Events, operations and groups come back by name."""
    read = recording.read(recorded([*COMPUTE, all_reduce(1)], world=4))
    assert read.world == 4
    assert [event.kind for event in read.ranks[0].events][-1] == "communicate"
    assert read.ranks[0].events[-1].values["bytes"] == 1 << 28
    assert read.operations[0].operands[0].shape == (SIZE, SIZE)


def test_the_same_tables_make_the_same_bytes(tmp_path: Path) -> None:
    """No time of day is kept in the file."""
    one, other = tmp_path / "one.capture", tmp_path / "other.capture"
    recording.write(one, tables(COMPUTE))
    recording.write(other, tables(COMPUTE))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"no gzip", "prestep capture"),
        (gzip.compress(b"[" * 100_000), "nested too deeply"),
        # A bomb: 1 GiB of blanks in 1 MB is refused before it is unpacked whole.
        (gzip.compress(b" " * 2**20, 9) * 1024, "unpack"),
        (None, "no such file"),
        ({"format": "something else"}, "format"),
        ({"version": 99}, "capture the program again"),
        (
            {"ranks": [{"rank": 0}]},
            "ranks[0]: found Object missing required field `represents`",
        ),
        (
            {
                "ranks": [
                    {
                        "rank": 0,
                        "represents": [0],
                        "events": [["dance", 0]],
                        "alive": {},
                    }
                ]
            },
            "dance",
        ),
    ],
)
def test_a_file_that_is_none_of_ours_is_a_located_mistake(
    tmp_path: Path, content: object, told: str
) -> None:
    """Whatever is wrong with the file, the message names it and says what was expected."""
    path = tmp_path / "job.capture"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        recording.write(path, tables([]) | content)
    with pytest.raises(InputError) as caught:
        recording.read(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_recording_is_a_regular_file(tmp_path: Path) -> None:
    """A pipe that nobody writes to waits for ever, and a device never ends."""
    pipe, device = tmp_path / "pipe.capture", tmp_path / "zero.capture"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(InputError, match="no regular file"):
            recording.read(path)


def test_a_step_is_the_sum_of_its_kernels_where_nothing_else_counts(
    recorded: Recorded,
) -> None:
    """Twice the kernels on one stream take twice the time."""
    once, twice = step_time(recorded(COMPUTE)), step_time(recorded(COMPUTE * 2))
    assert twice == pytest.approx(2 * once, rel=0.03)


def test_communication_that_nobody_waits_for_runs_beside_kernels(
    recorded: Recorded,
) -> None:
    """A collective is hidden by the kernels between it and its wait, and exposed without them."""
    after = ["wait_collective", 0, 1, 0]
    beside = step_time(recorded([all_reduce(1), *COMPUTE, after, *COMPUTE[:1]], 4))
    before = step_time(recorded([all_reduce(1), after, *COMPUTE, *COMPUTE[:1]], 4))
    assert beside < before
    assert beside >= step_time(recorded([*COMPUTE, *COMPUTE[:1]]))


def test_communication_waited_for_at_once_runs_in_the_stream_that_asks(
    recorded: Recorded,
) -> None:
    """Two streams that wait for their own collective run them together; asked for ahead, a group has one at a time."""
    first, second = all_reduce(1, 1 << 28, 1), all_reduce(2, 1 << 28, 2)
    waits = [["wait_collective", number, number, 0] for number in (1, 2)]
    end = [*(["wait_collective", 0, number, 0] for number in (1, 2)), *COMPUTE[:1]]
    at_once = step_time(recorded([first, waits[0], second, waits[1], *end], 4))
    ahead = step_time(recorded([first, second, *waits, *end], 4))
    alone = step_time(recorded([first, waits[0], *end], 4))
    assert alone < at_once <= ahead < 2.1 * alone


def test_a_stream_s_own_communication_has_the_memory_to_itself(
    recorded: Recorded,
) -> None:
    """A collective between kernels of one stream takes as long as on a stream of its own."""
    wait = ["wait_collective", 0, 1, 0]
    own = step_time(recorded([*COMPUTE, all_reduce(1), wait, *COMPUTE[:1]], 4))
    apart = [*COMPUTE, all_reduce(1), ["record", 0, 1, 0], wait, *COMPUTE[:1]]
    assert own == pytest.approx(step_time(recorded(apart, 4)), rel=0.02)


def test_links_carry_the_bytes_of_a_recorded_all_reduce(recorded: Recorded) -> None:
    """Conservation: twice the payload is twice the bytes, and a GPU sends what its part of a ring is, and headers."""

    def carried(size: int) -> dict[str, float]:
        events = [*COMPUTE, all_reduce(1, size), ["wait_collective", 0, 1, 0]]
        scenario = load_scenario(recorded(events, 4), ["cluster.name=h200-host-4"])
        return {link.name: link.bytes for link in predict(scenario).links}

    once, twice = carried(1 << 28), carried(1 << 29)
    assert {name: 2 * size for name, size in once.items()} == pytest.approx(
        twice, rel=1e-6
    )
    sent = sum(size for name, size in once.items() if name.startswith("gpu0 "))
    least = 2 * 3 / 4 * (1 << 28)  # of a ring of four
    assert least <= sent / STEPS <= 1.15 * least


def test_a_faster_link_shortens_exposed_communication(recorded: Recorded) -> None:
    """What-ifs of links hold for recorded programs."""
    path = recorded(
        [*COMPUTE, all_reduce(1), ["wait_collective", 0, 1, 0], *COMPUTE], 4
    )
    assert step_time(path, "nvlink.bandwidth=2x") < step_time(path)


def test_one_rank_needs_no_network(recorded: Recorded) -> None:
    """A group of one does not communicate."""
    alone = step_time(recorded([*COMPUTE, all_reduce(1), ["wait_collective", 0, 1, 0]]))
    assert alone == pytest.approx(step_time(recorded(COMPUTE)), rel=0.02)


def test_waiting_for_the_host_is_longer_where_it_reads_a_value(
    recorded: Recorded,
) -> None:
    """A read of data stops the host until the GPU has come to it."""
    python = [["operate", 0, 0, 0, 3000]] * 20
    reads = [["read", 0, "aten.item", 0]]
    without, with_reads = (
        recorded(python),
        recorded([e for p in python for e in (p, *reads)]),
    )
    assert step_time(with_reads) > step_time(without)


def test_what_an_operation_takes_for_itself_counts(tmp_path: Path) -> None:
    """Softmax's backward multiplies its gradient by its output first: a tensor that no program sees."""
    operation = ["aten._softmax_backward_data.default", [matrix()] * 2, {}, [matrix()]]
    table = tables([["operate", 0, 0, 0, 0]]) | {"operations": [operation]}
    recording.write(tmp_path / "a.capture", table)
    read = recording.read(tmp_path / "a.capture")
    memory = lower(read, host_costs("captured")).memory[0]
    assert memory.peak == SIZE * SIZE * 2


def test_memory_is_what_lives_at_once(recorded: Recorded) -> None:
    """Storages that follow each other need the room of one; what was there before stays."""
    one = ["allocate", 1, 1 << 20, 0, 0], ["free", 1, 0]
    other = ["allocate", 2, 1 << 20, 0, 0], ["free", 2, 0]
    apart = recording.read(recorded([*one, *other, *COMPUTE]))
    together = recording.read(recorded([one[0], other[0], one[1], other[1], *COMPUTE]))
    costs = host_costs("captured")
    assert lower(apart, costs).memory[0].peak == 1 << 20
    assert lower(together, costs).memory[0].peak == 2 << 20


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("size", [2, 4])
def test_copies_of_a_line_part_the_world(stride: int, size: int) -> None:
    """Every rank is in one copy of a group, and the group is among them."""
    world = 32
    members = tuple(range(0, stride * size, stride))
    lines = copies(members, world)
    assert members in lines
    assert sorted(rank for line in lines for rank in line) == list(range(world))


def test_ranks_that_form_no_line_stand_alone() -> None:
    """A group at unequal distances has no copies that could be told from it."""
    assert copies((0, 1, 5), 8) == ((0, 1, 5),)


def test_a_recording_is_a_scenario_by_its_name(recorded: Recorded) -> None:
    """`prestep run job.capture` has as many ranks as the program was captured for."""
    scenario = load_scenario(recorded(COMPUTE, world=4), ["cluster.name=h200-host-4"])
    assert scenario.parallel.dp == 4
    assert scenario.training.framework == "captured"


def test_an_assumed_value_is_said(tmp_path: Path) -> None:
    """The report warns of what the program read and nobody computed."""
    path = tmp_path / "job.capture"
    recording.write(path, tables(COMPUTE) | {"assumed": {"aten.item": 3}})
    scenario = load_scenario(path, ["cluster.name=h200-host-4"])
    assert any("aten.item" in warning for warning in predict(scenario).warnings)


def test_an_operation_that_nobody_knows_is_not_free(tmp_path: Path) -> None:
    """It takes at least as long as its bytes."""
    unknown = ["custom.magic.default", [matrix()], {}, [matrix()]]
    path = tmp_path / "job.capture"
    recording.write(path, tables(COMPUTE) | {"operations": [unknown]})
    least = 20 * 2 * 2 * SIZE * SIZE / 4.8e12
    assert step_time(path) > least


def test_the_file_is_json_in_gzip(recorded: Recorded) -> None:
    """Other tools may read it: every event by its kind and values."""
    import gzip

    table = json.loads(gzip.decompress(recorded(COMPUTE).read_bytes()))
    assert table["ranks"][0]["events"][0] == ["operate", 0, 0, 0, 0]


def transfer(number: int, kind: str, peer: int) -> list[Any]:
    return ["communicate", 0, number, kind, "0:0", 1 << 24, "bf16", peer, 0, 0]


def test_ranks_that_send_to_each_other_at_once_do_not_wait_for_ever(
    tmp_path: Path,
) -> None:
    """Transfers of a batch run together: two ranks that each send first and receive then come to an end."""

    def rank(own: int, peer: int) -> dict[str, Any]:
        batch = [transfer(1, "send", peer), transfer(2, "recv", peer)]
        waits = [["wait_collective", 0, number, 0] for number in (1, 2)]
        events = [*COMPUTE, ["batch", 0], *batch, ["batch_end", 0], *waits, *COMPUTE]
        return {"rank": own, "represents": [own], "events": events, "alive": {}}

    path = tmp_path / "job.capture"
    recording.write(path, tables([], 2) | {"ranks": [rank(0, 1), rank(1, 0)]})
    alone = step_time(recorded_alone(tmp_path))
    assert alone < step_time(path) < 1.5 * alone


def recorded_alone(folder: Path) -> Path:
    path = folder / "alone.capture"
    recording.write(path, tables([*COMPUTE, *COMPUTE]))
    return path


def test_groups_with_the_same_ranks_are_apart(recorded: Recorded) -> None:
    """Two communications of the same kind and size are two, whatever their groups are called."""
    once = [*COMPUTE, all_reduce(1), ["wait_collective", 0, 1, 0]]
    twice = [*once, all_reduce(2), ["wait_collective", 0, 2, 0]]
    less, one, two = (
        step_time(recorded(events, 4), COOL) for events in (COMPUTE, once, twice)
    )
    one, two = one - less, two - less
    assert two == pytest.approx(2 * one, rel=0.1)


def shown(path: Path, *options: str) -> str:
    result = CliRunner().invoke(cli.main, ["capture", "show", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


STEP = [
    ["operate", 0, 0, 0, 0],
    all_reduce(1),
    ["wait_collective", 0, 1, 0],
    ["read", 0, "aten::item", 0],
]


def test_a_recording_shown_has_every_call_communication_and_wait(
    recorded: Recorded,
) -> None:
    """And all its bytes: a product reads two matrices and writes one."""
    rank = json.loads(shown(recorded(STEP, 4), "--json"))["ranks"][0]
    product = rank["operations"][0]
    assert (product["name"], product["calls"]) == ("mm", 1)
    assert product["bytes"] == 3 * 2 * SIZE**2
    assert product["flops"] == 2 * SIZE**3
    assert rank["communications"] == [
        {
            "kind": "all_reduce",
            "axis": "world",
            "ranks": [0, 1, 2, 3],
            "calls": 1,
            "bytes": 2**28,
        }
    ]
    assert rank["waits"] == {"for data that it reads (aten.item)": 1}


def test_a_recording_shown_fits_80_columns(recorded: Recorded) -> None:
    """The first line is the file, as long as its path."""
    lines = shown(recorded(STEP, 4)).splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert any("4: 0-3" in line for line in lines)


def test_a_rank_that_is_shown_has_to_be_one_of_the_world(recorded: Recorded) -> None:
    path = recorded(STEP, 4)
    result = CliRunner().invoke(cli.main, ["capture", "show", str(path), "--rank", "4"])
    assert result.exit_code == 2
    assert "expected a rank of 0-3" in result.stderr


@pytest.mark.parametrize(
    "ranks, text",
    [
        ((0, 1, 2, 5), "0-2, 5"),
        ((3,), "3"),
        (range(0, 64, 8), "0, 8, ..., 56"),
        ((0, 2), "0, 2"),
    ],
)
def test_ranks_are_written_as_ranges(ranks: Iterable[int], text: str) -> None:
    assert ranges(ranks) == text


def test_a_recording_on_too_small_a_cluster_is_told_of_larger_ones(
    recorded: Recorded,
) -> None:
    """Before what is changed there is looked for."""
    changes = ["cluster.name=h200-host-4", "spine.bandwidth=2x"]
    with pytest.raises(InputError, match="h200-leafspine-4x1"):
        load_scenario(recorded(STEP, 64), changes)


@together(
    ("description", "axis"),
    [
        ("mesh_tp", "tp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_pp", "pp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "group-of-4"),
        ("MODEL_PARALLEL_GROUP", "group-of-4"),
        ("undefined", "group-of-4"),
        ("", "group-of-4"),
    ],
)
def test_an_axis_is_what_the_program_says_and_no_guess(
    description: str, axis: str
) -> None:
    """Meshes and Megatron name their groups; any other is called by its size."""
    assert axis_of(description, 4, 8) == axis


def test_a_group_of_everybody_is_the_world() -> None:
    """Where it has no name of its own."""
    assert axis_of("default_pg", 8, 8) == "world"
    assert axis_of("mesh_dp", 8, 8) == "dp"


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 4))
def test_groups_of_a_stage_are_not_those_of_another(
    width: int, replicas: int, stages: int
) -> None:
    """Ranks of a pipeline's stage reduce among themselves: copies of a group lie in its own stage, and fill it."""
    size = width * replicas
    stage = {rank: rank // size * size for rank in range(size * stages)}
    for first in range(0, size * stages, size):
        members = tuple(range(first, first + size, width))
        groups = alike(members, size * stages, stage)
        ranks = sorted(rank for group in groups for rank in group)
        lone = replicas == 1
        assert ranks == ([first] if lone else list(range(first, first + size)))


def test_mfu_counts_what_the_model_asks_for_once(tmp_path: Path) -> None:
    """Forward and backward, not what is computed again; files that do not tell it have no MFU. Tokens nobody knows."""

    def run(events: list[list[Any]], **more: Any) -> Prediction:
        path = tmp_path / "job.capture"
        recording.write(path, tables(events) | more)
        return predict(load_scenario(path, ["cluster.name=h200-host-4"]))

    forward, backward, again = (["operate", 0, 0, way, 0] for way in (0, 1, 2))
    told = run([forward, backward, backward, again], recomputation=True)
    flops = told.tflops_per_gpu * 1e12 * told.step_time
    assert flops == pytest.approx(3 * 2 * SIZE**3)
    untold = json.loads(run([forward, backward]).to_json())
    assert untold["mfu"] is None and untold["tflops_per_gpu"] is None
    assert untold["tokens_per_second_per_gpu"] is None


def test_groups_of_the_same_ranks_are_communicators_of_their_own() -> None:
    """A group that a program makes for its experts does not wait for DDP's reductions in the world's."""
    groups = dict.fromkeys(("0:0", "0:1", "0:2", "3:0", "3:1"), (0, 1, 2, 3))
    described = dict.fromkeys(groups, "undefined") | {"0:0": "default_pg"}
    recorded = recording.Recording(
        4, (), (), groups, 0, 1, "h200", described=described | {"3:0": "default_pg"}
    )
    first, second, third, *elsewhere = map(recorded.axis, groups)
    assert second == f"{first} 2"
    assert third == f"{first} 3"
    assert elsewhere == [first, second]
