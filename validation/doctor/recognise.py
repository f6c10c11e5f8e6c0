"""Which bundled cluster a log ran on: by its GPUs, and how many of them, hosts and NICs it had."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prestep.sim.errors import InputError, PrestepError
from prestep.sim.replay.machine import CLUSTERS
from prestep.topologies import cluster_names, load_cluster
from prestep.validation.doctor.logs import Run

# Longest first: an H100 is in the name of a GH100, a B200 in that of a GB200.
MODELS = ("GB300", "GB200", "GH200", "B300", "B200", "H200", "H100", "H800", "A100")


def recognised(run: Run) -> Any:
    """The cluster of a log.

    Raises
    ------
    InputError
        Where none of the bundled ones fits, or several do that are not alike.
    """
    if run.hosts <= 1 and (usual := _usual(run)):
        return load_cluster(usual)
    model = _model(run.gpu)
    fits = [fabric for fabric in _of_model(model, run.hosts) if _fits(fabric, run)]
    if run.hosts <= 1:  # the network does not matter: the smallest that fits
        fits = sorted(fits, key=lambda fabric: len(fabric.gpus))[:1]
    if len(fits) == 1:
        return fits[0]
    extent = f"{run.ranks} x {run.gpu or 'a GPU that the log does not name'}"
    found = f"{extent} on {run.hosts or 'an unknown number of'} host{'' if run.hosts == 1 else 's'}"
    if run.nics:
        found += f" with {run.nics} NIC(s)"
    names = ", ".join(fabric.name for fabric in fits)
    candidates = f"several bundled clusters fit: {names}" if fits else "none fits"
    hint = "write a file of your own: `prestep topology`" if not fits else ""
    expected = f"--cluster NAME|FILE ({candidates})"
    raise InputError.of("log", "cluster", found, expected, hint)


def _usual(run: Run) -> str:
    """The host that replays of traces take for a GPU, too; "" where it has too few."""
    for word, name in CLUSTERS:
        if word in run.gpu.upper() and len(load_cluster(name).gpus) >= run.ranks:
            return name
    return ""


def _model(name: str) -> str:
    """The GPU of a name such as "NVIDIA H100 80GB HBM3"; "" for none that is known."""
    upper = name.upper()
    return next((model.lower() for model in MODELS if model in upper), "")


def _of_model(model: str, hosts: int) -> Iterator[Any]:
    """Bundled clusters with these GPUs and at least so many hosts."""
    if not model:
        return
    for name in cluster_names():
        try:
            fabric = load_cluster(name)
            if hosts > 1 and len(fabric.hosts) != hosts:
                fabric = load_cluster(name, hosts)
        except PrestepError:
            continue  # it does not scale to so many
        if re.fullmatch(rf"{model}(-.*)?", fabric.gpu_model):
            yield fabric


def _fits(fabric: Any, run: Run) -> bool:
    """Whether a log with so many GPUs, hosts and NICs can have run there."""
    by_host = fabric.gpus_by_host
    each = len(next(iter(by_host.values())))
    if len(by_host) < run.hosts or each < run.per_host:
        return False
    if run.hosts <= 1:
        return True
    nics = len(fabric.nic_numbers) // max(1, len(by_host))
    emulated = bool(fabric.cluster_facts.token_bucket)
    return each == run.per_host and run.nics in (0, nics) and not emulated
