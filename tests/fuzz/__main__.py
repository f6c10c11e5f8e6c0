"""Damages good files many times and runs the commands that read them: the long form of tests/fuzz.

    python -m tests.fuzz 10000 [--first 0] [--every 1] [--only trace]

Every kind of file has its turn; input n is always the same. Prints each input that ended in another way than with 0
or 2 and a located message within ten seconds, and at the end how many of each exit, the longest and the most memory.
Memory is bounded by the kernel (2 GiB above what Python has at the start): more is a MemoryError, which is a finding.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.mutants import flips, mutated
from tests.fuzz.running import ended, outcome
from tests.fuzz.seeds import Seed, seeds

MEMORY = 2 * 2**30


def damaged(seed: Seed, number: int, path: Path) -> None:
    """Writes a seed's file with the damage of a number: letters of its text, and bytes."""
    text = mutated(seed.text, number, 1 + number % 4)
    seed.write(text, path, flips(number))


def main(damage: Callable[[Seed, int, Path], None] = damaged) -> int:
    """Run them; 1 if any was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="the n-th inputs alone")
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    told = parser.parse_args()
    _bound()
    kinds = [seed for seed in seeds() if told.only in seed.name]
    wrong, exits, slowest = 0, Counter[str](), (0.0, "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for turn in range(told.count):
            number = told.first + turn * told.every
            seed = kinds[number % len(kinds)]
            path = folder / f"x{seed.suffix}"
            damage(seed, number, path)
            begun = time.process_time()
            found = outcome(seed, path, folder / "out.json")
            slowest = max(
                slowest, (time.process_time() - begun, f"{seed.name} {number}")
            )
            exits[str(ended.code)] += 1
            if found:
                wrong += 1
                print(f"{seed.name} {number}: {found}", flush=True)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{told.count} inputs, {wrong} wrong; exits {dict(exits)}; slowest {slowest}; at most {most:.2f} GiB"
    )
    return 1 if wrong else 0


def _bound() -> None:
    """No more than 2 GiB of data beyond what is there now."""
    resource.setrlimit(
        resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1])
    )


if __name__ == "__main__":
    sys.exit(main())
