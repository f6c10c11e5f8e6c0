"""The body of `prestep calibrate`: what is done between parsing options and printing. Needs scipy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sim.errors import InputError, Mistake
from validation.fit import calibrate as fitting
from validation.fit import calibrate_machine
from validation.fit import network as fit_network
from validation.formats import measurement


def calibrate(
    logs: Sequence[Path],
    output: Path,
    cluster: str,
    op: str,
    force: bool,
    network: bool = False,
) -> str:
    """Fits a machine's constants to logs and writes them; what is to be said of it.

    With `network`, what NCCL gets out of the network instead, from rows of several hosts: a cluster file.

    Raises
    ------
    InputError
        If a log is wrong, or the output exists and `force` is not set.
    """
    if any(measurement.is_measured(path) for path in logs):
        return _machine(logs, output, cluster, force, network)
    if output.exists() and not force:  # before the work, not after
        raise InputError(
            Mistake(str(output), "", "a file", "a new one", "--force replaces it")
        )
    rows, beside = fitting.read_files(logs, cluster, op)
    if network:
        found = fit_network.fit(rows)
        fit_network.write(found, cluster, output, logs)
        left = (
            f"\n{len(beside)} overlap rows say nothing of a network and were left out"
            if beside
            else ""
        )
        return f"{found.summary}{left}\nwrote {output}"
    made = fitting.calibrate(rows, beside)
    fitting.write(made, output, logs, force)
    use = f"`prestep collective --cluster {cluster or 'CLUSTER'} --nccl-constants {output}`"
    return f'{made.summary}\nwrote {output}\nto use it: {use}, or the line nccl = "{output.name}" in a cluster file'


def _machine(
    logs: Sequence[Path], output: Path, cluster: str, force: bool, network: bool
) -> str:
    """A cluster file from what `prestep measure` wrote."""
    if len(logs) > 1 or network:
        found = "--network" if network else f"{len(logs)} files"
        raise InputError(
            Mistake(
                "command line", "LOGS", found, "one file of `prestep measure` by itself"
            )
        )
    fit = partial(_nccl_of_machine, force=force)
    return calibrate_machine.calibrate(logs[0], output, cluster, force, fit)


def _nccl_of_machine(rows: Path, output: Path, cluster: str, force: bool) -> str:
    return calibrate([rows], output, cluster, "", force).partition("\nwrote ")[0]
