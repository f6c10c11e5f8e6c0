"""Progress on stderr: what a command does and how long it will yet take; from two seconds on, on a terminal only.

Work says how far it is with `track`, `watch` or `count`, wherever it is done; a command that shows it has `shown`
around it. Without that, in other threads and in worker processes, nothing is told and nothing is spent.

>>> list(track([1, 2, 3], "rows"))
[1, 2, 3]
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO, TypeVar

T = TypeVar("T")
AFTER, EVERY = (
    2.0,
    0.25,
)  # s: commands that are done sooner show nothing; between two drawings
WIDE = 30  # columns of the bar


@dataclass
class Task:
    """Work that is `done` so far of `of`, `before` of it long ago; `share` says instead how much of it, 0 to 1."""

    what: str
    of: int = 0
    done: int = 0
    before: int = 0
    share: Callable[[], float] | None = None

    def part(self, inner: float) -> float:
        """Share of the work that is done, when `inner` is that of what is at work within it."""
        if self.share is not None:
            return min(1.0, max(0.0, self.share()))
        return min(1.0, (self.done + inner) / self.of) if self.of else 0.0


class Bar:
    """A line of a terminal that says how far the tasks are; the outermost is named, those within it count as parts."""

    def __init__(self, out: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self.out, self.now, self.began = out, now, now()
        self.tasks: list[Task] = []
        self.since, self.drawn = self.began, False
        self.lock = threading.RLock()

    def push(self, task: Task) -> None:
        with self.lock:
            if not self.tasks:
                self.since = self.now()
            self.tasks.append(task)

    def pop(self) -> None:
        with self.lock:
            self.tasks.pop()
            if not self.tasks:
                self.clear()

    def clear(self) -> None:
        """Takes the line away, so that others can write there."""
        with self.lock:
            if self.drawn:
                self.out.write("\r\x1b[K")
                self.out.flush()
                self.drawn = False

    def draw(self) -> None:
        """Writes the line, when it is time for one."""
        with self.lock:
            if not self.tasks or self.now() - self.began < AFTER:
                return
            self.out.write(
                "\r\x1b[K" + self.line()[: shutil.get_terminal_size().columns - 1]
            )
            self.out.flush()
            self.drawn = True

    def line(self) -> str:
        """`rows ######........................ 12/60  31 s left`."""
        share = 0.0
        for task in reversed(self.tasks):
            share = task.part(share)
        first, spent = self.tasks[0], self.now() - self.since
        counted = (
            f" {first.done}/{first.of}"
            if first.of
            else f" {share:.0%}".replace("%", " %")
        )
        fresh = share - (
            first.before / first.of if first.of else 0.0
        )  # what was done in the time that was spent
        left = f"  {_seconds(spent * (1 - share) / fresh)} left" if fresh > 0.01 else ""
        return f"{first.what} {'#' * int(WIDE * share):.<{WIDE}}{counted}{left}"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


_SHOWN: list[Bar] = []  # of this process: none or one


@contextlib.contextmanager
def shown(out: TextIO | None = None) -> Iterator[None]:
    """Draws what is told within it, if stderr is a terminal and nothing else is being told there (-v)."""
    out = out or sys.stderr
    if (
        _SHOWN
        or not out.isatty()
        or logging.getLogger("prestep").isEnabledFor(logging.INFO)
    ):
        yield
        return
    bar, over = Bar(out), threading.Event()

    def tick() -> None:
        while not over.wait(EVERY):
            bar.draw()

    thread = threading.Thread(target=tick, daemon=True)
    _SHOWN.append(bar)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _SHOWN.remove(bar)
        bar.clear()


def clear() -> None:
    """Takes the line away for something else that is written to the terminal; it comes back."""
    for bar in _SHOWN:
        bar.clear()


@contextlib.contextmanager
def _task(task: Task) -> Iterator[Task]:
    bar = (
        _SHOWN[0]
        if _SHOWN and threading.current_thread() is threading.main_thread()
        else None
    )
    if bar is not None:
        bar.push(task)
    try:
        yield task
    finally:
        if bar is not None:
            bar.pop()


def track(items: Iterable[T], what: str, of: int | None = None) -> Iterator[T]:
    """The items, and how many of them are through; `of` is their number, where they cannot say it."""
    number = (
        of if of is not None else len(items) if isinstance(items, Collection) else 0
    )
    with _task(Task(what, number)) as task:
        for item in items:
            yield item
            task.done += 1


def watch(
    what: str, share: Callable[[], float]
) -> contextlib.AbstractContextManager[Task]:
    """Work that can be asked how much of it is done (0 to 1); it is asked from another thread."""
    return _task(Task(what, share=share))


def count(what: str, of: int = 0) -> contextlib.AbstractContextManager[Task]:
    """Work that sets `done` (and `of`, `what`) of the task itself."""
    return _task(Task(what, of))
