"""`python -m lab.measure --out FILE.jsonl [--seconds 540]`: rows of JSON, written as they come.

Run again with the same file it goes on where it stopped, without the case that it stopped in.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from lab.measure import host, machine, power
from lab.measure.case import Case, Tensors
from lab.measure.plan import held_out, identity, planned, timed
from lab.measure.timing import Bench

BATCH = 60  # cases in one session of the profiler
POWER = 70.0  # s for the sustained kernels, after the first round
END = 15.0  # s for the host once more
Numbered = tuple[int, Case]


class Output:
    """The file of rows, flushed with each, and the number of the case in hand beside it."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines() if path.exists() else []
        old = [json.loads(line) for line in lines if line.endswith("}")]
        self.done = {row["n"] for row in old if "n" in row}
        self.parts = {row["kind"] for row in old}
        self.names = {row["name"]: row["id"] for row in old if row["kind"] == "kernel"}
        self._written = len(self.names)
        self._attempt = path.with_suffix(".attempt")
        if self._attempt.exists():
            self.done.add(int(self._attempt.read_text()))
        self._file = path.open("a")

    def row(self, **cells: Any) -> None:
        self._file.write(
            json.dumps({**cells, "t": round(time.time(), 2)}, separators=(",", ":"))
            + "\n"
        )
        self._file.flush()

    def rows(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self.row(**row)

    def attempt(self, number: int) -> None:
        self._attempt.write_text(str(number))

    def new_names(self) -> None:
        for name, at in list(self.names.items())[self._written :]:
            self.row(kind="kernel", id=at, name=name)
        self._written = len(self.names)

    def close(self) -> None:
        self._attempt.unlink(missing_ok=True)
        self._file.close()


def main() -> int:
    options = _options()
    begin = time.perf_counter()
    output = Output(options.out)
    sampler = (
        machine.Sampler(str(options.out.with_suffix(".clocks.csv")))
        if not options.rehearse
        else None
    )
    try:
        on = Tensors("meta" if options.rehearse else "cuda")
        if not options.rehearse:
            torch.cuda.set_stream(torch.cuda.Stream())
        _measure(on, output, options, begin + options.seconds)
    finally:
        if sampler is not None:
            sampler.stop()
    output.row(kind="end", seconds=time.perf_counter() - begin)
    output.close()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.measure", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of rows")
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="stops then, with what there is"
    )
    parser.add_argument("--every", type=int, default=1, help="every n-th case alone")
    parser.add_argument(
        "--beside",
        type=Path,
        help="rows of an earlier run (.jsonl.gz): its cases are not timed again",
    )
    parser.add_argument(
        "--power",
        action="store_true",
        help="also beside an earlier run: what runs for seconds",
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="without a GPU: each case once, on tensors without memory",
    )
    return parser.parse_args()


def _left(cases: list[Case], options: argparse.Namespace) -> list[Numbered]:
    """The cases to time with their numbers: every n-th, without those of an earlier run."""
    earlier = timed(options.beside) if options.beside else set()
    every = list(enumerate(cases))[:: options.every]
    return [(n, case) for n, case in every if identity(case) not in earlier]


def _measure(
    on: Tensors, output: Output, options: argparse.Namespace, until: float
) -> None:
    """The host, the first round, what runs for seconds, the other rounds, the host once more.

    Beside an earlier run: the cases alone, and on request what runs for seconds.
    """
    torch.manual_seed(0)
    cases = planned()
    held = held_out(cases)
    numbered = _left(cases, options)
    output.row(**machine.described(), cases=len(numbered))
    whole = options.beside is None
    if whole and "host" not in output.parts:
        output.rows(host.rows("start", short=options.rehearse))
    bench = Bench(on, output.names)
    first = [each for each in numbered if each[1].round == 0]
    later = [each for each in numbered if each[1].round > 0]
    _cases(bench, first, held, output, until - END - POWER)
    if whole or options.power:
        _power(on, output, options.every)
    _cases(bench, later, held, output, until - END)
    if whole:
        output.rows(host.rows("end", short=True))


def _power(on: Tensors, output: Output, every: int) -> None:
    """What runs for seconds, where there is a GPU."""
    if on.device == "cuda" and "power" not in output.parts:
        output.rows(power.rows(on, min(POWER, POWER * 4 / every)))


def _cases(
    bench: Bench, numbered: list[Numbered], held: set[str], output: Output, until: float
) -> None:
    waiting = [each for each in numbered if each[0] not in output.done]
    for start in range(0, len(waiting), BATCH):
        if time.perf_counter() > until:
            output.row(
                kind="skipped", first=waiting[start][0], count=len(waiting) - start
            )
            return
        _batch(bench, waiting[start : start + BATCH], held, output)


def _batch(
    bench: Bench, numbered: list[Numbered], held: set[str], output: Output
) -> None:
    """Each case without the profiler, then those that went well with it."""
    plain = dict(_plain(bench, numbered, output))
    well = [
        (number, case, plain[number].get("s", 0.0))
        for number, case in numbered
        if "error" not in plain[number]
    ]
    traced: dict[int, dict[str, Any]] = {}
    if bench.on.device == "cuda":
        traced = bench.traced(well)
        torch.cuda.empty_cache()
    output.new_names()
    for number, case in numbered:
        split = "held_out" if identity(case) in held else "fit"
        about = {
            "kind": "op",
            "n": number,
            "round": case.round,
            "family": case.family,
            "op": case.op,
            "way": case.way,
        }
        cells = {
            "size": case.size,
            "set": case.setting,
            "split": split,
            **plain[number],
            **traced.get(number, {}),
        }
        output.row(**about, **cells)


def _plain(
    bench: Bench, numbered: list[Numbered], output: Output
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, case in numbered:
        output.attempt(number)
        try:
            yield number, bench.plain(case)
        except Exception as error:
            yield number, {"error": f"{type(error).__name__}: {error}"[:300]}
            if bench.on.device == "cuda":
                torch.cuda.synchronize()  # what broke the GPU for good ends the run here; the next one goes on


if __name__ == "__main__":
    sys.exit(main())
