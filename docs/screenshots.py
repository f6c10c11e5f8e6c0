"""Pictures of the report and the explorer for these pages, taken in a headless Chromium: `python docs/screenshots.py`.

Run it from the repository's root after a change of either page. Pictures have few colours, so that they stay small.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from prestep.sim.explorer.answers import Explorer
from prestep.sim.explorer.server import Server
from prestep.sim.exporters import html
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario

ROOT = Path(__file__).parent.parent
SPINE = ROOT / "examples" / "oversubscribed-spine.toml"
PIPELINE = ROOT / "examples" / "pipeline-zero-bubble.toml"
COLOURS = 96
BROWSER = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--virtual-time-budget=15000",
)  # fmt: skip
# What a hand would do: pin the step as it is, then move the spine's slider to a position and wait for its curve.
HAND = """<script>addEventListener("load", async () => {
  const byId = (id) => document.getElementById(id), wait = () => new Promise((go) => setTimeout(go, 20));
  const until = async (test) => { for (let i = 0; i < 500 && !test(); i++) await wait(); };
  const idle = () => byId("answer").getAttribute("aria-busy") === "false";
  await until(idle); byId("pin").click();
  const c = byId("spine.bandwidth"); c.value = POSITION;
  c.dispatchEvent(new Event("input", { bubbles: true })); await until(idle);
  await until(() => c.closest(".knob").querySelectorAll("circle").length === 10);
});</script></head>"""
POINT = """<script>addEventListener("load", () => {
  const c = document.getElementById("gantt"), b = c.getBoundingClientRect();
  c.dispatchEvent(new PointerEvent("pointermove",
    { clientX: b.left + b.width * 0.45, clientY: b.top + 40, bubbles: true, pointerType: "mouse" }));
});</script></body>"""


def shot(address: str, wide: int, high: int) -> Image.Image:
    """The window of a page with few colours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shot.png"
        options = (
            f"--user-data-dir={folder}/profile",
            f"--window-size={wide},{high}",
            f"--screenshot={path}",
        )
        subprocess.run(
            [*BROWSER, *options, address], check=True, capture_output=True, timeout=120
        )
        return (
            Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        )


def answer() -> Image.Image:
    """The page that the README's first command writes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("<!-- printed: begin -->")[2].partition("```sh")[2]
    _, *arguments = shlex.split(block.partition("```")[0].replace("\\\n", " "))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / arguments[-1]
        command = (sys.executable, "-m", "prestep", *arguments[:-1], str(page))
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return shot(f"file://{page}", 1240, 1200)


def report() -> Image.Image:
    """The top of a report, a pointer over a span."""
    page = html.render(predict(load_scenario(PIPELINE, ())))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(page.replace("</body>", POINT, 1), encoding="utf-8")
        return shot(f"file://{path}", 1200, 860)


@contextmanager
def served(explorer: Explorer) -> Iterator[Server]:
    with Server(explorer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def moves(positions: Sequence[int]) -> list[Image.Image]:
    """The explorer with the spine's slider at each of some positions."""
    explorer = Explorer(SPINE)
    [spine] = [knob for knob in explorer.knobs if knob.key == "spine.bandwidth"]
    for value in spine.values:
        explorer.step({spine.key: value})
    made = []
    with served(explorer) as server:
        plain = server.text
        for position in positions:
            hand = HAND.replace("POSITION", str(position))
            server.text = plain.replace(b"</head>", hand.encode(), 1)
            made.append(shot(server.address, 1440, 840))
    return made


def main() -> None:
    folder = ROOT / "docs"
    answer().save(folder / "answer.png", optimize=True)
    report().save(folder / "report.png", optimize=True)
    frames = moves([4, 3, 2, 1, 3, 6, 8])
    frames[3].save(folder / "explore.png", optimize=True)
    small = [
        frame.convert("RGB").resize((840, 490)).quantize(32, dither=Image.Dither.NONE)
        for frame in frames
    ]
    small[0].save(
        folder / "explore.gif", save_all=True, append_images=small[1:], duration=900, loop=0, optimize=True
    )  # fmt: skip


if __name__ == "__main__":
    main()
