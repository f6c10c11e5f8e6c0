"""Write a scenario for MODEL on a cluster: five questions, or five options.

The job is sharded over all GPUs (FSDP), with the largest micro batch that fits; `prestep search` finds other layouts.
`prestep init cluster` writes a cluster file instead (`prestep init cluster --help`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.commands._init_cluster import cluster as cluster_file
from prestep.sim.commands._init_cluster import prompted
from prestep.sim.errors import InputError
from prestep.sim.extras import lazily

with lazily():
    from prestep import topologies
    from prestep.sim import files
    from prestep.sim.studies import first_scenario
    from prestep.topologies import fabric as fabrics
    from prestep.workloads.job import model as jobs
    from prestep.workloads.models import model as models

GROUP = "Predict"
Value = TypeVar("Value")
Meaning = TypeVar("Meaning")
#: Options that are whole numbers.
COUNTS: dict[str | tuple[str, ...], str] = {
    ("--hosts", "--nodes"): "Hosts of the cluster (also --nodes).",
    "--gpus": "Instead of --hosts: GPUs of whole hosts.",
    "--seq-len": "Tokens of a sample.",
    "--global-batch": "Samples of a step.",
}


class _Job(click.Command):
    """Writes a scenario, and a file of another kind where the first word names one."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0] in _OTHERS:
            name = f"{info_name} {args[0]}"
            return _OTHERS[args[0]].make_context(name, args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


#: Commands for files that are no scenario.
_OTHERS = {"cluster": cluster_file}


@click.command(
    cls=_Job,
    help=__doc__,
    epilog="Example: prestep init --model llama3-8b --cluster dgx-h100-superpod --hosts 16 --seq-len 8192 "
    "--global-batch 256 -o job.toml",
)
@click.argument("named", metavar="[MODEL]", required=False)
@click.option("--model", metavar="NAME|FILE", help="`prestep list models`, or a file.")
@click.option(
    "--cluster",
    "--gpu",
    metavar="NAME|FILE",
    help="`prestep list clusters`, a GPU of theirs (h100), or a file.",
)
@shared.options(COUNTS, type=shared.Count())
@shared.new_file("job.toml")
@shared.explained
def command(
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
    shared.check_new(output, force)
    if named is not None and model is not None:
        raise shared.misused("--model", f"{model} beside {named}", "the model once")
    name, _ = _asked(
        "Model (name or file)", "--model", named or model, "llama3-8b", _model
    )
    place, own, ranks = _place(cluster, hosts, gpus)
    tokens, _ = _asked("Tokens per sample", "--seq-len", seq_len, 4096, int)
    samples, _ = _asked(
        "Samples per step, over all GPUs", "--global-batch", global_batch, ranks, int
    )
    job = first_scenario.Job(name, place, own, tokens, samples, ranks)
    files.write_text(output, first_scenario.text_of(job))
    shared.talk(f"wrote {output}; predict it with `prestep run {output}`")


def _place(
    cluster: str | None, hosts: int | None, gpus: int | None
) -> tuple[str, int | None, int]:
    """The cluster, its hosts (None: as many as its file has), and how many GPUs these are."""
    if hosts is not None and gpus is not None:
        raise shared.misused(
            "--gpus", f"{gpus} beside --hosts {hosts}", "one of the two"
        )
    named, fabric = _asked(
        "Cluster (name, GPU or file)", "--cluster", cluster, "dgx-h100", _cluster
    )
    if gpus is not None:
        hosts = _hosts_of(gpus, fabric)
    place = _place_of(named, hosts)
    if place != named:
        fabric = topologies.load_cluster(place)
    usual = len(fabric.hosts)

    def scaled(count: int) -> fabrics.Fabric:
        return fabric if count == usual else topologies.load_cluster(place, count)

    count, scaled_fabric = _asked("Hosts", "--hosts", hosts, usual, scaled)
    return place, None if count == usual else count, len(scaled_fabric.gpus)


def _place_of(named: str, hosts: int | None) -> str:
    """The cluster that is meant: of a GPU its usual one, and of a single host the one of several; both are said."""
    place = topologies.cluster_with_gpu(named) if _is_gpu(named) else named
    if place != named:
        shared.talk(f"{named} is a GPU: the cluster is {place}")
    several = topologies.several_hosts(place)
    if (
        several
        and hosts is not None
        and hosts > 1
        and len(topologies.load_cluster(place).hosts) == 1
    ):
        shared.talk(f"{place} is one host: {hosts} of them are {several}")
        return several
    return place


def _is_gpu(name: str) -> bool:
    return name in topologies.gpu_models() and name not in topologies.cluster_names()


def _hosts_of(gpus: int, fabric: fabrics.Fabric) -> int:
    """Hosts that have so many GPUs."""
    each = len(fabric.gpus) // len(fabric.hosts)
    if gpus % each:
        raise shared.misused(
            "--gpus", str(gpus), f"a multiple of {each}, the GPUs of a host"
        )
    return gpus // each


def _asked(
    question: str,
    option: str,
    said: Value | None,
    usual: Value,
    read: Callable[[Value], Meaning],
) -> tuple[Value, Meaning]:
    """An option, or the answer to its question, and what it stands for; asks again where the answer is wrong.

    Where nobody can answer, the option is missed by name.
    """
    if said is not None:
        return said, read(said)
    while True:
        answer = prompted(question, option, None, usual)
        try:
            return answer, read(answer)
        except InputError as error:
            shared.talk(str(error))


def _model(name: str) -> models.ModelSpec:
    section = jobs.Model(file=name) if Path(name).is_file() else jobs.Model(name=name)
    return models.load_model(section, "--model")


def _cluster(name: str) -> fabrics.Fabric:
    return topologies.load_cluster(
        topologies.cluster_with_gpu(name) if _is_gpu(name) else name
    )
