"""Files with the operations of all ranks of a job: one module per format with ``sniff(path)`` and ``read(path)``."""

from __future__ import annotations

from pathlib import Path

from prestep.sim import plugins
from prestep.workloads.traces.operations import Operations

READERS = "prestep.workloads.traces.jobs"


def is_job(path: Path) -> bool:
    """Whether a file is of one of the formats."""
    return path.is_file() and _format_of(path) is not None


def read(path: Path) -> Operations:
    """The operations of a file for which `is_job` holds.

    Raises
    ------
    InputError
        If they are not those of one job.
    """
    read_file = plugins.load_function(READERS, str(_format_of(path)), "read")
    operations: Operations = read_file(path)
    return operations


def _format_of(path: Path) -> str | None:
    sniffers = plugins.providers(READERS, "sniff").items()
    return next((name for name, sniff in sniffers if sniff(path)), None)
