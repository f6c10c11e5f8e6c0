"""Exporters say what the result says, in the formats that other tools read."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prestep.sim.analysis.memory import Memory
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import SPANS
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.exporters import (
    chrome_trace,
    markdown,
    name_for,
    parquet,
    terminal,
    write,
)
from prestep.sim.plugins import discover, load
from tests.sim.synthetic import EXPECTED, result, timeline

GOLDEN = Path(__file__).parent / "goldens" / "chrome_trace.json"


@pytest.mark.parametrize("name", list(discover("prestep.sim.exporters")))
def test_every_exporter_writes_the_same_bytes_twice(name: str, tmp_path: Path) -> None:
    """An exporter found in the folder writes a file under its first suffix, and the same one every time."""
    suffix = load("prestep.sim.exporters", name).SUFFIXES[0]
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    assert name_for(first) == name
    for path in (first, second):
        write(result(), path)
    assert first.read_bytes() == second.read_bytes() != b""


def test_an_unknown_ending_lists_the_known_ones(tmp_path: Path) -> None:
    """Wrong input is an InputError that says what would be right."""
    with pytest.raises(InputError, match=r"expected one of .*json.gz.*parquet"):
        write(result(), tmp_path / "trace.xyz")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a path that can be written"):
        write(result(), tmp_path / "file" / "trace.json")


def test_json_has_the_names_scripts_rely_on() -> None:
    """to_json is in SI units; its breakdown sums to the step time."""
    said = json.loads(result().to_json())
    names = {
        "step_time",
        "step_time_by_rank",
        "tokens_per_second_per_gpu",
        "mfu",
        "tflops_per_gpu",
        "breakdown",
    }
    assert names | {"peak_memory", "links", "evidence"} <= set(said)
    assert sum(said["breakdown"].values()) == pytest.approx(said["step_time"])
    assert said["peak_memory"]["0"]["total"] == 17e9
    assert (
        said["out_of_memory"]["fits"] is True
        and said["out_of_memory"]["largest_owner"] == "activations"
    )
    assert said["signed_error"] == pytest.approx(1 / 110)


def test_json_has_no_nan() -> None:
    """What is not known is null; numpy's numbers are numbers."""
    said = json.loads(
        result(mfu=float("nan"), scenario={"gpus": np.int64(4)}).to_json()
    )
    assert said["mfu"] is None and said["scenario"]["gpus"] == 4


def test_memory_verdict_is_about_the_fullest_rank() -> None:
    """One rank that does not fit is enough."""
    verdict = result(
        peak_memory={0: Memory(parameters=1e9), 1: Memory(optimizer=9e9)},
        memory_capacity=8e9,
    ).out_of_memory
    assert verdict is not None and (
        verdict.fits,
        verdict.rank,
        verdict.largest_owner,
    ) == (False, 1, "optimizer")
    assert result(peak_memory={}).out_of_memory is None


def test_chrome_trace_is_the_golden_one() -> None:
    """The trace of the synthetic step, one event per line, is as reviewed."""
    assert chrome_trace.render(result(), 0) == GOLDEN.read_text()


def by_category(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        found[
            event.get("cat", event["ph"])
            + ("-" + event["ph"] if event.get("cat") == "ac2g" else "")
        ].append(event)
    return found


def test_launches_arrows_and_kernels_share_correlations() -> None:
    """Every kernel has one launch before it, linked by its correlation and by an arrow from call to kernel."""
    events = by_category(
        json.loads(chrome_trace.render(result(timeline=timeline(ranks=1, steps=3))))
    )
    on_gpu = {
        e["args"]["correlation"]: e for e in events["kernel"] + events["gpu_memcpy"]
    }
    calls = {e["args"]["correlation"]: e for e in events["cuda_runtime"]}
    starts, ends = ({e["id"]: e for e in events[f"ac2g-{ph}"]} for ph in "sf")
    assert set(on_gpu) == set(calls) == set(starts) == set(ends) and len(on_gpu) == 21
    for correlation, kernel in on_gpu.items():
        assert calls[correlation]["ts"] + calls[correlation]["dur"] <= kernel["ts"]
        assert (
            starts[correlation]["ts"] == calls[correlation]["ts"]
            and ends[correlation]["ts"] == kernel["ts"]
        )


def test_rows_nest_as_perfetto_demands() -> None:
    """Events of one row are apart or inside each other, never half over each other."""
    trace = json.loads(chrome_trace.render(result(timeline=timeline(ranks=2, steps=3))))
    rows = defaultdict(list)
    for e in trace["traceEvents"]:
        if e["ph"] == "X":
            rows[e["pid"], e["tid"]].append(
                (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
            )
    for row in rows.values():
        open_until: list[int] = []
        for start, end in sorted(row, key=lambda x: (x[0], -x[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_kernels_launched_together_are_one_graph_launch() -> None:
    """A CUDA graph is one call on the host with many kernels."""
    spans = timeline()
    columns = {name: spans[name] for name in SPANS} | {
        "launch": np.full(len(spans), 10e-6)
    }
    events = by_category(
        json.loads(chrome_trace.render(result(timeline=type(spans).build(**columns))))
    )
    assert [e["name"] for e in events["cuda_runtime"]] == ["cudaGraphLaunch"]
    assert len({e["args"]["correlation"] for e in events["kernel"]}) == 1


def test_layers_and_what_they_exchange_are_no_graph() -> None:
    """A row of layers and its exchanges are launched at one moment, by an ordinary call."""
    spans = timeline()
    names = ["layer forward", *["tp exchanges of layer forward"] * (len(spans) - 1)]
    columns = {name: spans[name] for name in SPANS} | {
        "launch": np.full(len(spans), 10e-6),
        "name": names,
    }
    events = by_category(
        json.loads(chrome_trace.render(result(timeline=type(spans).build(**columns))))
    )
    assert [e["name"] for e in events["cuda_runtime"]] == ["cudaLaunchKernel"]


def test_a_folder_gets_one_file_per_rank(tmp_path: Path) -> None:
    """HolisticTraceAnalysis finds the rank of a file by the text `"rank": N`."""
    write(result(timeline=timeline(ranks=2)), tmp_path / "traces")
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == [
        "rank0.json.gz",
        "rank1.json.gz",
    ]
    text = gzip.decompress(
        (tmp_path / "traces" / "rank1.json.gz").read_bytes()
    ).decode()
    assert '"rank": 1' in text and {
        e["pid"] for e in json.loads(text)["traceEvents"]
    } == {1}


def test_collectives_look_like_nccl() -> None:
    """Names and arguments are those a profiler writes for NCCL's kernels."""
    kernels = by_category(json.loads(chrome_trace.render(result())))["kernel"]
    reduce = next(e for e in kernels if e["tid"] != 7 and e["args"].get("axis") == "dp")
    assert (
        reduce["name"]
        == "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    )
    shown = {
        key: reduce["args"][key]
        for key in ("Collective name", "In msg nelems", "Group size", "dtype")
    }
    assert shown == {
        "Collective name": "allreduce",
        "In msg nelems": 4096,
        "Group size": 2,
        "dtype": "BFloat16",
    }
    recv = next(e for e in kernels if e["args"].get("axis") == "pp")
    assert (
        recv["name"].startswith("ncclDevKernel_SendRecv(")
        and recv["args"]["wait (us)"] == 20
    )


def test_parquet_keeps_the_timeline(tmp_path: Path) -> None:
    """Reading what was written gives the same spans; the summary is in the metadata."""
    import pyarrow.parquet

    path = write(result(), tmp_path / "t.parquet")
    back = parquet.read(path)
    assert all(np.array_equal(back[name], timeline()[name]) for name in SPANS)
    metadata = pyarrow.parquet.read_schema(path).metadata
    assert json.loads(metadata[b"prestep.result"])["step_time"] == 333e-6


@pytest.mark.parametrize("name", ["chrome_trace", "parquet"])
def test_no_timeline_is_an_error(name: str, tmp_path: Path) -> None:
    """A format that is the timeline cannot be written without one."""
    with pytest.raises(PrestepError, match="no timeline"):
        write(result(timeline=None), tmp_path / "t", name)


@pytest.mark.parametrize("render", [terminal.render, markdown.render])
def test_people_see_what_matters(render: Any) -> None:
    """Prediction beside measurement, the breakdown, memory and its verdict, links, evidence and warnings."""
    text = render(result(warnings=("no table for this GPU",)))
    for words in (
        "333 us",
        "330 us",
        "+0.9 %",
        "97 412 tokens/s",
        "41.2 %",
        "exposed dp communication",
        "60.1 %",
        "activations",
        "fits",
        "gpu0->nvswitch0",
        "measured 80.0 %",
        "no table for this GPU",
    ):
        assert words in text or (
            words == "measured 80.0 %" and "| measured | 80.0 % |" in text
        ), words


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_the_page_keeps_to_its_width(width: int) -> None:
    """No line is wider than the terminal, and nothing is cut away: a long name goes over several lines."""
    said = terminal.render(result(warnings=("word " * 50,)), width)
    assert max(map(len, said.splitlines())) <= width
    assert said.count("word") == 50


def test_out_of_memory_is_said_aloud() -> None:
    """The verdict names the size, the capacity and the largest owner."""
    assert "OUT OF MEMORY" in terminal.render(result(memory_capacity=8e9))
    assert "the largest part is activations" in " ".join(
        terminal.render(result(memory_capacity=8e9)).split()
    )


def test_a_bare_result_renders() -> None:
    """Only the times are needed."""
    bare = Prediction(
        1.0, {0: 1.0}, 10.0, float("nan"), 0.0, dict.fromkeys(EXPECTED, 0.0)
    )
    assert "1 s" in terminal.render(bare) and "| step time | 1 s |" in markdown.render(
        bare
    )
