"""What `prestep submit` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from prestep.sim import files
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import EXIT_OUTSIDE, echo_json, talk
from prestep.sim.units import format_duration
from prestep.validation import submissions
from prestep.validation.submissions import Checked


def submit(rows: Path, output: Path | None, json_: bool) -> None:
    found = submissions.checked(rows)
    good = not any(one.doubts for one in found)
    if good and output is not None:
        files.write_text(output, submissions.text(found))
        talk(f"wrote {output}: add it to a pull request")
    if json_:
        echo_json({"good": good, "rows": [one.to_json() for one in found]})
    else:
        show_page("\n".join(_lines(found)))
    if not good:
        talk(
            "nothing is written: mend the rows, or say in the pull request why they are right"
        )
        sys.exit(EXIT_OUTSIDE)


def _lines(found: Sequence[Checked]) -> Iterator[str]:
    """A line a row, and its doubts below it."""
    for one in found:
        measured, predicted = one.measured, one.result.step_time
        times = f"measured {format_duration(measured)}, predicted {format_duration(predicted)}"
        yield f"{one.where}: {times}, {predicted / measured - 1:+.1%}"
        yield from (f"  doubt: {doubt}" for doubt in one.doubts)
