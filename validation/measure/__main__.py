"""`python -m prestep.validation.measure -o FILE.zip`: the same as `prestep measure`, with nothing but PyTorch
installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from prestep.sim.errors import PrestepError
from prestep.validation.measure.controller import measure
from prestep.validation.measure.options import Options, names, split


def main() -> int:
    """Measures; 2 for wrong input."""
    try:
        measure(parsed(), lambda text: print(text, file=sys.stderr, flush=True))
    except PrestepError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parsed(arguments: Sequence[str] | None = None) -> Options:
    """Options of the command line; click, which reads those of `prestep measure`, may not be installed."""
    parser = argparse.ArgumentParser(
        prog="python -m prestep.validation.measure",
        description="Measure this machine, alone or under torchrun.",
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, help="zip file to write")
    add("--minutes", type=float, default=5.0, help="time for everything (5)")
    add("--gpus", type=int, help="GPUs of this host to use (all)")
    add(
        "--only", type=split, default=(), help=f"probes, by comma: {', '.join(names())}"
    )
    add("--without", type=split, default=(), help="probes to leave out, by comma")
    add("--cases", type=Path, help="training cases in place of the usual ones")
    add(
        "--no-nvls", dest="nvls", action="store_false", help="keep NVLink multicast off"
    )
    add("--rehearse", action="store_true", help="tiny sizes on CPUs: tries the command")
    add("--force", action="store_true", help="replace the file")
    add("--size-limit", type=mebibytes, metavar="MiB", help="leave out traces beyond")
    add("--folder", type=Path, help="keep rows and traces here too, as they come")
    return Options(**vars(parser.parse_args(arguments))).checked()


def mebibytes(text: str) -> float:
    return float(text) * 2**20


if __name__ == "__main__":
    sys.exit(main())
