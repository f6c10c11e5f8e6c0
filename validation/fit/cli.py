"""Fit NCCL's constants on a machine to LOGS: nccl-tests (text or JSON), JSON lines of collectives, or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import explained, misused, show_page
from prestep.sim.errors import InputError
from prestep.sim.extras import lazily

with lazily():  # scipy
    from prestep.validation.fit import calibrate as fitting
    from prestep.validation.fit import calibrate_machine, logs, measurement
    from prestep.validation.fit import network as networks
    from prestep.validation.formats import collective_rows

GROUP = "Your programs, traces and machines"


@click.command(
    help=__doc__,
    epilog="Example: prestep calibrate all_reduce.log all_gather.json -o mine.toml --cluster dgx-h100",
)
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path)
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@click.option(
    "--cluster",
    default="",
    metavar="NAME|FILE",
    help="Where the logs were made; `prestep list clusters`.",
)
@click.option(
    "--gpu-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Facts of a GPU that prestep does not have, in a file of its own.",
)
@click.option(
    "--op", default="", help="Operation of nccl-tests logs that do not say it."
)
@click.option(
    "--network",
    is_flag=True,
    help="Fit the network's facts to rows of several hosts: a cluster file.",
)
@click.option("--force", is_flag=True, help="Replace the file.")
@explained
def command(logs: Sequence[Path], **options: Any) -> None:
    show_page(calibrate(logs, **options))


def calibrate(
    files: Sequence[Path],
    output: Path,
    cluster: str,
    op: str,
    force: bool,
    network: bool = False,
    gpu_file: Path | None = None,
) -> str:
    """Fits a machine's constants to logs and writes them; returns what to print.

    With `network`, fits what NCCL gets out of the network instead, to rows of several hosts, and writes a cluster file.

    Raises
    ------
    InputError
        If a log is wrong, or the output exists and `force` is not set.
    """
    fit = fitting.calibrate  # a missing scipy is told before the logs are read
    if any(measurement.is_measured(path) for path in files):
        return _machine(files, output, cluster, force, network, gpu_file)
    if gpu_file is not None:
        expected = "a file of `prestep measure`"
        raise misused("--gpu-file", "logs of collectives", expected)
    if output.exists() and not force:  # before the work, not after
        raise InputError.of(
            str(output), "", "a file", "a new one", "--force replaces it"
        )
    rows, beside = logs.read_files(files, cluster, op)
    if network:
        return _network(rows, len(beside), cluster, output, files)
    calibration = fit(rows, beside)
    fitting.write(calibration, output, files, force)
    use = f"`prestep collective --cluster {cluster or 'CLUSTER'} --nccl-constants {output}`"
    line = f'the line nccl = "{output.name}" in a cluster file'
    return f"{calibration.summary}\nwrote {output}\nto use it: {use}, or {line}"


def _network(
    rows: Sequence[collective_rows.Row],
    beside: int,
    cluster: str,
    output: Path,
    files: Sequence[Path],
) -> str:
    """A cluster file with what NCCL gets out of the network."""
    fit = networks.fit(rows)
    networks.write(fit, cluster, output, files)
    left = f"{beside} overlap rows say nothing of a network and were left out"
    return "\n".join([fit.summary, *([left] if beside else []), f"wrote {output}"])


def _machine(
    files: Sequence[Path],
    output: Path,
    cluster: str,
    force: bool,
    network: bool,
    gpu_file: Path | None,
) -> str:
    """A cluster file from what `prestep measure` wrote."""
    if len(files) > 1 or network:
        found = "--network" if network else f"{len(files)} files"
        raise misused("LOGS", found, "one file of `prestep measure` by itself")
    fit = partial(_nccl_of_machine, force=force)
    machine = calibrate_machine.calibrate
    return machine(files[0], output, cluster, force, fit, gpu_file)


def _nccl_of_machine(rows: Path, output: Path, cluster: str, force: bool) -> str:
    return calibrate([rows], output, cluster, "", force).partition("\nwrote ")[0]
