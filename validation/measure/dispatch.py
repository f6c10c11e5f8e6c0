"""How fast a host runs PyTorch, without a GPU: `python -m prestep.validation.measure.dispatch SECONDS` prints JSON
lines.

A training step of a tiny model on the CPU goes the way of a step on a GPU, through Python, dispatcher and autograd.
Only the launches are not in it. A core is slow while its neighbour on the same core of the machine is at work, so each
core that this process may use has its turns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch

from prestep.validation.measure.models import Llama, cross_entropy

MODEL, TOKENS, VOCABULARY = "tiny", 8, 256
CORES = 32  # that have turns, at most
ROUNDS = 4  # of turns: what else runs on the machine changes within seconds
WARM = 20  # steps


def tiny_step() -> Callable[[], None]:
    """Forward, backward and update of a model whose arithmetic takes next to no time."""
    torch.manual_seed(0)
    net = Llama(MODEL)
    tokens, targets = (torch.randint(0, VOCABULARY, (1, TOKENS)) for _ in range(2))
    cos, sin = net.table(TOKENS, tokens)
    net.tables[TOKENS] = cos.float(), sin.float()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        cross_entropy(net(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def turns(step: Callable[[], None], seconds: float) -> Iterator[dict[str, float]]:
    """Median time of a step on each core, in turns that together take so many seconds."""
    cores = sorted(os.sched_getaffinity(0))
    chosen = cores[:: max(1, len(cores) // CORES)][:CORES]
    each = seconds / len(chosen) / ROUNDS
    for core in chosen * ROUNDS:
        os.sched_setaffinity(0, {core})
        yield {"core": core, "s": _median(step, each)}
    os.sched_setaffinity(0, cores)


def _median(step: Callable[[], None], seconds: float) -> float:
    """Of steps for so many seconds, after one that moves to the core."""
    step()
    times, until = list[float](), time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Prints a line for each turn."""
    torch.set_num_threads(1)
    step = tiny_step()
    for _ in range(WARM):
        step()
    for turn in turns(step, float(sys.argv[1])):
        print(json.dumps(turn), flush=True)


if __name__ == "__main__":
    main()
