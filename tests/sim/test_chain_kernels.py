"""Layers that are simulated as one, opened: their kernels fill the time that they took, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from prestep.sim import api
from prestep.sim.analysis.chain_kernels import Chains
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.spans import Opening, with_kernels
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.exporters import chrome_trace
from prestep.sim.exporters._html.gantt import gantt
from prestep.sim.replay.replay import replay_files
from prestep.workloads.traces import chrome
from prestep.workloads.traces.readers import kineto
from tests.sim.timeline_laws import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "megatron-3d.toml"
SMALL = {
    "cluster.hosts": 2,
    "model.name": "llama3-8b",
    "model.layers": 4,
    "training.global_batch": 16,
    "parallel.schedule": "1f1b",
    **dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.vpp", "parallel.dp"), 1),
}
#: What is exchanged within layers: nothing, on one host, over two, in a ring, tokens of experts, beside recomputation;
#: and what makes layers of a run slower than they are alone.
LAYOUTS = {
    "alone": {"parallel.dp": 16},
    "pipeline": {"parallel.tp": 4, "parallel.pp": 2, "parallel.dp": 2},
    "reduced": {
        "parallel.tp": 8,
        "parallel.dp": 2,
        "parallel.sequence_parallel": False,
    },
    "crowded": {"parallel.tp": 16},
    "ring": {"parallel.tp": 2, "parallel.cp": 4, "parallel.dp": 2},
    "experts": {"model.name": "mixtral-8x7b", "parallel.ep": 8, "parallel.dp": 16},
    "recomputed": {"parallel.tp": 4, "parallel.dp": 4, "training.recompute": "full"},
    "slow": {
        "parallel.tp": 8,
        "parallel.dp": 2,
        "faults.slow_rank": 3,
        "faults.slow_factor": 1.3,
    },
    "noisy": {"parallel.tp": 8, "parallel.dp": 2, "faults.jitter": 1.0},
}
FRAMEWORKS = {
    name: {"training.framework": name}
    for name in ("pytorch-eager", "pytorch-compiled", "megatron")
}
SHORT = {"model.layers": 2}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@cache
def predicted(layout: str) -> Prediction:
    return api.simulate(EXAMPLE, SMALL | LAYOUTS[layout])


def timeline(result: Prediction) -> Timeline:
    assert result.timeline is not None
    return result.timeline


def opening(result: Prediction) -> tuple[Timeline, Chains]:
    """Its timeline and its chains."""
    assert result.details is not None and result.details.chains is not None
    return timeline(result), result.details.chains


@layouts
def test_kernels_lie_in_their_layers_and_fill_them(layout: str) -> None:
    """Kernels and the gaps between them take the time in which a row of layers computes; nothing reaches out of it."""
    result = predicted(layout)
    closed, chains = opening(result)
    opened = Opening(closed, chains).opened(np.inf)[0]
    check(opened, 1e-9)
    for spans in (closed, opened):
        assert spans.ranks == closed.ranks and spans.steps == closed.steps
    key = [(t["rank"] * 1000 + t["step"]) * 10**6 + t["op"] for t in (closed, opened)]
    sizes = Opening(closed, chains).sizes
    for row in np.flatnonzero(sizes):
        inside, whole = key[1] == key[0][row], key[0] == key[0][row]
        begin, end = closed["start"][row], closed["end"][whole].max()
        assert inside.sum() == sizes[row]
        assert opened["start"][inside].min() >= begin - 1e-12
        assert opened["end"][inside].max() <= end + 1e-12
        assert opened["launch"][inside].min() == closed["launch"][row]
    # What is no layer is as it was; what layers wait for their exchanges is within their time.
    others = ~np.isin(key[0], key[0][sizes > 0])
    missing = Counter(closed["name"][others]) - Counter(opened["name"])
    assert not missing and sizes.sum() + others.sum() == len(opened)


@layouts
def test_kernels_take_the_time_that_layers_compute(layout: str) -> None:
    """Kernels, gaps between them and waits for exchanges are a row of layers from start to end, none of them negative."""
    closed, chains = opening(predicted(layout))
    rows = closed.select(Opening(closed, chains).sizes > 0)
    for rank in rows.ranks:
        mine = rows.of_rank(rank)
        for at, blocks in chains.blocks(rank, mine["step"], mine["op"]):
            computed = (mine["end"] - mine["start"])[at]
            for block in range(len(at)):
                ops, ends = blocks.pieces(block)
                lengths = np.diff([float(blocks.start[block]), *ends])
                assert (lengths >= 0).all() and ends[-1] == blocks.end[block]
                kernels = float(lengths[~np.isin(ops, [-1, *blocks.groups])].sum())
                assert 0 < kernels <= computed[block] + 1e-12
            # All blocks together are summed as each of them is opened.
            every = np.arange(len(at))
            whole = sum(seconds for _, seconds, _ in blocks.sums(every))
            assert whole == pytest.approx(float((blocks.end - blocks.start).sum()))


@layouts
def test_the_page_has_what_opens_rows_of_layers(layout: str) -> None:
    """Each row of layers with its pattern, whose clocks at its speeds end when it ends; its waits are behind it."""
    data = gantt(predicted(layout))
    assert data is not None and data["patterns"]
    for row in data["rows"]:
        ends = np.cumsum(row["s"]) + row["d"]
        for place, number, waits, lasting, *speeds in row["blocks"]:
            pattern = data["patterns"][number]
            begun = int(np.cumsum(row["s"])[place])
            assert ends[place + waits] - begun == pytest.approx(lasting, abs=3)
            clocks = np.array(pattern["cut"])
            if pattern["times"]:
                clocks = pattern["times"] * np.array(pattern["total"]) - clocks
            assert clocks @ np.array(speeds) == pytest.approx(lasting, rel=1e-5, abs=5)
            streams = {data["streams"][op[-1]] for op in pattern["ops"]}
            mine = {r["stream"] for r in data["rows"] if r["rank"] == row["rank"]}
            assert streams <= mine


def test_a_step_takes_as_long_whoever_looks() -> None:
    """Opening changes the timeline and nothing else of a prediction."""
    result = predicted("pipeline")
    opened, said = with_kernels(result)
    assert opened.to_dict() == result.to_dict() == predicted("pipeline").to_dict()
    assert said == "layers are opened into 2 720 of 2 720 kernels"


def test_what_is_opened_is_bounded() -> None:
    """Where all kernels are too many: those of the last step, of one rank in it, of one of its microbatches; none."""
    result = predicted("pipeline")
    closed, _ = opening(result)
    shown = {most: with_kernels(result, most) for most in (2720, 2719, 1000, 300, 0)}
    lengths = [len(timeline(one)) for one, _ in shown.values()]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] == len(closed)
    said = [words for _, words in shown.values()]
    assert "step 1 are" in said[1] and "rank 0 are" in said[2]
    assert "microbatch" in said[3] and "not opened" in said[4]
    for most, (one, _) in shown.items():
        assert len(timeline(one)) <= len(closed) + most


@pytest.mark.parametrize("layout", ["pipeline", "ring", "experts"])
@pytest.mark.parametrize("most", [1e9, 0])
def test_replay_reads_the_trace_of_a_step_opened_or_not(
    layout: str, most: float, tmp_path: Path
) -> None:
    """It takes as long as the step that was predicted."""
    result = predicted(layout)
    said = chrome_trace.write(result, tmp_path / "step.json", kernels=most)
    assert said.startswith("layers are opened" if most else "layers are not opened")
    outcome = replay_files([tmp_path / "step.json"], clock="gpu")
    assert outcome.step_time == pytest.approx(result.step_time, rel=5e-4)


def test_a_trace_in_pieces_is_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is read in pieces: names of all ranks come first, so that no rank's events are taken for all."""
    path = tmp_path / "step.json"
    chrome_trace.write(predicted("pipeline"), path)
    recordings = [len(one.spans) for one in kineto.read_all(path)]
    monkeypatch.setattr(chrome.read, "__defaults__", (1 << 16,))
    monkeypatch.setattr(chrome, "PIECE", 1 << 16)
    assert [len(one.spans) for one in kineto.read_all(path)] == recordings


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_gives_kernels_by_name(framework: str) -> None:
    """Where the path goes is told by kernels, whoever wrote the program."""
    path = api.simulate("llama1b-ddp4", SHORT | FRAMEWORKS[framework]).critical_path
    assert path is not None
    table = path.to_dict()
    families = {part["family"] for part in table["parts"] if part["kind"] == "kernel"}
    assert {"gemm", "attention"} <= families and "chain" not in families
    names = {one["name"] for one in table["longest"]}
    assert "aten.mm.default" in names
