"""Replaying a recorded run: what was measured comes out again, and changes act where they must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.replay import report
from prestep.sim.replay.outcome import Outcome
from prestep.sim.replay.replay import replay_files
from tests.workloads.traces import synthetic

pytestmark = pytest.mark.filterwarnings("error")


def played(
    folder: Path,
    *changes: str,
    mode: str | None = None,
    cluster: str = "",
    **options: object,
) -> Outcome:
    synthetic.save(folder, **options)  # type: ignore[arg-type]
    return replay_files([folder], mode, cluster, changes)  # type: ignore[arg-type]


def simulated(outcome: Outcome) -> float:
    """Seconds of rank 0's last step."""
    return next(s for s in reversed(outcome.steps) if s.rank == 0).simulated_host


@pytest.mark.parametrize(
    "options",
    [{}, {"late": 400.0}, {"world": 1}, {"only": (1, 2), "late": 400.0}, {"steps": 3}],
)
def test_recorded_steps_come_out_again(
    tmp_path: Path, options: dict[str, object]
) -> None:
    """With transfers as recorded, every step of every rank takes what it took, on either clock."""
    for step in played(tmp_path, mode="recorded", **options).steps:
        assert step.simulated_host == pytest.approx(step.measured_host, rel=1e-6)
        assert step.simulated_gpu == pytest.approx(step.measured_gpu, rel=1e-6)


def test_waiting_is_not_transfer(tmp_path: Path) -> None:
    """The time a rank waits for a late one in a collective is not part of its transfer."""
    outcome = played(tmp_path, late=400.0)
    assert {round(m.duration * 1e6) for m in outcome.replay.meetings} == {
        round(synthetic.TRANSFER)
    }
    longest = max(
        op.finish - op.start for op in outcome.replay.job.works[1].ops if op.collective
    )
    assert longest == pytest.approx((synthetic.TRANSFER + 400.0) * 1e-6, rel=1e-6)


def test_ranks_wait_for_a_straggler(tmp_path: Path) -> None:
    """Kernels of one rank made slower delay all ranks by nearly as much: less of them runs beside communication."""
    base = played(tmp_path)
    slow = replay_files(
        [tmp_path], None, "", ["faults.slow_rank=2", "faults.slow_factor=1.5"]
    )
    for before, after in zip(base.steps, slow.steps, strict=True):
        assert (
            after.simulated_host - before.simulated_host
            > 0.44 * synthetic.LAYERS * synthetic.LAYER * 1e-6
        )


def test_a_straggler_that_was_not_recorded_is_played(tmp_path: Path) -> None:
    """A slow rank without a trace is a copy of a recorded one, and all wait for it."""
    slow = played(tmp_path, "faults.slow_rank=3", "faults.slow_factor=1.5", only=(0,))
    assert {step.rank for step in slow.steps} == {0, 3}
    assert slow.notes["ranks played as copies of a recorded one"] == 1


def test_clocks_are_aligned_on_ends(tmp_path: Path) -> None:
    """A rank whose clock is half a second ahead is moved back, and nothing changes."""
    plain = simulated(played(tmp_path))
    path = tmp_path / "rank3.pt.trace.json.gz"
    path.unlink()
    (tmp_path / "rank3.json").write_text(json.dumps(synthetic.trace(3, clock=5e5)))
    outcome = replay_files([tmp_path])
    assert outcome.notes["ranks whose clocks were moved by more than 10 us"] == 1
    assert simulated(outcome) == pytest.approx(plain, rel=1e-6)


def test_slower_links_never_make_a_step_shorter(tmp_path: Path) -> None:
    """A step grows with every halving of the links' bandwidth, and by what the exposed transfers grow."""
    times = [
        simulated(played(tmp_path, f"nvlink.bandwidth={factor}x", mode="simulated"))
        for factor in (1, 0.1, 0.01)
    ]
    assert times == sorted(times)
    assert times[2] > 2 * times[1]


def test_simulated_transfers_use_the_cluster(tmp_path: Path) -> None:
    """Naming a cluster plays transfers on it, and says so."""
    outcome = played(tmp_path, cluster="h200-leafspine-4x1")
    assert (outcome.mode, outcome.cluster) == ("simulated", "h200-leafspine-4x1")
    assert simulated(outcome) > 3 * simulated(played(tmp_path, mode="simulated"))


def test_one_gpu_becomes_many(tmp_path: Path) -> None:
    """A run of one GPU with DDP on four has a bucket per 25 MiB of gradients, and takes longer."""
    base = played(tmp_path, world=1)
    split = replay_files([tmp_path], None, "", ["parallel.dp=4"])
    sizes = [m.size for m in split.replay.meetings]
    assert sizes == [2.0 * synthetic.SIZE] * (2 * synthetic.LAYERS // 2)
    assert simulated(split) > simulated(base)


def test_buckets_hold_the_same_gradients(tmp_path: Path) -> None:
    """Other buckets reduce the same bytes."""
    base = played(tmp_path)
    merged = replay_files([tmp_path], None, "", ["parallel.bucket_cap=1 GiB"])
    assert sum(m.size for m in merged.replay.meetings) == sum(
        m.size for m in base.replay.meetings
    )
    assert len(merged.replay.meetings) == 2


def test_no_overlap_takes_compute_plus_communication(tmp_path: Path) -> None:
    """Without overlap a step has all its transfers exposed."""
    outcome = played(tmp_path, "parallel.data_parallel=ddp-no-overlap")
    layers = synthetic.LAYERS * synthetic.LAYER
    assert (
        simulated(outcome)
        > synthetic.LAYERS // 2 * synthetic.TRANSFER * 1e-6 + 0.8 * layers * 1e-6
    )
    assert simulated(outcome) > 0.95 * simulated(played(tmp_path))


def test_removed_kernels_take_no_time(tmp_path: Path) -> None:
    """Half the time of a family's kernels, and none: the step shrinks as they did on the critical path."""
    whole = simulated(played(tmp_path, world=1))
    half = simulated(replay_files([tmp_path], None, "", ["kernels.gemm=0.5x"]))
    assert whole - half == pytest.approx(
        0.5 * synthetic.LAYERS * synthetic.LAYER * 1e-6, rel=1e-3
    )
    assert simulated(replay_files([tmp_path], None, "", ["kernels.gemm=0"])) < half


def test_another_gpu_rescales_kernels(tmp_path: Path) -> None:
    """A cluster of another GPU runs the kernels as that GPU does, with the grade of the evidence."""
    outcome = played(tmp_path, cluster="dgx-a100")
    assert any(note.startswith("kernels rescaled by") for note in outcome.notes)
    assert simulated(outcome) > 1.5 * simulated(played(tmp_path, mode="simulated"))


def test_command_prints_json(tmp_path: Path) -> None:
    """`prestep replay DIR --json` has measured and simulated seconds by rank and step."""
    synthetic.save(tmp_path)
    result = CliRunner().invoke(
        main, ["replay", str(tmp_path), "--json", "--trace", str(tmp_path / "out.json")]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["measured_step_time"]["2"]["ProfilerStep#1"] == pytest.approx(
        7.06e-3, rel=1e-3
    )
    assert found["simulated_step_time"]["2"]["ProfilerStep#2"] == pytest.approx(
        7.06e-3, rel=1e-3
    )
    assert found["worst_error"] < 1e-6
    tracks = {
        e["args"]["name"]
        for e in json.loads((tmp_path / "out.json").read_text())["traceEvents"]
        if e["ph"] == "M" and "name" in e["args"]
    }
    assert {"rank 0 measured", "rank 0 simulated"} <= tracks


def test_command_prints_a_page(tmp_path: Path) -> None:
    """`prestep replay FILES` shows every step of every rank and what had to be inferred."""
    paths = synthetic.save(tmp_path, only=(0, 1))
    result = CliRunner().invoke(main, ["replay", *map(str, paths)])
    assert result.exit_code == 0, result.output
    assert "2 of 4 ranks recorded on NVIDIA H200" in result.output
    assert result.output.count("ProfilerStep#2") == 2
    assert "ranks of 4 that were not recorded" in result.output


WRONG = [
    ("parallel.dp=0", "a whole number"),
    ("parallel.dpp=2", "parallel.dp"),
    ("kernels.gem=0.5x", 'did you mean "gemm"'),
    ("kernels.gemm=fast", "a factor"),
    ("faults.slow_factor=2", "the rank that is slow"),
    ("faults.slow_rank=9", "below 4"),
    ("foo", "KEY=VALUE"),
    ("nccl.foo=3", "nccl.foo"),
    ("nvlonk.bandwidth=2x", "matches no link"),
    ("cluster.host_factor=x", "a factor"),
]


@pytest.mark.parametrize(("change", "expected"), WRONG)
def test_wrong_changes_are_refused(tmp_path: Path, change: str, expected: str) -> None:
    """A change that a replay does not know ends with exit code 2 and says what it knows."""
    synthetic.save(tmp_path)
    result = CliRunner().invoke(main, ["replay", str(tmp_path), "--set", change])
    assert result.exit_code == 2
    assert expected in result.output
    assert "Traceback" not in result.output


def one_rank(folder: Path, events: list[dict[str, object]]) -> Path:
    """A trace of one GPU."""
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    path = folder / "rank0.json"
    path.write_text(json.dumps(head | {"traceEvents": events}))
    return path


def test_a_replay_that_waits_for_its_host_begins_with_that(tmp_path: Path) -> None:
    """The GPU waits for a host that launches a kernel of 5 us every 100 us; kernels of 150 us the host does not hold up."""

    def first_line(duration: float) -> str:
        events, apart = list[dict[str, object]](), max(100.0, duration)
        for at in range(20):
            launch = synthetic.call("cudaLaunchKernel", 100.0 * at, 4.0, at)
            events += [launch, synthetic.kernel("gemm", apart * at + 4, duration, at)]
        end = synthetic.call("cudaDeviceSynchronize", 1990.0, 20 * apart - 1900, 99)
        outcome = replay_files([one_rank(tmp_path, [*events, end])])
        return report.as_text(outcome).splitlines()[0]

    assert first_line(5.0).startswith("The host decides this step")
    assert "cluster.host_factor" in first_line(5.0)
    assert first_line(150.0).startswith("Replayed, the last step takes")


def test_the_nodes_of_a_cuda_graph_are_kernels_of_their_own(tmp_path: Path) -> None:
    """One launch, five kernels: half the time of the three products saves half of 3 x 990 us."""
    ending = synthetic.call("cudaDeviceSynchronize", 40.0, 5100.0, 9)
    step = synthetic.call("ProfilerStep#1", 0, 5200.0, category="user_annotation")
    events = [synthetic.call("cudaGraphLaunch", 10.0, 20.0, 1), ending, step]
    for node in range(5):
        name = "elementwise_kernel" if node % 2 else "nvjet_gemm"
        about = {"graph id": 1, "graph node id": node + 1}
        events.append(synthetic.kernel(name, 40.0 + 1000 * node, 990, 1, **about))
    path = one_rank(tmp_path, events)
    before, after = (
        replay_files([path], changes=changes).step_time
        for changes in ((), ("kernels.gemm=0.5x",))
    )
    assert before - after == pytest.approx(3 * 990e-6 / 2, rel=1e-6)
