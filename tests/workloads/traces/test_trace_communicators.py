"""What communication does to what is beside it, and where a changed run has it anew."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.replay.outcome import Outcome
from prestep.sim.replay.replay import replay_files
from tests.workloads.traces import synthetic
from tests.workloads.traces.synthetic import SIZE, call, kernel


def sharded(rank: int, group: str = "0") -> dict[str, Any]:
    """Gathers on one stream and scatters on another, each launched as soon as may be; a copy is before the gathers."""
    events, clock, names = [], 100.0, ("_allgather_base", "_reduce_scatter_base")
    events.append(call("ProfilerStep#1", 0.0, 9000.0, category="user_annotation"))
    for i in range(6):
        ids = {"External id": 50 + i}
        events.append(
            call(
                "aten::_foreach_copy_",
                10.0 + 20 * i,
                8.0,
                category="cpu_op",
                **{"External id": 80 + i},
            )
        )
        events.append(
            call(
                "cudaLaunchKernel",
                12.0 + 20 * i,
                4.0,
                30 + i,
                **{"External id": 80 + i},
            )
        )
        events.append(
            kernel(
                "multi_tensor_apply", clock, 10.0, 30 + i, 40, **{"External id": 80 + i}
            )
        )
        said = synthetic.collective(4, 50 + i) | {
            "Collective name": names[i % 2],
            "Process Group Name": group if i % 2 else "0",
        }
        events.append(
            call("record_param_comms", 20.0 + 20 * i, 8.0, category="cpu_op", **said)
        )
        events.append(call("cudaLaunchKernelExC", 22.0 + 20 * i, 4.0, 60 + i, **ids))
        events.append(
            kernel(
                "ncclDevKernel_AllGather_RING_LL",
                clock + 12.0,
                500.0,
                60 + i,
                20 + 4 * (i % 2),
                **said,
            )
        )
        clock += 520.0
    made = synthetic.trace(rank)
    return made | {"traceEvents": events}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for rank in range(4):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(sharded(rank)))
    return tmp_path


def spans(outcome: Outcome) -> list[tuple[float, float]]:
    """Start and end of the communication of the first rank, in the order of its starts."""
    nodes, run = outcome.replay.programs[0], outcome.run
    return sorted(
        (run.start[0][0][i], run.end[0][0][i])
        for i, node in enumerate(nodes)
        if node.comms
    )


def test_collectives_of_a_communicator_run_one_after_the_other(shards: Path) -> None:
    """On slow links too, a gather and a scatter of one group never run at once, whatever streams they are on."""
    slow = replay_files([shards], None, "", ["nvlink.bandwidth=0.1x"])
    found = spans(slow)
    assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in pairwise(found))
    assert slow.steps[0].simulated_gpu > 1.5 * slow.steps[0].measured_gpu
    assert (
        slow.notes["collectives that wait for the one before in their group"] == 4 * 5
    )


def test_collectives_of_two_communicators_may_share_the_links(tmp_path: Path) -> None:
    """Groups of different names have communicators of their own."""
    for rank in range(4):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(sharded(rank, group="7")))
    outcome = replay_files([tmp_path], "recorded")
    assert (
        "collectives that wait for the one before in their group" not in outcome.notes
    )


def test_gathers_after_a_copy_into_their_buffer_are_in_place(shards: Path) -> None:
    """What FSDP gathers lies in the gathered buffer; what it scatters does not."""
    meetings = replay_files([shards]).replay.meetings
    assert {(m.op, m.in_place) for m in meetings} == {
        ("all_gather", True),
        ("reduce_scatter", False),
    }


def test_a_change_that_changes_nothing_changes_no_time(tmp_path: Path) -> None:
    """Taking the slowdown by communication out of kernels and putting it in again leaves every step as it was."""
    synthetic.save(tmp_path, late=200.0)
    before = replay_files([tmp_path])
    for change in (
        ["faults.slow_rank=1", "faults.slow_factor=1"],
        ["cluster.host_factor=1"],
    ):
        after = replay_files([tmp_path], None, "", change)
        assert [s.simulated_host for s in after.steps] == pytest.approx(
            [s.simulated_host for s in before.steps], rel=1e-6
        )


def test_kernels_gain_where_communication_leaves_them(tmp_path: Path) -> None:
    """Without data-parallel ranks a step is shorter than its kernels were recorded."""
    synthetic.save(tmp_path)
    alone = replay_files([tmp_path], None, "", ["parallel.dp=1"])
    assert (
        alone.steps[-1].simulated_gpu
        < (synthetic.LAYERS * synthetic.LAYER + 300.0) * 1e-6
    )


def test_buckets_from_a_run_without_overlap(tmp_path: Path) -> None:
    """Gradients that were reduced one by one after the backward pass are put into DDP's buckets, beside the kernels."""
    for rank in range(2):
        events, host, clock = [], 0.0, 100.0
        for i in range(4):
            events.append(call("cudaLaunchKernel", host, 4.0, 10 + i))
            events.append(kernel("nvjet_sm90_gemm", clock, 1000.0, 10 + i))
            shape = {
                "Input Dims": [[SIZE]],
                "Input type": ["c10::BFloat16"],
                "External id": 30 + i,
            }
            events.append(
                call(
                    "torch::autograd::AccumulateGrad",
                    host + 5,
                    2.0,
                    category="cpu_op",
                    **shape,
                )
            )
            host, clock = host + 20, clock + 1002.0
        for i in range(4):
            said = synthetic.collective(2, 50 + i)
            events.append(
                call("record_param_comms", host, 10.0, category="cpu_op", **said)
            )
            events.append(
                call(
                    "cudaLaunchKernelExC",
                    host + 2,
                    4.0,
                    60 + i,
                    **{"External id": 50 + i},
                )
            )
            events.append(
                kernel(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    clock,
                    300.0,
                    60 + i,
                    **said,
                )
            )
            events.append(call("cudaLaunchKernel", host + 12, 4.0, 70 + i))
            events.append(kernel("elementwise div", clock + 302.0, 5.0, 70 + i))
            host, clock = host + 20, clock + 310.0
        events.append(
            call("ProfilerStep#1", -5.0, clock + 10.0, category="user_annotation")
        )
        (tmp_path / f"rank{rank}.json").write_text(
            json.dumps(synthetic.trace(rank, 2) | {"traceEvents": events})
        )
    apart = replay_files([tmp_path], "simulated")
    beside = replay_files([tmp_path], None, "", ["parallel.data_parallel=ddp"])
    assert sum(m.size for m in beside.replay.meetings) == sum(
        m.size for m in apart.replay.meetings
    )
    assert beside.steps[0].simulated_gpu < apart.steps[0].simulated_gpu
    assert beside.steps[0].simulated_gpu > 4e-3 - 1e-4
    shares = json.loads(
        CliRunner()
        .invoke(main, ["replay", str(tmp_path), "--set", "data_parallel=ddp", "--json"])
        .stdout
    )
    assert (
        min(
            *shares["breakdown"]["measured"].values(),
            *shares["overlap"]["measured"]["dp"].values(),
        )
        >= 0
    )


def test_the_number_of_ranks_is_an_option(tmp_path: Path) -> None:
    """`--ranks N` is `--set parallel.dp=N`."""
    synthetic.save(tmp_path, world=1)
    said = [
        json.loads(
            CliRunner().invoke(main, ["replay", str(tmp_path), *asked, "--json"]).stdout
        )
        for asked in (["--ranks", "4"], ["--set", "parallel.dp=4"])
    ]
    assert said[0] == said[1]
    assert said[0]["changes"][0].startswith("DDP on 4 GPUs")


def test_a_simulated_run_is_written_as_the_profiler_would(tmp_path: Path) -> None:
    """`--trace DIR/` has a file per rank that replays to the simulated steps, and says ranks as HTA looks for them."""
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    synthetic.save(folder)
    for _ in range(2):  # a folder that is there already will do too
        result = CliRunner().invoke(
            main,
            ["replay", str(folder), "--set", "kernels.gemm=0.5x", "--trace", f"{out}/"],
        )
        assert result.exit_code == 0, result.output
    changed, again = (
        replay_files([folder], None, "", ["kernels.gemm=0.5x"]),
        replay_files([out]),
    )
    measured = [step.measured_host for step in again.steps]
    assert measured == pytest.approx(
        [step.simulated_host for step in changed.steps], rel=1e-4
    )
    assert again.worst < 1e-3
    assert {m.ranks for m in again.replay.meetings} == {(0, 1, 2, 3)}
    for rank in range(4):
        text = gzip.decompress((out / f"rank{rank}.json.gz").read_bytes()).decode()
        assert re.search(r'"rank":\s+(\d+)', text).group(1) == str(rank)  # type: ignore[union-attr]


def test_htas_own_reader_takes_it(tmp_path: Path) -> None:
    """Meta's HolisticTraceAnalysis, where it is installed, reads what is written and finds every rank."""
    hta = pytest.importorskip("hta.trace_analysis")
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    synthetic.save(folder)
    CliRunner().invoke(main, ["replay", str(folder), "--trace", f"{out}/"])
    analysis = hta.TraceAnalysis(trace_dir=str(out))
    assert sorted(analysis.get_temporal_breakdown(visualize=False)["rank"]) == [
        0,
        1,
        2,
        3,
    ]
    assert set(analysis.get_comm_comp_overlap(visualize=False)["rank"]) == {0, 1, 2, 3}
