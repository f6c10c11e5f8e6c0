"""`python -m lab.fit.step_errors`: how far off measured steps of each GPU are, for grades of lent kernel times.

Writes `sim/costs/hardware/step-errors.csv` from the index of measured steps (`sim/record/measured-runs.csv`): by GPU,
kind of model and number format, over steps that no constant was fitted to, neither noisy nor said incompletely.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict

from prestep.sim import files
from prestep.sim.costs.gpu_files import STEP_ERRORS
from prestep.sim.record.measured_runs import measured_runs

HEAD = ("gpu", "model", "precision", "steps", "error")


def text() -> str:
    """The file."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for known in measured_runs():
        if not known.fitted and not known.note and math.isfinite(known.error):
            kind = known.kind
            errors[kind.gpu, kind.model, kind.precision].append(known.error)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    for key, found in sorted(errors.items()):
        square = math.fsum(error * error for error in found) / len(found)
        writer.writerow([*key, len(found), f"{math.sqrt(square):.4f}"])
    return out.getvalue()


def main() -> None:
    """Write the file."""
    files.write_text(STEP_ERRORS, text())


if __name__ == "__main__":
    main()
