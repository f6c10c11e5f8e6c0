"""How sure NCCL's constants of a machine are: predicted over measured times of held-out rows, with intervals."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from prestep.sim import files
from prestep.validation.fit.bootstrap import Estimate, of_ratios
from prestep.validation.formats import collective_reader
from prestep.validation.sets.predict_collective import predict_row

LEAST = 3  # rows of an algorithm and protocol below which nothing is said


def intervals(rows: Path, cluster: Path) -> dict[str, Estimate]:
    """By algorithm and protocol: the middle of predicted over measured among held-out rows, and its interval.

    Parameters
    ----------
    cluster
        The cluster file that was written, which names the constants.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    for row in collective_reader.read_lines(rows, str(cluster))[0]:
        if row.skip or not row.held_out:
            continue
        prediction = predict_row(row)
        if not prediction.error:
            errors[f"{prediction.algo} {prediction.proto}"].append(
                prediction.time / row.time
            )
    return {
        name: of_ratios(ratios)
        for name, ratios in sorted(errors.items())
        if len(ratios) >= LEAST
    }


def note(path: Path, intervals: dict[str, Estimate]) -> str:
    """Writes the intervals to the head of the file of constants; what was written."""
    lines = [f"{name}: {interval}" for name, interval in intervals.items()]
    if lines:
        head = [
            "# Predicted over measured, held-out rows, with 90 % bootstrap intervals:",
            *(f"# {x}" for x in lines),
        ]
        files.write_text(path, "\n".join([*head, path.read_text(encoding="utf-8")]))
    return (
        "\n".join(["predicted over measured, held-out rows:", *lines]) if lines else ""
    )
