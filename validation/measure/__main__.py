"""`python -m prestep.validation.measure -o FILE.zip`: the same as `prestep measure`, with nothing but PyTorch
installed."""

from __future__ import annotations

import sys

from prestep.sim.errors import PrestepError
from prestep.validation.measure.controller import measure
from prestep.validation.measure.options import parsed


def main() -> int:
    """Measures; 2 for wrong input."""
    try:
        measure(parsed(), lambda text: print(text, file=sys.stderr, flush=True))
    except PrestepError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
