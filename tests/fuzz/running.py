"""Runs a command on a file in this process, with a limit of time, and says what was wrong with how it ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import traceback
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from click.testing import CliRunner

from prestep import cli
from tests.fuzz.seeds import Seed

SECONDS = 10
# Keys whose numbers may be below zero.
DIFFERENCES = {
    "shadow_price",  # what a faster link saves: where it costs, the answer names the cause
    "residual",
    "saved",
    "signed_error",
    "bias",
    "worst",
    "difference",
    "change",
    "delta",
    "low",
    "mean_error",
    "breakdown_difference",
    "excess",
    "difference_interval",
}
# 0 good, 2 wrong input; 1 is an answer of some: outside tolerance, abnormal, can hardly be true, nothing fits.
GOOD = frozenset({0, 2})
ANY = GOOD | {1}
JUDGES = {"validate", "doctor", "submit", "search"}


@dataclass
class Ended:
    """How the last run ended: its exit code, -1 for none."""

    code: int = -1


ended = Ended()


class TooLong(BaseException):
    """Not an Exception: no handler of the program takes it for one of its own."""


def _stop(_: int, __: FrameType | None) -> None:
    raise TooLong


def outcome(seed: Seed, path: Path, out: Path) -> str:
    """What was wrong with how a seed's command read a file; empty for nothing."""
    codes = ANY if seed.words[0] in JUDGES else GOOD
    return _outcome(seed.words, path, out, codes)


def command(
    words: Sequence[str],
    folder: Path,
    file: str = "x",
    typed: str | None = None,
    codes: Set[int] = ANY,
) -> str:
    """What was wrong with how a command ended that may name a file of a folder, with its words; empty for nothing."""
    wrong = _outcome(words, folder / file, folder / "out", codes, typed)
    return f"{words}: {wrong}" if wrong else ""


def _outcome(
    words: Sequence[str],
    path: Path,
    out: Path,
    codes: Set[int],
    typed: str | None = None,
) -> str:
    """Nothing when it ended with one of the codes; with 2, if its message names the file or what is in it."""
    words = [
        word.replace("FILE", str(path))
        .replace("OUT", str(out))
        .replace("BESIDE", str(path.parent))
        for word in words
    ]
    if out.is_dir():  # of a sweep: the next one starts anew
        shutil.rmtree(out)
    before = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(
        signal.ITIMER_PROF, SECONDS
    )  # of this process's own time: a busy machine is no finding
    ended.code = -1
    try:
        with _own_stdout():
            done = CliRunner().invoke(cli.main, words, input=typed)
    except TooLong:
        return f"more than {SECONDS} s"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    ended.code = done.exit_code
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "".join(traceback.format_exception(done.exception)[-4:])
    if done.exit_code not in codes:
        return f"exit {done.exit_code}: {done.stderr[-900:]}"
    if done.exit_code == 2 and not re.search(r"\S+: found |\S+: |Error", done.stderr):
        return f"no place in the message: {done.stderr[:300]}"
    if re.search(
        r"\b(KeyError|TypeError|AttributeError|IndexError|ZeroDivisionError|RecursionError)\b",
        done.output,
    ):
        return f"a crash that became a message: {done.output[-600:]}"
    if done.exit_code == 0 and "--json" in words:
        return impossible(done.stdout)
    return ""


@contextmanager
def _own_stdout() -> Iterator[None]:
    """A command that cannot write lets stdout go nowhere, and so all that a fuzzer would say after it."""
    kept = os.dup(1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def impossible(stdout: str) -> str:
    """What in the JSON of a success can not be: numbers that are none, and negative ones that are no difference."""
    try:
        answer = json.loads(stdout, parse_constant=_refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    return next(_negative(answer, ""), "")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} in the answer")


def _negative(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, entry in value.items():
            if name not in DIFFERENCES:
                yield from _negative(entry, f"{key}.{name}")
    elif isinstance(value, list):
        for entry in value:
            yield from _negative(entry, key)
    elif isinstance(value, int | float) and value < 0:
        yield f"{key} is {value}"
