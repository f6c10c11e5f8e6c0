"""The report and the explorer as somebody sees them: both themes, a phone and a screen, a keyboard; in a real Chromium."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prestep import cli
from prestep.sim.explorer.answers import Explorer
from prestep.sim.explorer.server import Server
from prestep.sim.exporters import html
from prestep.sim.predict import predict
from prestep.sim.record import measured_runs as measured
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.tornado import short_tornado
from prestep.sim.studies.variants import parse_against, variants_of
from tests.browser import CHROMIUM, Page

EXAMPLES = Path(cli.__file__).parent / "examples"
LOOKS = (Path(__file__).parent.parent / "looks.js").read_text(encoding="utf-8")
WINDOWS = [
    pytest.param(wide, theme, id=f"{wide}-{theme}")
    for wide in (390, 1440)
    for theme in ("light", "dark")
]
#: Whether what has the focus can be seen: nothing lies on its middle.
SEEN = """(() => { const e = document.activeElement, b = e.getBoundingClientRect();
  return document.elementFromPoint((b.left + b.right) / 2, (b.top + b.bottom) / 2) === e; })()"""
IDLE = "document.getElementById('answer').getAttribute('aria-busy') === 'false'"
SMALL = ("model.layers=2", "cluster.hosts=2", "parallel.dp=16")
#: Pictures that do not fit into the window, by name.
SCROLLED = """[...document.querySelectorAll(".scroll")].filter((b) => b.checkVisibility() && b.querySelector("svg")
  && b.scrollWidth > b.clientWidth + 1).map((b) => b.getAttribute("aria-label"))"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]


@pytest.fixture
def page(browser_page: Page) -> Page:
    return browser_page


def written(folder: Path, example: str, *changes: str) -> str:
    """The address of the report of an example, with all its sections."""
    scenario = load_scenario(EXAMPLES / example, changes)
    result = predict(scenario, prices=True)
    text = html.render(
        result,
        short_tornado(scenario, result),
        measured.lookup(scenario, result.step_time),
        ("training.micro_batch=1",),
    )
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return f"file://{path}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small pipeline on measured hosts."""
    small = ("model.layers=4", "training.microbatches=4")
    folder = tmp_path_factory.mktemp("pipeline")
    return written(folder, "pipeline-zero-bubble.toml", *small)


@pytest.fixture(scope="module")
def too_large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A step that does not fit, with guesses, warnings and a network of several hosts."""
    folder = tmp_path_factory.mktemp("large")
    return written(
        folder,
        "superpod-fsdp.toml",
        *SMALL,
        "training.micro_batch=16",
        "model.vocab=1000000",
    )


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three networks side by side, one with a full spine, and a step of many microbatches."""
    path = EXAMPLES / "oversubscribed-spine.toml"
    small = (
        "model.layers=2",
        "training.grad_accumulation=6",
        "parallel.data_parallel=ddp",
    )
    asked = [
        parse_against(text, path) for text in ("spine.bandwidth=0.25x", "rail-h100")
    ]
    made = variants_of(load_scenario(path, small), asked, small)
    file = tmp_path_factory.mktemp("variants") / "answer.html"
    file.write_text(html.render(made[0].result, variants=made), encoding="utf-8")
    return f"file://{file}"


@pytest.fixture(scope="module")
def explorer() -> Iterator[str]:
    """The address of an explorer with every kind of slider."""
    with Server(Explorer(EXAMPLES / "superpod-fsdp.toml", SMALL)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def is_readable(page: Page, wide: int) -> None:
    """The window never scrolls sideways, no text lies on another or is hard to tell from its ground, no error is logged."""
    high = min(16_000, page.value("document.documentElement.scrollHeight"))
    page.resize(wide, high)
    found = page.value(LOOKS)
    assert found["looked"] > 50
    assert found["over"] <= 0 and not found["wide"]
    assert not found["overlaps"]
    assert not found["cut"]
    assert not found["faint"]
    assert not page.complaints


@pytest.mark.parametrize("name", ["report", "too_large", "variants"])
@pytest.mark.parametrize(("wide", "theme"), WINDOWS)
def test_a_report_is_readable(
    page: Page, request: pytest.FixtureRequest, name: str, wide: int, theme: str
) -> None:
    """On a phone and on a screen, in light and in dark."""
    page.open(request.getfixturevalue(name), wide, theme=theme)
    is_readable(page, wide)


def test_pictures_fit_a_phone(page: Page, too_large: str) -> None:
    """All but the cluster's, whose devices stand side by side; their letters are as large as beside them."""
    page.open(too_large, 390)
    assert [name.partition(":")[0] for name in page.value(SCROLLED)] == [
        "The cluster dgx-h100-superpod"
    ]
    shown = "[...document.querySelectorAll('.phone svg')].filter((s) => s.checkVisibility())"
    scales = page.value(f"{shown}.map((s) => s.clientWidth / s.viewBox.baseVal.width)")
    assert len(scales) >= 6 and min(scales) > 0.85


def test_a_report_begins_with_its_answer(page: Page, too_large: str) -> None:
    """The sentence of the terminal, in the first window of a phone: that it does not fit, and what would."""
    page.open(too_large, 390, 600)
    answer = "document.querySelector('.answer')"
    told = page.value(f"{answer}.textContent")
    assert told.startswith("Does not fit: ") and "training.micro_batch=1" in told
    assert page.value(f"{answer}.getBoundingClientRect().bottom") < 600


@pytest.mark.parametrize(("wide", "theme"), WINDOWS)
def test_the_explorer_is_readable(
    page: Page, explorer: str, wide: int, theme: str
) -> None:
    """With a change and a pinned step, and with what is wrong with a change."""
    page.open(f"{explorer}#set=nic.bandwidth=0.25x", wide, theme=theme)
    page.until(IDLE)
    page.value("document.getElementById('pin').click()")
    is_readable(page, wide)
    page.open(f"{explorer}#set=training.micro_batch=64", wide, theme=theme)
    page.until(IDLE)
    is_readable(page, wide)


@pytest.mark.parametrize("wide", [390, 1440])
def test_the_keyboard_reaches_every_slider(
    page: Page, explorer: str, wide: int
) -> None:
    """Tab stops at each control once, in view; an arrow moves it, and the answer follows."""
    page.open(explorer, wide)
    page.until(IDLE)
    controls = page.value(
        "[...document.querySelectorAll('#knobs input, #knobs select')].map((c) => c.id)"
    )
    reached = []
    for _ in range(len(controls) + 10):
        page.press("Tab")
        focus = page.value("document.activeElement.id")
        if focus in controls:
            page.until(SEEN)  # the window scrolls to it
            reached.append(focus)
    assert reached == controls
    page.value("document.getElementById('nic.bandwidth').focus()")
    before = page.value("document.getElementById('steptime').textContent")
    for _ in range(3):
        page.press("ArrowLeft")
    page.until(f"{IDLE} && location.hash.includes('nic.bandwidth=0.25x')")
    page.until(f"document.getElementById('steptime').textContent !== '{before}'")
    assert not page.complaints


def test_keys_of_games_move_the_timeline(page: Page, report: str) -> None:
    """W and S zoom, A and D move, Home shows everything again."""
    page.open(report, 1440)
    page.value("document.getElementById('gantt').focus()")
    shown = "document.getElementById('span').textContent"
    seen = [page.value(shown)]
    for key in ("w", "d", "a", "s", "Home"):
        page.press(key)
        seen.append(page.value(shown))
    whole, zoomed, right, left, _, home = seen
    assert whole != zoomed != right and zoomed == left and whole == home
    assert not page.complaints


def test_the_step_time_comes_before_its_pictures(page: Page, explorer: str) -> None:
    """A slider that moves asks for the step time first, then for the rest, of the same step."""
    page.open(explorer, 1440)
    page.until(IDLE)
    page.value(
        "globalThis.asked = []; globalThis.real = fetch;"
        "globalThis.fetch = (url) => { asked.push(url); return real(url); };"
        "const c = document.getElementById('gpu.clock'); c.value = 0;"
        "c.dispatchEvent(new Event('input', { bubbles: true }));"
    )
    page.until(f"asked.length >= 2 && {IDLE}")
    first, second = page.value("asked.slice(0, 2)")
    assert first == "/step?gpu.clock=0.125x" and second == "/answer?gpu.clock=0.125x"
