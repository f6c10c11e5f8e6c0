"""What `prestep init` does: asks for what was not said, and writes the scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from prestep.sim import files
from prestep.sim.commands._shared import misused, talk
from prestep.sim.errors import InputError
from prestep.sim.studies import first_scenario
from prestep.topologies import (
    cluster_names,
    cluster_with_gpu,
    gpu_models,
    load_cluster,
    several_hosts,
)
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import ModelSpec, load_model

Value = TypeVar("Value")
Meaning = TypeVar("Meaning")


def init(
    named: str | None,
    model: str | None,
    cluster: str | None,
    hosts: int | None,
    gpus: int | None,
    seq_len: int | None,
    global_batch: int | None,
    output: Path,
    force: bool,
) -> None:
    if output.exists() and not force:
        hint = "--force writes over it"
        raise misused("--output", str(output), "a file that does not exist", hint)
    if named is not None and model is not None:
        raise misused("--model", f"{model} beside {named}", "the model once")
    name, _ = _asked("Model (name or file)", named or model, "llama3-8b", _model)
    place, own, ranks = _place(cluster, hosts, gpus)
    tokens, _ = _asked("Tokens per sample", seq_len, 4096, int)
    samples, _ = _asked("Samples per step, over all GPUs", global_batch, ranks, int)
    job = first_scenario.Job(name, place, own, tokens, samples, ranks)
    files.write_text(output, first_scenario.text_of(job))
    talk(f"wrote {output}; predict it with `prestep run {output}`")


def _place(
    cluster: str | None, hosts: int | None, gpus: int | None
) -> tuple[str, int | None, int]:
    """The cluster, its hosts (None: as many as its file has), and how many GPUs these are."""
    if hosts is not None and gpus is not None:
        raise misused("--gpus", f"{gpus} beside --hosts {hosts}", "one of the two")
    named, fabric = _asked("Cluster (name, GPU or file)", cluster, "dgx-h100", _cluster)
    if gpus is not None:
        hosts = _hosts_of(gpus, fabric)
    place = _place_of(named, hosts)
    if place != named:
        fabric = load_cluster(place)
    usual = len(fabric.hosts)

    def scaled(count: int) -> Fabric:
        return fabric if count == usual else load_cluster(place, count)

    count, scaled_fabric = _asked("Hosts", hosts, usual, scaled)
    return place, None if count == usual else count, len(scaled_fabric.gpus)


def _place_of(named: str, hosts: int | None) -> str:
    """The cluster that is meant: of a GPU its usual one, and of a single host the one of several; both are said."""
    place = cluster_with_gpu(named) if _is_gpu(named) else named
    if place != named:
        talk(f"{named} is a GPU: the cluster is {place}")
    several = several_hosts(place)
    if (
        several
        and hosts is not None
        and hosts > 1
        and len(load_cluster(place).hosts) == 1
    ):
        talk(f"{place} is one host: {hosts} of them are {several}")
        return several
    return place


def _is_gpu(name: str) -> bool:
    return name in gpu_models() and name not in cluster_names()


def _hosts_of(gpus: int, fabric: Fabric) -> int:
    """Hosts that have so many GPUs."""
    each = len(fabric.gpus) // len(fabric.hosts)
    if gpus % each:
        raise misused("--gpus", str(gpus), f"a multiple of {each}, the GPUs of a host")
    return gpus // each


def _asked(
    question: str, said: Value | None, usual: Value, read: Callable[[Value], Meaning]
) -> tuple[Value, Meaning]:
    """An option, or the answer to its question, and what it stands for; asks again where the answer is wrong."""
    if said is not None:
        return said, read(said)
    while True:
        answer: Value = click.prompt(question, default=usual, err=True)
        try:
            return answer, read(answer)
        except InputError as error:
            talk(str(error))


def _model(name: str) -> ModelSpec:
    section = Model(file=name) if Path(name).is_file() else Model(name=name)
    return load_model(section, "--model")


def _cluster(name: str) -> Fabric:
    return load_cluster(cluster_with_gpu(name) if _is_gpu(name) else name)
