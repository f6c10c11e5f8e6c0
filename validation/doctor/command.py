"""What `prestep doctor` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim.collectives import request
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import EXIT_OUTSIDE, echo_json
from prestep.sim.tools import doctor as examination
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor import page
from prestep.validation.doctor.diagnosis import diagnosed
from prestep.validation.doctor.logs import Run, read
from prestep.validation.doctor.recognise import recognised
from prestep.validation.doctor.sweep import Situation, series_of


def doctor(json_: bool) -> None:
    findings = examination.examined()
    table = examination.to_json(findings)
    if json_:
        echo_json(table)
    else:
        lines = (examination.in_short(findings), "", *map(str, findings))
        show_page("\n".join(lines))
    sys.exit(0 if table["good"] else EXIT_OUTSIDE)


def nccl(
    logs: Sequence[Path],
    cluster: str | None,
    hosts: int | None,
    op: str,
    overrides: tuple[str, ...],
    json_: bool,
) -> None:
    """Says whether logs are normal and why not; exits with 1 if not."""
    settings, links, numa = request.split(overrides)
    run = read(logs, op.replace("-", "_"), hosts)
    if not any(item.startswith("nccl.version") for item in overrides):
        settings = replace(settings, version=run.version)
    fabric = _fabric(run, cluster)
    if fabric is not None:
        fabric = request.placed(with_overrides(fabric, links, "--set"), numa)
    here = Situation(fabric, settings, series_of(run.rows))
    diagnosis = diagnosed(here, run.lines)
    name = fabric.name if fabric is not None else ""
    if json_:
        echo_json(page.as_json(diagnosis, run, name))
    else:
        show_page(page.as_text(diagnosis, run, name))
    sys.exit(EXIT_OUTSIDE if diagnosis.abnormal else 0)


def _fabric(run: Run, cluster: str | None) -> Any:
    """The cluster that was named, or the one that the logs tell; none where nothing was timed."""
    if cluster is None:
        return recognised(run) if run.rows else None
    fabric = load_cluster(cluster)
    return (
        fabric if len(fabric.hosts) >= run.hosts else load_cluster(cluster, run.hosts)
    )
