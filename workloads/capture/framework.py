"""A program recorded by `prestep capture`: its step is read from a file, whatever framework it uses."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

from prestep.sim.errors import InputError, unknown
from prestep.sim.units import format_bytes, parse_duration
from prestep.workloads.capture import attention, recording, summary
from prestep.workloads.capture import lower as lowering
from prestep.workloads.frameworks import Framework
from prestep.workloads.host_costs import host_costs
from prestep.workloads.host_work import bandwidth
from prestep.workloads.job import JobSpec
from prestep.workloads.lowered import Lowered, Site
from prestep.workloads.models.model import ModelSpec


def lower(scenario: JobSpec, model: ModelSpec, site: Site) -> Lowered:
    """The recorded step of every rank that was run."""
    recorded = recording.read(Path(scenario.model.file or ""))
    return lowering.lower(
        attention.on_gpu(recorded, site.capability),
        host_costs("pytorch-compiled"),
        site.host_factor,
        marks(site),
        site.workspace,
        site.operators,
        bandwidth(recorded.threads, site.host_memory),
    )


def marks(site: Site) -> Sequence[Hashable]:
    """GPUs of several kinds, what they can and cuBLAS takes of their memory, the host's, and times of operators."""
    own = (site.workspace, site.host_memory, tuple(site.operators.items()))
    return (*own, site.capability, *site.speeds)


def operator_times(scenario: JobSpec, stated: Mapping[str, str]) -> dict[str, float]:
    """Seconds of the program's operators, as [costs.operators] has them.

    Raises
    ------
    InputError
        For times that are none, and operators that the program does not call.
    """
    recorded = recording.read(Path(scenario.model.file or ""))
    called = {each.operator for each in recorded.operations}
    own = {name for name in called if not name.startswith("aten::")} or called
    mistakes = [
        unknown(scenario.where, "costs.operators", name, own)
        for name in stated
        if name not in called
    ]
    if mistakes:
        raise InputError(mistakes)
    return {
        name: parse_duration(time, scenario.where, f"costs.operators.{name}")
        for name, time in stated.items()
    }


def caveats(scenario: JobSpec, model: ModelSpec) -> Iterator[str]:
    """Values that the program read, and nobody knew."""
    recorded = recording.read(Path(scenario.model.file or ""))
    size = max(summary.host_bytes(rank.events) for rank in recorded.ranks)
    if size:
        yield _computed_by_host(size, recorded.threads)
    for what, count in sorted(recorded.assumed.items()):
        yield f"capture: {_assumption(what, count)}"
    if recorded.compiled:
        names = ", ".join(recorded.compiled[:3])
        more = len(recorded.compiled) - 3
        names += f" and {more} more" if more > 0 else ""
        yield f"capture: {names}: compiled: their kernels are those of a model of TorchInductor"


def _computed_by_host(size: float, threads: int) -> str:
    """What a rank computes on tensors in its host's memory."""
    count = f"{threads} of its threads" if threads else "all its cores"
    count = "one of its threads" if threads == 1 else count
    return (
        f"capture: the host itself computes, on {format_bytes(size)} of its memory in a step; its time is a guess for "
        f"{count} (OMP_NUM_THREADS when it was captured)"
    )


def _assumption(what: str, count: int) -> str:
    """What was assumed of data that nobody computed, how often."""
    if what.startswith("size of "):
        return f"{what}: it depends on data that nobody computed, {count} times"
    if what.startswith("experts"):
        return f"{what}: nobody computed by what topk chooses, {count} times (capture --assume)"
    if ": " in what:
        return f"{what}, {count} times"
    return f"{what}: the program read a value that nobody computed, {count} times: 1, or no, was assumed"


FRAMEWORK = Framework(
    lower,
    marks,
    data_parallel=("none",),
    caveats=caveats,
    operator_times=operator_times,
)
