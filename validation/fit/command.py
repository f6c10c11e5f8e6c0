"""The body of `prestep calibrate`: what is done between parsing options and printing. Needs scipy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prestep.sim.errors import InputError, Mistake
from prestep.validation.fit import calibrate as fitting
from prestep.validation.fit import calibrate_machine, measurement
from prestep.validation.fit import network as fit_network
from prestep.validation.fit.logs import read_files
from prestep.validation.formats.collective_rows import Row


def calibrate(
    logs: Sequence[Path],
    output: Path,
    cluster: str,
    op: str,
    force: bool,
    network: bool = False,
    gpu_file: Path | None = None,
) -> str:
    """Fits a machine's constants to logs and writes them; what is to be said of it.

    With `network`, what NCCL gets out of the network instead, from rows of several hosts: a cluster file.

    Raises
    ------
    InputError
        If a log is wrong, or the output exists and `force` is not set.
    """
    if any(measurement.is_measured(path) for path in logs):
        return _machine(logs, output, cluster, force, network, gpu_file)
    if gpu_file is not None:
        found, expected = "logs of collectives", "a file of `prestep measure`"
        raise InputError(Mistake("command line", "--gpu-file", found, expected))
    if output.exists() and not force:  # before the work, not after
        raise InputError(
            Mistake(str(output), "", "a file", "a new one", "--force replaces it")
        )
    rows, beside = read_files(logs, cluster, op)
    if network:
        return _network(rows, len(beside), cluster, output, logs)
    calibration = fitting.calibrate(rows, beside)
    fitting.write(calibration, output, logs, force)
    use = f"`prestep collective --cluster {cluster or 'CLUSTER'} --nccl-constants {output}`"
    line = f'the line nccl = "{output.name}" in a cluster file'
    return f"{calibration.summary}\nwrote {output}\nto use it: {use}, or {line}"


def _network(
    rows: Sequence[Row], beside: int, cluster: str, output: Path, logs: Sequence[Path]
) -> str:
    """A cluster file with what NCCL gets out of the network."""
    fit = fit_network.fit(rows)
    fit_network.write(fit, cluster, output, logs)
    left = f"{beside} overlap rows say nothing of a network and were left out"
    return "\n".join([fit.summary, *([left] if beside else []), f"wrote {output}"])


def _machine(
    logs: Sequence[Path],
    output: Path,
    cluster: str,
    force: bool,
    network: bool,
    gpu_file: Path | None,
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
    machine = calibrate_machine.calibrate
    return machine(logs[0], output, cluster, force, fit, gpu_file)


def _nccl_of_machine(rows: Path, output: Path, cluster: str, force: bool) -> str:
    return calibrate([rows], output, cluster, "", force).partition("\nwrote ")[0]
