"""Fit the constants of NCCL over TCP sockets; run `python -m validation.calibrate_sockets`.

Minimises the squared logarithm of predicted over measured time (soft L1) over the rows that the set
collectives-leafspine names as fitted and that are below 1 MiB: larger ones are bound by the ports. Prints the
constants for [socket.tcp] of sim/costs/hardware/extra-nccl.toml, and the errors on these rows and on all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from unittest.mock import patch

import numpy as np

from sim.collectives import paths, socket
from sim.collectives.constants import MEASURED
from validation import collective_sets
from validation.collective_rows import MIB, Row
from validation.predict_collective import cluster_of, predict_row

SET = "collectives-leafspine"
FITTED = ("send", "receive", "control", "copy", "copy_flags")


def rows_of(name: str = SET) -> tuple[list[Row], list[Row]]:
    """Rows below 1 MiB that constants are fitted to, and the others below 1 MiB."""
    chosen = collective_sets.load(name)
    rows = [row for file in chosen.files for row in collective_sets.read(chosen.folder / file)[0]]
    small = [row for row in rows if row.size < MIB and not row.skip]
    fitted = [row for row in small if any(fnmatchcase(row.name, one) for one in chosen.fitted_cases)]
    return fitted, [row for row in small if row not in fitted]


def errors(rows: Sequence[Row], tcp: socket.Tcp) -> np.ndarray:
    """Logarithms of predicted over measured times with these constants."""
    for row in rows:
        paths.index_of(cluster_of(row)).plans.clear()  # plans with other constants
    with patch.object(socket, "tcp_of", lambda gpu: tcp):
        return np.log([predict_row(row).time / row.time for row in rows])


def fit(rows: Sequence[Row], begin: socket.Tcp) -> socket.Tcp:
    """The constants that fit the rows best."""
    from scipy.optimize import least_squares

    def at(x: np.ndarray) -> socket.Tcp:
        return replace(begin, **dict(zip(FITTED, np.exp(x).tolist(), strict=True)))

    start = np.log([getattr(begin, name) for name in FITTED])
    result = least_squares(lambda x: errors(rows, at(x)), start, loss="soft_l1", f_scale=0.02, diff_step=1e-3)
    return at(result.x)


def main() -> None:
    fitted, others = rows_of()
    begin = socket.tcp_of(MEASURED)
    found = fit(fitted, begin)
    for name in FITTED:
        print(f"{name:12} {getattr(begin, name):10.3g} -> {getattr(found, name):10.3g}")
    for title, tcp in (("before", begin), ("after", found)):
        for kind, rows in (("fitted", fitted), ("others", others)):
            e = np.expm1(errors(rows, tcp))
            print(f"{title:7} {kind:7} {len(e):3} rows: mean {np.abs(e).mean():.1%}, bias {e.mean():+.1%}")


if __name__ == "__main__":
    main()
