"""What sliders of the explorer cost: processor seconds of a step time, and of all that the page shows of it.

    python -m lab.bench.explorer              all scenarios below, each on 1,024 GPUs, as Markdown
    python -m lab.bench.explorer dense moe    some of them

Every slider goes one position up (down where it is at its end), from the scenario as it is; GPUs stay as many where
an axis changes. A server that has answered others is asked: the least of three.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prestep.sim.explorer.answers import Explorer
from prestep.sim.explorer.knobs import Knob
from prestep.sim.tools.process import collect_rarely

TIMES = 3
#: Bandwidths and clocks go to the second position below, where they bound the step more than before.
SLOWER = 2
SPLITS = ("tp", "pp", "cp")

SCENARIO = """
[cluster]
name = "dgx-h100-superpod"
hosts = 128
[model]
name = "{model}"
[training]
framework = "{framework}"
seq_len = 4096
micro_batch = 1
global_batch = {batch}
[parallel]
{layout}
"""
SCENARIOS = {
    "dense": SCENARIO.format(
        model="llama3-70b",
        framework="megatron",
        batch=256,
        layout="dp = 32\ntp = 8\npp = 4",
    ),
    "moe": SCENARIO.format(
        model="mixtral-8x7b",
        framework="megatron",
        batch=2048,
        layout="dp = 256\npp = 4\nep = 8",
    ),
    "fsdp": SCENARIO.format(
        model="llama3-8b",
        framework="pytorch-eager",
        batch=1024,
        layout='dp = 1024\ndata_parallel = "fsdp"',
    ),
    "pp16": SCENARIO.format(
        model="llama3-70b",
        framework="megatron",
        batch=512,
        layout="dp = 8\ntp = 8\npp = 16",
    ),
}


def questions(explorer: Explorer) -> Iterator[dict[str, str]]:
    """What the page asks when one slider is moved, of each."""
    for knob in explorer.knobs:
        if knob.key == "gpus":
            continue
        for value in _moved(knob):
            yield {knob.key: value, **_replicas(explorer, knob.key, value)}


def _moved(knob: Knob) -> tuple[str, ...]:
    """Where a slider is moved to; all other values of a list."""
    at, last = knob.values.index(knob.value), len(knob.values) - 1
    if knob.choice:
        return tuple(value for value in knob.values if value != knob.value)
    if knob.group in ("Link bandwidths", "GPUs"):
        return (knob.values[max(0, at - SLOWER)],)
    return (knob.values[at + 1 if at < last else at - 1],) if last else ()


def _replicas(explorer: Explorer, key: str, value: str) -> dict[str, str]:
    """Replicas for as many GPUs as before, as the page counts them."""
    section, _, axis = key.partition(".")
    if section != "parallel" or axis not in SPLITS:
        return {}
    p = explorer.scenario.parallel
    return {"parallel.dp": str(p.dp * int(getattr(p, axis)) // int(value))}


def seconds(ask: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of an answer, and the answer."""
    start = time.process_time()
    told = ask()
    return time.process_time() - start, told


def measured(path: Path) -> dict[str, tuple[float, float]]:
    """Seconds of a step time and of the whole answer by what was changed; what is refused is left out."""
    explorer = Explorer(path)
    explorer.answer({})
    found = {}
    for asked in questions(explorer):
        gc.collect()
        first, told = seconds(lambda asked=asked: explorer.step(asked))  # type: ignore[misc]
        rest, _ = seconds(lambda asked=asked: explorer.answer(asked))  # type: ignore[misc]
        if not told["mistakes"]:
            changes = ", ".join(f"{key}={value}" for key, value in asked.items())
            found[changes] = (first, first + rest)
    return found


def table(name: str) -> str:
    """The least of some rounds as Markdown, the slowest change first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(SCENARIOS[name], encoding="utf-8")
        rounds = [measured(path) for _ in range(TIMES)]
    least = {
        change: tuple(min(one[change][k] for one in rounds) for k in (0, 1))
        for change in rounds[0]
    }
    lines = [f"| {name} | step time | whole answer |", "| --- | --- | --- |"]
    for change, (step, whole) in sorted(least.items(), key=lambda one: -one[1][1]):
        lines.append(f"| `{change}` | {step:.2f} | {whole:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    collect_rarely()
    for wanted in sys.argv[1:] or SCENARIOS:
        print(table(wanted), flush=True)
