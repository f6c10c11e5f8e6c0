"""The report in a real headless Chromium: no errors, pictures that answer, the keyboard, narrow windows, paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prestep import cli
from prestep.sim.exporters import html
from prestep.sim.predict import predict
from prestep.sim.record import measured_runs as measured
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.tornado import short_tornado
from tests.browser import CHROMIUM, Page

Told = Callable[..., Any]
EXAMPLES = Path(cli.__file__).parent / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def page() -> str:
    """A report with all its sections."""
    small = ["model.layers=4", "training.microbatches=4"]
    scenario = load_scenario(EXAMPLES / "pipeline-zero-bubble.toml", small)
    result = predict(scenario, prices=True)
    return html.render(
        result,
        short_tornado(scenario, result),
        measured.lookup(scenario, result.step_time),
    )


@pytest.fixture
def told(browser_page: Page, page: str, tmp_path: Path) -> Told:
    """What a script that runs in the page puts into `said`; an error on the console fails."""
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")

    def run(script: str, wide: int = 1280, high: int = 900) -> Any:
        browser_page.open(f"file://{path}", wide, high)
        found = browser_page.value(
            "(() => { const said = {}; const byId = (id) => document.getElementById(id);"
            'const key = (k) => byId("gantt").dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true }));'
            f"{script}; return said; }})()"
        )
        assert not browser_page.complaints
        return found

    return run


def test_every_section_is_there_and_drawn(told: Told) -> None:
    """Each picture has a size, the timeline is not blank, and no label of the cluster lies on another."""
    script = """
      said.sections = [...document.querySelectorAll("section")].map((s) => s.id);
      said.flat = [...document.querySelectorAll("svg, canvas")].filter((s) => s.checkVisibility() && s.getBoundingClientRect().height < 10).length;
      const c = byId("gantt"), pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      said.colours = new Set(new Uint32Array(pixels.buffer)).size;
      const texts = [...document.querySelectorAll("svg[aria-label^='The cluster'] text")].map((t) => t.getBoundingClientRect());
      said.clash = texts.filter((a, i) => texts.some((b, k) => k > i && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)).length;
      said.wide = document.documentElement.scrollWidth - innerWidth;
    """
    said = told(script)
    wanted = [
        "timeline",
        "step",
        "measured",
        "critical",
        "network",
        "kernels",
        "memory",
        "whatif",
        "evidence",
        "scenario",
    ]
    assert said["sections"] == wanted and said["flat"] == 0 and said["colours"] > 5
    assert said["clash"] == 0 and said["wide"] <= 0


def test_the_keyboard_reaches_everything(told: Told) -> None:
    """Tab stops in the order of the page, the link to the figures first; keys zoom, move and choose in the timeline; what
    does not scroll is no stop; a focus is seen."""
    script = """
      const stops = [...document.querySelectorAll("a[href], button, input, select, [tabindex]")].filter((e) => e.tabIndex >= 0 && e.offsetParent !== null);
      said.first = stops[0].className; said.names = stops.map((e) => e.id || e.tagName);
      said.positive = stops.filter((e) => e.tabIndex > 0).length;
      said.idle = stops.filter((e) => e.classList.contains("scroll") && e.scrollWidth <= e.clientWidth + 1).length;
      byId("gantt").focus(); said.focused = document.activeElement.id;
      said.outline = getComputedStyle(byId("gantt")).outlineStyle;
      const shown = () => byId("span").textContent;
      said.all = shown(); key("+"); said.zoomed = shown(); key("ArrowRight"); said.moved = shown(); key("Home"); said.home = shown();
      key("n"); said.one = byId("detail").textContent; key("ArrowDown"); said.below = byId("detail").textContent; key("p");
    """
    said = told(script)
    assert said["first"] == "skip" and said["positive"] == 0 and said["idle"] == 0
    assert (
        said["names"].index("theme")
        < said["names"].index("gantt")
        < said["names"].index("moment")
    )
    assert said["focused"] == "gantt"
    assert (
        said["all"] == said["home"]
        and len({said["all"], said["zoomed"], said["moved"]}) == 3
    )
    assert (
        "lasts" in said["one"]
        and "lasts" in said["below"]
        and said["one"] != said["below"]
    )


POINT = """
      const c = byId("gantt"), box = c.getBoundingClientRect(); c.setPointerCapture = () => {};
      const point = (type, x, more = {}) => c.dispatchEvent(new PointerEvent(type,
        { clientX: box.left + x, clientY: box.top + 40, bubbles: true, pointerId: 1, pointerType: "mouse", ...more }));
"""


def test_a_pointer_and_a_search_tell_spans(told: Told) -> None:
    """Hovering shows what is under the pointer and nothing beside it; the search counts, dims the rest, Enter goes on."""
    script = (
        POINT
        + """
      let over = 0; for (let x = 200; x < box.width && byId("tip").hidden; x += 4) { point("pointermove", x); over = x; }
      said.tip = byId("tip").textContent; said.inside = over < box.width;
      point("pointermove", 20); said.beside = byId("tip").hidden;
      const find = byId("find"), type = (text) => { find.value = text; find.dispatchEvent(new Event("input")); };
      const look = () => c.toDataURL(), enter = () => find.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      const plain = look(); type("send"); said.hits = byId("hits").textContent; said.dimmed = look() !== plain;
      enter(); said.one = byId("detail").textContent; enter(); said.two = byId("detail").textContent;
      type("no such kernel"); said.none = byId("hits").textContent; type(""); said.cleared = byId("hits").textContent;
    """
    )
    said = told(script)
    assert said["inside"] and "lasts" in said["tip"] and said["beside"]
    assert re.match(r"\d+ spans, [\d.]+ m?s", said["hits"]) and said["dimmed"]
    assert said["one"].startswith("send") and said["two"] != said["one"]
    assert said["none"] == "nothing of that name" and said["cleared"] == ""


def test_a_range_is_summed_and_keys_of_games_move(told: Told) -> None:
    """Shift and a drag: what the ranks do in that time adds up to it; WASD zoom and move as + - and the arrows do."""
    script = (
        POINT
        + """
      const drag = (more) => { point("pointerdown", 300, more); point("pointermove", 700, more); point("pointerup", 700, more); };
      const shown = () => byId("span").textContent;
      const all = shown(); drag({ shiftKey: true }); said.sums = byId("detail").textContent; said.still = shown() === all;
      byId("sum").click(); drag({}); said.button = byId("detail").textContent; byId("sum").click();
      c.focus(); key("w"); said.w = shown(); key("Home"); key("+"); said.plus = shown(); key("d"); said.d = shown();
      key("a"); said.a = shown(); key("s"); key("Home"); said.home = shown() === all;
    """
    )
    said = told(script)
    assert said["still"] and said["sums"] == said["button"]
    unit = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
    head, _, rest = said["sums"].partition("mean of 4 rows of ranks")
    number, name = head.split(": ")[1].rstrip(", ").split()
    length = float(number) * unit[name]
    parts = {
        what.strip(): float(value) * unit[u]
        for what, value, u in re.findall(r"([A-Za-z ]+?) ([\d.]+) (m?s|us|ns)", rest)
    }
    work = ("forward", "backward", "optimizer", "other", "compute stream idle")
    assert sum(parts.get(name, 0.0) for name in work) == pytest.approx(length, rel=0.01)
    assert said["w"] == said["plus"] == said["a"] != said["d"] and said["home"]


def test_the_moment_moves_the_links(told: Told) -> None:
    """The slider shows another use of the links, says when, and puts a line into the rows; at its end it is as before."""
    script = """
      const slider = byId("moment"), set = (at) => { slider.value = at; slider.dispatchEvent(new Event("input")); };
      const seen = () => [...document.querySelectorAll("[data-edge]")].map((w) => w.getAttribute("stroke-opacity"));
      said.whole = seen(); said.moments = [];
      for (let at = 1; at <= Number(slider.max); at++) { set(at); said.moments.push(seen().join()); }
      said.when = byId("when").textContent; said.cursors = [...document.querySelectorAll("line.now")].map((c) => c.getAttribute("visibility"));
      set(0); said.back = seen();
    """
    said = told(script)
    assert len(set(said["moments"])) >= 3 and said["whole"] == said["back"]
    assert " to " in said["when"] and set(said["cursors"]) == {"visible"}


def test_light_and_dark(told: Told) -> None:
    """The button changes the colours of the page and of the timeline; letters stay readable on it."""
    script = """
      const look = () => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; };
      const canvas = () => byId("gantt").toDataURL().length + byId("gantt").toDataURL().slice(-400);
      said.one = look(); const before = canvas(); byId("theme").click(); said.other = look(); said.painted = canvas() !== before;
    """
    said = told(script)
    assert said["one"] != said["other"] and said["painted"]
    for ink, ground in (said["one"], said["other"]):
        light = [
            sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, ground)
        ]
        assert abs(light[0] - light[1]) > 400


def test_a_narrow_window_scrolls_pictures_not_the_page(told: Told) -> None:
    """At 500 pixels the page is as wide as the window; wide pictures and tables scroll in it, and the keyboard reaches them."""
    script = """
      said.over = document.documentElement.scrollWidth - innerWidth;
      const boxes = [...document.querySelectorAll(".scroll")].filter((b) => b.scrollWidth > b.clientWidth + 1);
      said.scrolling = boxes.length; said.reached = boxes.filter((b) => b.tabIndex === 0).length;
      said.bar = document.querySelector(".stack").getBoundingClientRect().height;
    """
    said = told(script, wide=500)
    assert (
        said["over"] <= 0
        and said["scrolling"] > 0
        and said["scrolling"] == said["reached"]
        and said["bar"] > 25
    )


def test_it_prints(browser_page: Page, page: str, tmp_path: Path) -> None:
    """To a few pages, in light, whatever the screen has; without buttons, which paper does not press."""
    path, paper = tmp_path / "page.html", tmp_path / "page.pdf"
    path.write_text(page, encoding="utf-8")
    browser_page.open(f"file://{path}", 1280, theme="dark")
    browser_page.print(paper)
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert paper.read_bytes().startswith(b"%PDF") and 3 <= pages <= 16
    browser_page.ask("Emulation.setEmulatedMedia", media="print")
    shown = "[...document.querySelectorAll('button, nav')].filter((b) => b.checkVisibility()).length"
    assert browser_page.value(shown) == 0
    browser_page.ask("Emulation.setEmulatedMedia", media="")
