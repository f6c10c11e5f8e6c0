"""The command `prestep doctor`."""

from __future__ import annotations

import sys

import click

from sim.commands._shared import EXIT_OUTSIDE, as_json, echo_json, explained


@click.command(epilog="Example: prestep doctor --json")
@as_json
@explained
def command(json_: bool) -> None:
    """Look at this environment: versions, packages in the way, what is missing; exit 1 if something is wrong."""
    from sim.tools import doctor

    findings = doctor.examined()
    if json_:
        echo_json(doctor.to_json(findings))
    else:
        click.echo("\n".join(map(str, findings)))
    sys.exit(0 if doctor.to_json(findings)["good"] else EXIT_OUTSIDE)
