"""The HTML report: one file, everything in it, nothing from outside."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.analysis import metrics
from prestep.sim.analysis.link_use import LinkKind
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _words as words
from prestep.sim.exporters import chrome_trace, html
from prestep.sim.exporters._html import sections, timeline
from prestep.sim.exporters._html.network import heat
from prestep.sim.markup import box, element, label, markup, table
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.sim.units import format_duration
from tests.browser import Page
from tests.sim.synthetic import result

EXAMPLES = Path(cli.__file__).parent / "examples"


@pytest.fixture(scope="module")
def pipeline() -> Prediction:
    return predict(
        load_scenario(
            EXAMPLES / "pipeline-zero-bubble.toml",
            ["model.layers=4", "training.microbatches=4"],
        )
    )


def data(page: str, name: str) -> dict:
    found = re.search(
        rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL
    )
    assert found is not None
    return json.loads(found[1])


class Balanced(HTMLParser):
    """Opens and closes."""

    EMPTY = ("meta", "link", "input", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_nothing(pipeline: Prediction) -> None:
    """Tags close, ids are unique, and no address is in it."""
    page = html.render(pipeline)
    parser = Balanced()
    parser.feed(page)
    assert not parser.open and len(parser.ids) == len(set(parser.ids))
    assert not re.search(r"(src|href)=\"(?!#|data:)|https?://|@import|url\(", page)
    for section in (
        "step",
        "timeline",
        "network",
        "kernels",
        "memory",
        "evidence",
        "scenario",
    ):
        assert section in parser.ids


def test_spans_of_the_timeline_are_those_of_the_step(pipeline: Prediction) -> None:
    """Starts, durations and names of every span of the last step come back from the page's data."""
    found = data(html.render(pipeline), "gantt-data")
    assert pipeline.timeline is not None
    spans = pipeline.timeline.of_step(int(pipeline.timeline.steps[-1]))
    assert sum(len(row["s"]) for row in found["rows"]) == len(spans)
    busy = sum(sum(row["d"]) for row in found["rows"]) * 1e-9
    assert busy == pytest.approx(float((spans["end"] - spans["start"]).sum()), rel=1e-6)
    for row in found["rows"]:
        ends = np.cumsum(row["s"]) + row["d"]
        assert ends.max() <= found["length"] + 1 and min(row["d"]) >= 0


def test_heat_carries_the_bytes_that_the_links_carried(pipeline: Prediction) -> None:
    """Use times bandwidth times time, over all links, is what the run carried in the window."""
    details = pipeline.details
    assert details is not None and pipeline.timeline is not None
    end = float(pipeline.timeline["end"].max())
    found = heat(details, (0.0, end))
    sizes = found.mean.mean(axis=1)
    used = metrics.link_utilisation(
        details.carried, details.fabric.links.bandwidth, end
    )
    assert found.busiest.mean(axis=1).max() == pytest.approx(used.max(), rel=1e-6)
    assert (found.mean <= found.busiest.max() + 1e-9).all() and (
        sizes <= used.max() + 1e-12
    ).all()
    assert found.busiest.max() <= 1 + 1e-9


def test_ranks_that_are_alike_are_one_row(pipeline: Prediction) -> None:
    """What the rows stand for is all ranks, however they are folded."""
    scenario = load_scenario(EXAMPLES / "1b-ddp.toml", ["model.layers=2"])
    found = data(html.render(predict(scenario)), "gantt-data")
    assert {row["rank"]: row["stands"] for row in found["rows"]} == {0: 4}
    assert found["shown"] == found["ranks"] == 4


def test_a_name_cannot_break_out_of_the_page() -> None:
    """Markup in a scenario's text stays text."""
    page = html.render(
        result(scenario={"model": "</script><b id=evil>", "cluster": '"><img src=x>'})
    )
    assert "<b id=evil>" not in page and "<img" not in page


def test_text_is_escaped_once_however_a_page_is_put_together() -> None:
    """In an element, an attribute, a tooltip, a cell, a sum; markup stays as it is."""
    bold = element("b", "<&>", title='"')
    assert bold == '<b title="&quot;">&lt;&amp;&gt;</b>'
    assert "<i>" + bold + "<i>" == markup("<i>", bold, "<i>")
    assert "<i>" + bold == f"&lt;i&gt;{bold}" and markup(bold, "") == bold
    shown = box(0, 0, 1, 1, "<i>") + label("<i>", 0, 0) + table(["<i>"], [["<i>"]])
    assert "<i>" not in shown and "&amp;" not in shown and shown.count("&lt;i&gt;") == 5


def test_measured_steps_are_shown_where_there_are_any() -> None:
    """The section stands only with a measured time, what-ifs only when asked for."""
    assert 'id="measured"' in html.render(
        result()
    ) and 'id="measured"' not in html.render(result(measured=None))
    assert 'id="whatif"' not in html.render(result())


def test_the_command_writes_a_report_with_whatifs(tmp_path: Path) -> None:
    """`run --report --each` as a user types it."""
    path = tmp_path / "r.html"
    made = CliRunner().invoke(
        cli.main, ["run", "mlp-ddp4", "--report", str(path), "--each", "gpu"]
    )
    assert made.exit_code == 0, made.output
    page = path.read_text(encoding="utf-8")
    assert 'id="whatif"' in page and "gpu hbm_bandwidth" in page


@pytest.mark.parametrize(
    "options",
    [
        ["--each", "gpu"],
        ["--trace-ranks", "0"],
        ["--trace", "t.json", "--trace-window", "2s:1s"],
        ["--trace", "t.json", "--trace-window", "1:2"],
        ["--trace", "t.json", "--trace-ranks", "3-1"],
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str]) -> None:
    """Exit code 2 and the option's name, before anything is simulated."""
    made = CliRunner().invoke(cli.main, ["run", "mlp-ddp4", *options])
    assert (
        made.exit_code == 2 and "--" in made.output and "Traceback" not in made.output
    )


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    """Window and ranks choose spans; transfers have arrows from the last to come to those who waited."""
    whole, part = tmp_path / "a.json", tmp_path / "b.json"
    scenario = str(EXAMPLES / "pipeline-zero-bubble.toml")
    small = ["--set=model.layers=4", "--set=training.microbatches=4"]
    options = ["--trace-window", "20ms:60ms", "--trace-ranks", "1-2"]
    assert (
        CliRunner()
        .invoke(cli.main, ["run", scenario, *small, "--trace", str(whole)])
        .exit_code
        == 0
    )
    assert (
        CliRunner()
        .invoke(cli.main, ["run", scenario, *small, "--trace", str(part), *options])
        .exit_code
        == 0
    )
    events, fewer = (
        json.loads(path.read_text())["traceEvents"] for path in (whole, part)
    )
    kernels = [e for e in fewer if e.get("cat") == "kernel"]
    assert {e["pid"] for e in kernels} == {1, 2}
    assert all(e["ts"] < 60e3 and e["ts"] + e["dur"] > 20e3 for e in kernels)
    flows = [e for e in events if e.get("cat") == "communication"]
    pairs: dict[int, dict[str, dict]] = {}
    for event in flows:
        pairs.setdefault(event["id"], {})[event["ph"]] = event
    assert pairs and all(
        set(pair) == {"s", "f"} and pair["s"]["pid"] != pair["f"]["pid"]
        for pair in pairs.values()
    )
    assert all(pair["f"]["ts"] >= pair["s"]["ts"] - 1e-3 for pair in pairs.values())


def test_a_trace_counts_memory(pipeline: Prediction) -> None:
    """Of every rank by owner in MiB: in the order of time, never below zero, at most and nearly its peak; in a window
    only what is there."""
    events = json.loads(chrome_trace.render(pipeline))["traceEvents"]
    counters = [e for e in events if e["ph"] == "C" and e["name"].startswith("memory")]
    assert {e["pid"] for e in counters} == set(pipeline.peak_memory)
    for rank, peak in pipeline.peak_memory.items():
        mine = [e for e in counters if e["pid"] == rank]
        assert [e["ts"] for e in mine] == sorted(e["ts"] for e in mine)
        assert min(size for e in mine for size in e["args"].values()) >= 0
        assert max(sum(e["args"].values()) for e in mine) * 2**20 == pytest.approx(
            peak.total, rel=0.05
        )
    part = json.loads(chrome_trace.render(pipeline, 1, (0.02, 0.06)))["traceEvents"]
    times = [e["ts"] for e in part if e["ph"] == "C"]
    assert times and min(times) >= 0.02e6 and max(times) < 0.06e6


@pytest.mark.slow
def test_a_browser_draws_it(
    browser_page: Page, pipeline: Prediction, tmp_path: Path
) -> None:
    """The script runs without an error; a click on a span shows its details."""
    page = html.render(pipeline)
    click = """<script>addEventListener("load", () => { const c = document.getElementById("gantt");
      c.dispatchEvent(new KeyboardEvent("keydown", {key: "n"})); c.dispatchEvent(new KeyboardEvent("keydown", {key: "+"}));
      const b = c.getBoundingClientRect(); for (const t of ["pointerdown", "pointerup"])
        c.dispatchEvent(new PointerEvent(t, {clientX: b.left + 0.5 * b.width, clientY: b.top + 35, pointerId: 1})); });
      onerror = (m) => { document.title = "ERROR " + m; };</script></head>"""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</head>", click, 1), encoding="utf-8")
    made = browser_page.dom(f"file://{path}", "document.readyState === 'complete'")
    assert "<title>ERROR" not in made
    detail = re.search(r'id="detail"[^>]*>(.*?)</div>', made, re.DOTALL)
    assert detail is not None and "lasts" in detail[1]


def test_one_step_has_one_length_on_a_page() -> None:
    """A section whose picture is longer or shorter than the step says the step time, and why."""
    small = ["model.layers=8", "training.global_batch=16"]
    result = predict(load_scenario(EXAMPLES / "megatron-3d.toml", small))
    step = format_duration(result.step_time)
    assert result.critical_path is not None
    said = {
        "timeline": timeline.timeline(result),
        "links": sections.network(result),
        "path": sections.critical(result),
    }
    assert f"A step takes {step}" in said["timeline"]
    assert f"{step}, " in said["path"]
    drawn = re.search(
        r"Drawn is the last step of rank \d+, ([^;]+); the step time, ([^,]+),",
        said["links"],
    )
    assert drawn is None or (drawn[1] != drawn[2] == step)


def test_a_model_without_a_name_is_called_by_its_size(pipeline: Prediction) -> None:
    """As models are: by billions of parameters, or millions."""
    for parameters, told in (
        (2_069_284_864, "2.07B model"),
        (125_000_000, "125M model"),
    ):
        summary = {**pipeline.scenario, "model": "inline", "parameters": parameters}
        title = words.title(replace(pipeline, scenario=summary))
        assert title.startswith(f"{told} on h200-host-4, ")


def test_no_row_of_a_table_is_nothing(pipeline: Prediction) -> None:
    """Shares that would be said as 0.0 % have no row: of the step, its path, its memory, and what was not measured."""
    page = html.render(pipeline)
    shown = page.partition('id="network"')[0] + page.partition('id="memory"')[2]
    assert ">0.0 %<" not in shown and " %<" in shown


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"spine": (0.5, 0.4)}, "spine is full for 500 ms of the step; 1 % more bandwidth saves 4 ms."),
        ({"spine": (0.5, 0.4), "nvlink": (0.0, 0.9)}, "1 % more bandwidth of spine saves 4 ms, of nvlink 9 ms."),
        ({"nic": (0.001, 0.2), "nvlink": (0.0, 0.9)}, "no link is full for long; nvlink matters most: 1 % more bandwidth saves 9 ms."),
        ({"nic": (0.0, 0.0)}, "no link holds a transfer back."),
        ({"nic": (0.5, None)}, "nic is full for 500 ms of the step."),
    ],
)  # fmt: skip
def test_the_bottleneck_is_what_is_full_and_what_is_worth_most(
    kinds: dict[str, tuple[float, float | None]], said: str
) -> None:
    """Of a step of 5 s: seconds in which a kind is full, and what all of its bandwidth again would save."""
    made = tuple(
        LinkKind(name, 1, 0.5, 1.0, held, price)
        for name, (held, price) in kinds.items()
    )
    assert sections.bottleneck(replace(result(), step_time=5.0, link_kinds=made)).endswith(said)  # fmt: skip
