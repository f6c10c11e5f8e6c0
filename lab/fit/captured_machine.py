"""How slow a measured machine's host was, from the quickest steps of programs and their recordings.

    python -m lab.fit.captured_machine ROWS.jsonl CAPTURE [CAPTURE ...]

A step that follows a synchronisation finds an empty queue: while the GPU has work left, its time on the CPU
(``cpu_step_s``) is the host's own. Over the host's time of the recording that is the machine's host factor; recordings
are named by the id of their row. Rows whose queue fills up, or whose program waits for the GPU, do not say it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from lab.sets.host_speed import host_and_gpu


def measured_seconds(row: dict[str, Any]) -> float:
    """Seconds of the CPU of rank 0 in its quickest step."""
    return float(min(row["cpu_step_s_by_rank"]["0"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("captures", type=Path, nargs="+")
    parser.add_argument("--cluster", default="h200-host-4")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    by_id = {row["id"]: row for row in rows if "cpu_step_s_by_rank" in row}
    factors = []
    for capture in options.captures:
        host, _ = host_and_gpu(capture, options.cluster)
        factor = measured_seconds(by_id[capture.stem]) / host
        factors.append(factor)
        print(f"{capture.stem}: host {host * 1e3:.1f} ms, factor {factor:.2f}")
    print(f"median {median(factors):.2f}")


if __name__ == "__main__":
    main()
