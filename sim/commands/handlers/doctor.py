"""What `prestep doctor` does."""

from __future__ import annotations

import sys

import click

from sim.commands._shared import EXIT_OUTSIDE, echo_json
from sim.tools import doctor as examination


def doctor(json_: bool) -> None:
    findings = examination.examined()
    table = examination.to_json(findings)
    if json_:
        echo_json(table)
    else:
        click.echo("\n".join(map(str, findings)))
    sys.exit(0 if table["good"] else EXIT_OUTSIDE)
