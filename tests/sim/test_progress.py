"""Progress on stderr: from two seconds on, on a terminal only, gone when the work is."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prestep import cli
from prestep.sim import progress

PINNED = [
    part for key in ("tp", "pp", "cp", "ep") for part in ("--set", f"parallel.{key}=1")
]


class Clock:
    """A clock that is set by hand."""

    time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def bar(monkeypatch: pytest.MonkeyPatch) -> progress.Bar:
    """A bar on a page instead of a terminal, drawn by hand."""
    made = progress.Bar(io.StringIO(), Clock())
    monkeypatch.setattr(progress, "_SHOWN", [made])
    return made


def drawn(bar: progress.Bar, at: float) -> str:
    """What is drawn at a moment."""
    assert isinstance(bar.now, Clock) and isinstance(bar.out, io.StringIO)
    bar.now.time = at
    bar.out.truncate(0)
    bar.draw()
    return bar.out.getvalue()


def test_items_pass_whether_somebody_looks_or_not(bar: progress.Bar) -> None:
    """`track` gives what it was given."""
    assert (
        list(progress.track(iter("abc"), "letters", 3))
        == ["a", "b", "c"]
        == list(progress.track("abc", "letters"))
    )
    assert not bar.tasks


def test_the_time_left_is_that_of_the_rest(bar: progress.Bar) -> None:
    """Nothing before two seconds; then how many, and how long the others take at the pace so far."""
    lines = {}
    for at, _ in enumerate(progress.track(range(10), "rows")):
        lines[at] = drawn(bar, float(at))
    assert (
        lines[1] == ""
        and "rows" in lines[2]
        and "2/10" in lines[2]
        and "8 s left" in lines[2]
    )
    assert "8/10" in lines[8] and "2 s left" in lines[8]
    assert isinstance(bar.out, io.StringIO) and bar.out.getvalue().endswith("\r\x1b[K")


def test_work_within_work_counts_as_a_part(bar: progress.Bar) -> None:
    """Half of the first of two items is a quarter; the outermost is named."""
    items = progress.track(range(2), "rows")
    next(items)
    with progress.watch("executing", lambda: 0.5):
        line = drawn(bar, 10.0)
    assert line.startswith("\r\x1b[Krows") and "0/2" in line and "30 s left" in line
    assert "####### " not in line and "#######." in line
    assert len(list(items)) == 1


def test_what_was_there_before_says_nothing_of_the_pace(bar: progress.Bar) -> None:
    """A sweep that goes on: five of ten were there, one took ten seconds, four are left."""
    with progress.count("runs", 10) as task:
        task.before, task.done = 5, 6
        assert "6/10" in (line := drawn(bar, 10.0)) and "40 s left" in line


def test_an_error_takes_the_line_away(bar: progress.Bar) -> None:
    """And later work begins anew."""
    with (
        pytest.raises(ValueError, match="broken"),
        progress.watch("executing", lambda: 0.5),
    ):
        assert "50 %" in drawn(bar, 5.0)
        raise ValueError("broken")
    assert not bar.tasks and not bar.drawn


def test_nothing_is_told_where_nobody_reads(capsys: pytest.CaptureFixture[str]) -> None:
    """No thread, no output, when stderr is no terminal."""
    with progress.shown():
        assert not progress._SHOWN and list(progress.track([1], "x")) == [1]
    assert capsys.readouterr().err == ""


def on_a_terminal(*command: str) -> tuple[str, str]:
    """(stdout, what a terminal got on stderr) of a command that shows progress from its first moment on."""
    code = "import sys; from prestep.sim import progress; progress.AFTER = 0; progress.EVERY = 0.01; from prestep import cli; cli.main()"
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, *command],
        cwd=Path(cli.__file__).parent,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(mine, 65536):
                said += piece
        except OSError:  # the other end was closed
            pass
        out = child.stdout.read() if child.stdout else b""
    os.close(mine)
    return out.decode(), said.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("run", "llama8b-pp4-1f1b"), "executing"),
        (("whatif", "mlp-ddp4", "--each", "gpu"), "what-ifs"),
        (("run", "mlp-ddp4", "--replicas", "8"), "replicas"),
        (("goodput", "--step-time", "10s"), "replicas|intervals"),
        (("validate", "h200-whatif", "--jobs", "1"), "rows"),
        (("search", "llama1b-ddp4", "--jobs", "1", *PINNED), "layouts"),
    ],
)
def test_commands_show_their_progress(command: tuple[str, ...], what: str) -> None:
    """On a terminal; stdout has the data alone, and the line is gone at the end."""
    out, said = on_a_terminal(*command)
    assert re.search(rf"\x1b\[K({what})[^\r]*[.#]{{30}}", said), said[-500:]
    assert "\x1b[K" not in out and "####" not in out
    assert said.rstrip("\r\n").endswith("\x1b[K") or not said.rpartition("\x1b[K")[
        2
    ].startswith(tuple(what.split("|")))


@pytest.mark.slow
def test_a_sweep_shows_its_runs(tmp_path: Path) -> None:
    """Run by run."""
    grid = (
        "--grid",
        "training.micro_batch=64,128,256",
        "-o",
        str(tmp_path),
        "--executor",
        "threads",
        "--jobs",
        "1",
    )
    out, said = on_a_terminal("sweep", "mlp-ddp4", *grid)
    assert "runs " in said and "/3" in said and "step time" in out
