"""Fit the constants of NCCL over TCP sockets; run `python -m lab.fit.calibrate_sockets`.

Minimises the squared logarithm of predicted over measured time (soft L1) over the rows that the set
collectives-leafspine names as fitted and that are below 1 MiB: larger ones are bound by the ports. Prints the
constants for [socket.tcp] of sim/costs/hardware/extra-nccl.toml, and the errors on these rows and on all others.

With `--rows FILE.csv --machine NAME` those of a machine of published rows instead, fitted to its `fitted_nodes`: there
sizes of 1 MiB and more count, smaller ones for a third, and the machine's other node counts are the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.optimize import least_squares

from lab.formats import published_collectives, published_machines
from lab.formats.leafspine import read_lines
from lab.sets import collectives
from prestep.sim.collectives.constants import Tcp
from prestep.sim.collectives.wires import paths, socket
from prestep.sim.errors import InputError, Mistake
from prestep.topologies import load_cluster
from prestep.validation.formats.collective_rows import MIB, Row
from prestep.validation.sets.predict_collective import HOST, cluster_of, predict_row

SET = "collectives-leafspine"
FITTED = ("send", "receive", "control", "copy", "copy_flags")
# Of another machine; its NCCL is older than inlined data. Where the fit begins, and its range.
MACHINE = {
    "send": (1e-5, 1e-7, 3e-4),
    "receive": (3e-6, 1e-8, 3e-4),
    "copy": (1.9e-10, 1e-11, 1e-8),
    "copy_flags": (4e-10, 1e-11, 1e-8),
    "taken": (4e-10, 1e-12, 1e-8),
    "hop": (1e-5, 1e-8, 1e-4),
    "light": (0.2, 1e-3, 1.0),
    "pair": (6e-6, 1e-8, 1e-4),
}
LIGHT = 0.3  # weight of sizes below 1 MiB, which no limit judges


def rows_of(name: str = SET) -> tuple[list[Row], list[Row]]:
    """Rows below 1 MiB that constants are fitted to, and the others below 1 MiB."""
    chosen = collectives.load(name)
    rows = [row for file in chosen.files for row in read_lines(chosen.folder / file)[0]]
    small = [row for row in rows if row.size < MIB and not row.skip]
    fitted = [
        row
        for row in small
        if any(fnmatchcase(row.name, one) for one in chosen.fitted_cases)
    ]
    return fitted, [row for row in small if row not in fitted]


def errors(rows: Sequence[Row], tcp: Tcp) -> np.ndarray:
    """Logarithms of predicted over measured times with these constants."""
    for row in rows:
        paths.index_of(cluster_of(row)).plans.clear()  # plans with other constants
    with patch.object(socket, "tcp_of", lambda fabric: tcp):
        return np.log([predict_row(row).time / row.time for row in rows])


def fit(rows: Sequence[Row], begin: Tcp) -> Tcp:
    """The constants that fit the rows best."""

    def at(x: np.ndarray) -> Tcp:
        return replace(begin, **dict(zip(FITTED, np.exp(x).tolist(), strict=True)))

    start = np.log([getattr(begin, name) for name in FITTED])
    result = least_squares(
        lambda x: errors(rows, at(x)),
        start,
        loss="soft_l1",
        f_scale=0.02,
        diff_step=1e-3,
    )
    return at(result.x)


def machine_rows(path: Path, name: str) -> tuple[list[Row], list[Row]]:
    """Rows of a machine at the node count that constants are fitted to, and at its others."""
    rows = [
        row
        for row in published_collectives.read_csv(path)
        if row.machine == name and not row.skip
    ]
    fitted = [row for row in rows if row.fitted]
    if not fitted:
        names = sorted(
            {one.name for one in published_machines.machines() if one.fitted_nodes}
        )
        raise InputError(
            Mistake(
                str(path),
                "--machine",
                name,
                f"a machine with rows to fit to: {', '.join(names)}",
            )
        )
    return fitted, [row for row in rows if not row.fitted]


def fit_machine(rows: Sequence[Row], begin: Tcp) -> Tcp:
    """The constants that fit a machine's rows best."""
    plain = replace(begin, control=1.0)
    start, low, high = (np.log([one[k] for one in MACHINE.values()]) for k in range(3))
    weights = np.array([1.0 if row.size >= MIB else LIGHT for row in rows])

    def at(x: np.ndarray) -> Tcp:
        return replace(plain, **dict(zip(MACHINE, np.exp(x).tolist(), strict=True)))

    result = least_squares(
        lambda x: weights * errors(rows, at(x)),
        start,
        bounds=(low, high + 1e-9),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=1e-3,
        max_nfev=25,
    )
    return at(result.x)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fits, and prints constants and errors before and after."""
    options = _options(arguments)
    begin = socket.tcp_of(load_cluster(HOST))
    if options.rows:
        fitted, others = machine_rows(options.rows, options.machine)
        best, names = fit_machine(fitted, begin), tuple(MACHINE)
    else:
        fitted, others = rows_of()
        best, names = fit(fitted, begin), tuple(FITTED)
    for name in names:
        print(f"{name:12} {getattr(begin, name):10.3g} -> {getattr(best, name):10.3g}")
    for title, tcp in (("before", begin), ("after", best)):
        _report(f"{title:7} fitted ", fitted, tcp)
        _report(f"{title:7} others ", others, tcp)


def _report(title: str, rows: Sequence[Row], tcp: Tcp) -> None:
    """Prints the errors of rows, if there are any."""
    if rows:
        e = np.expm1(errors(rows, tcp))
        figures = f"mean {np.abs(e).mean():.1%}, bias {e.mean():+.1%}"
        print(f"{title} {len(e):3} rows: {figures}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, help="CSV of published rows")
    whose = "whose of them, as machines.toml names it"
    parser.add_argument("--machine", default="", help=whose)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
