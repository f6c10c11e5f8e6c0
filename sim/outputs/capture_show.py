"""What a recording has: `prestep capture show --json`."""

from __future__ import annotations

from prestep.sim.outputs._words import (
    anything,
    items,
    named,
    open_table,
    or_null,
    table,
    text,
    whole,
)

SCHEMA = table(
    "",
    world=whole("ranks of the program"),
    step=whole("which step was recorded"),
    gpu=text("what the program was told it has"),
    parameters=or_null(whole()),
    command=items(text()),
    versions=named(text()),
    compiled=items(anything(), "compiled functions"),
    assumed=named(anything(), "what nobody computed -> how often"),
    ranks=items(
        open_table(
            "a rank that was run, counted",
            rank=whole(),
            represents=items(whole(), "ranks that it stands for"),
            operations=items(anything()),
            communications=items(anything()),
            waits=named(whole(), "what the host waits for -> how often"),
            host=items(anything()),
            regions=whole(),
            events=whole(),
            alive=whole("bytes that the step found"),
        )
    ),
)
