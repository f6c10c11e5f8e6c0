"""Fits the host's time for a recorded program to profiler traces of the same program.

    python -m lab.fit.captured_host CAPTURE=TRACE [CAPTURE=TRACE ...]

A trace has each operation that a recording has, and more around it. The time from one to the next, less launches and
waiting, is what the host takes for it: the median of its family in autograd's threads, where no Python runs. What
the program's operations take beyond that, in all threads, is Python's, in equal parts for each call that was counted.
Profiling itself is in these times; ``--share`` says which part of them is left without: so much that host factor 1 is
the quickest machine that `captured_machine` measured. Costs of lists, of convolutions, of launches and of a call of
Python are set by hand; capture/captured.toml says why.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from prestep.workloads.capture import recording
from prestep.workloads.capture.host import OF_SHARDING, VIEW, family
from prestep.workloads.capture.recording import Recording
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import base

LAUNCHES = ("Launch", "Memset", "MemcpyAsync")
NAMESPACES, COMMUNICATION = ("aten", "fsdp"), "collective"
CALLED_BY_PYTHON = (COMMUNICATION, OF_SHARDING)
PAUSE = 400.0  # us: what is longer is no work of one operation
#: Names in traces of what a recording calls otherwise.
OTHERS = {
    "cudnn_convolution": "convolution",
    "_cudnn_attention_forward": "_scaled_dot_product_cudnn_attention",
    "_cudnn_attention_backward": "_scaled_dot_product_cudnn_attention_backward",
    "_flash_attention_forward": "_scaled_dot_product_flash_attention",
}


@dataclass
class Call:
    """An operation in a trace: its family, when it begins, and microseconds of launches and waits inside."""

    name: str
    start: float
    launching: float = 0.0
    launches: int = 0
    waiting: float = 0.0
    inside: float = 0.0  # to its own end
    total: float = 0.0  # to the next operation

    @property
    def own(self) -> float:
        return self.total - self.launching - self.waiting

    @property
    def cost(self) -> float:
        """What the fit takes: of operators that Python calls in all threads, no Python that follows."""
        if self.name in CALLED_BY_PYTHON:
            return self.inside - self.launching - self.waiting
        return self.own


@dataclass(frozen=True)
class Program:
    """A recording's names and calls of Python, with the threads of its trace."""

    calls: int
    backward: Sequence[Call]
    forward: Sequence[Call]


def read(capture: Path, trace: Path) -> Program:
    recorded = recording.read(capture)
    families = _families(recorded)
    forward: list[Call] = []
    backward: list[Call] = []
    for thread in _threads(trace):
        engine = any("evaluate_function" in event["name"] for event in thread)
        (backward if engine else forward).extend(_calls(thread, families))
    return Program(
        sum(event.calls for event in recorded.ranks[0].events), backward, forward
    )


def _threads(trace: Path) -> list[list[dict[str, Any]]]:
    """Operators and calls of CUDA of every thread."""
    threads = defaultdict(list)
    for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]:
        if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver"):
            threads[event["tid"]].append(event)
    return list(threads.values())


def _families(recorded: Recording) -> dict[str, str]:
    """Families by the names that operations have in traces; what launches once is no view."""
    families: dict[str, str] = {}
    for operation in recorded.operations:
        name, kind = base(operation), family(operation, kernels_of(operation))
        if families.get(name, VIEW) == VIEW:
            families[name] = kind
    others = {new: families[old] for new, old in OTHERS.items() if old in families}
    return families | others


def _calls(thread: list[dict[str, Any]], families: Mapping[str, str]) -> list[Call]:
    """The operations of a thread that a recording would have, each until the next begins."""
    thread.sort(key=lambda event: (event["ts"], -event["dur"]))
    calls = list(_outermost(thread, families))
    for call, following in pairwise(calls):
        call.total = following.start - call.start
    return [call for call in calls[:-1] if call.total < PAUSE]


def _outermost(
    thread: Iterable[dict[str, Any]], families: Mapping[str, str]
) -> Iterator[Call]:
    """Operations inside no other, in order; what they call of CUDA is counted to them."""
    outer: Call | None = None
    end = 0.0  # of the operation `outer`
    for event in thread:
        if event["ts"] >= end:
            outer = None
        if event["cat"] != "cpu_op":
            _spend(event, outer)
            continue
        name = _family_of(event["name"], families)
        if outer is None and name is not None:
            outer = Call(name, event["ts"], inside=event["dur"])
            end = event["ts"] + event["dur"]
            yield outer


def _family_of(event: str, families: Mapping[str, str]) -> str | None:
    """The family of an operator or of a communication in a trace; None for what a recording does not have."""
    namespace, _, name = event.partition("::")
    if namespace == "c10d":
        return COMMUNICATION
    return families.get(name) if namespace in NAMESPACES else None


def _spend(event: Mapping[str, Any], call: Call | None) -> None:
    """Counts a call of CUDA to the operation that it is in."""
    if call is None:
        return
    if any(part in event["name"] for part in LAUNCHES):
        call.launching += event["dur"]
        call.launches += 1
    else:
        call.waiting += event["dur"]


def fit(programs: Sequence[Program]) -> dict[str, float]:
    """Microseconds by name of cost."""
    by_family: dict[str, list[float]] = defaultdict(list)
    for call in _backward_first(programs):
        by_family[call.name].append(call.cost)
    costs = {name: median(times) for name, times in sorted(by_family.items())}
    everything = [c for p in programs for c in (*p.forward, *p.backward)]
    beyond = sum(call.own - costs[call.name] for call in everything)
    calls = sum(program.calls for program in programs)
    launched = [c.launching / c.launches for c in everything if c.launches]
    return {
        **costs,
        "launch": median(launched),
        "python_call": max(0.0, beyond / max(1, calls)),
    }


def _backward_first(programs: Sequence[Program]) -> Iterator[Call]:
    """Operations of autograd's threads; of families that are not there, those of the others."""
    there = {call.name for program in programs for call in program.backward}
    for program in programs:
        yield from program.backward
        yield from (call for call in program.forward if call.name not in there)


def pairs(texts: Iterable[str]) -> Iterator[tuple[Path, Path]]:
    for text in texts:
        capture, _, trace = text.partition("=")
        yield Path(capture), Path(trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", metavar="CAPTURE=TRACE")
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    programs = [read(*pair) for pair in pairs(options.programs)]
    for program, text in zip(programs, options.programs, strict=True):
        print(text.partition("=")[0], f"{program.calls} calls of Python")
    for name, micros in fit(programs).items():
        print(f"{name} = {micros * options.share:.3g}")


if __name__ == "__main__":
    main()
