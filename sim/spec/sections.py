"""The sections of a scenario file, one frozen dataclass each: field = key, type = type, `key` = limits and meaning.

Those that a framework reads are the job's (`prestep.workloads.job`); here are the core's others. Extensions declare
theirs under the entry point group `prestep.sections`, by the name of the section: `nightly = "acme.nightly:Nightly"`
is the class of `[nightly]`. A subclass of a section of the core takes its place, and adds keys to it.

Quantities carry units in the file and are SI floats here: bytes, seconds, bytes per second. A key that is None was not
said and is decided later, by the model, the cluster or NCCL.
"""

# ruff: noqa: RUF009 - a section is frozen: all scenarios may share the default one

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Literal

from prestep.sim import plugins
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.strict import key, table
from prestep.workloads.job import JobSpec
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.faults import Faults
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.job.training import Training


@dataclass(frozen=True)
class Cluster:
    """Where it runs: a named cluster, or a file."""

    name: str | None = key(None, "named cluster; `prestep list clusters`")
    file: str | None = key(None, "cluster file, relative to the scenario")
    hosts: int | None = key(None, "number of hosts, where the family scales", low=1)
    gpus: int | None = key(None, "use only the first so many GPUs", low=1)
    host_factor: float | None = key(
        None,
        "host's time for framework code, as a factor; default: the cluster's",
        above=0,
    )
    host_factor_by_rank: tuple[float, ...] = key(
        (), "the same for each rank of a host, over host_factor: [1, 1.4]", above=0
    )
    host_memory: float | None = key(
        None, "memory of a host; default: the cluster's", above=0, unit="bytes"
    )
    numa: Literal["local", "wrong"] = key(
        "local", "wrong: processes run on the other socket than their GPUs"
    )
    kernel_gap: float | None = key(
        None,
        "pause between kernels of a stream, as a profiler leaves; default: the GPU's",
        low=0,
        unit="duration",
    )
    hostfile: str | None = key(None, "hosts to use, as in [placement]")
    routing: str = key(
        "adaptive",
        "which of the equally good paths bytes take",
        names="routings",
        wants="hosts",
    )
    routing_seed: int = key(
        0,
        "ecmp: seed of the switches' hash",
        low=0,
        wants="cluster.routing = ecmp; hosts",
    )
    routing_flows: int = key(
        1,
        "ecmp: connections between two GPUs",
        low=1,
        wants="cluster.routing = ecmp; hosts",
    )
    set: dict[str, str] = table(
        'changes of links: "selector.attribute" = value or factor'
    )


@dataclass(frozen=True)
class Placement:
    """Which GPU each rank runs on; not said: all hosts in the cluster's order, one filled after the other."""

    by: Literal["order", "leaf", "rail", "scattered"] = key(
        "order", "how hosts and GPUs are filled", wants="hosts"
    )
    gpus: tuple[str, ...] | None = key(None, "GPU of every rank, by name")
    hosts: tuple[str, ...] | None = key(None, 'hosts in order, such as "host[0-3,8]"')
    hostfile: str | None = key(None, "mpirun's, DeepSpeed's or Slurm's hostfile")
    slots: int | None = key(None, "ranks of a host; default: one per GPU", low=1)
    leaves: int | None = key(None, "scattered: over so many leaves; default all", low=1)


@dataclass(frozen=True)
class Costs:
    """Times that you know better."""

    operators: dict[str, str] = table(
        'GPU time of an operator of a captured program: "mylib::op" = "12us"'
    )


@dataclass(frozen=True)
class Measured:
    """What a real run of this scenario took; printed beside the prediction, never used by it."""

    step_time: float | None = key(
        None, "median step time over ranks and steps", unit="duration", above=0
    )
    source: str | None = key(None, "where the measurement comes from")
    fitted: bool = key(False, "a constant was fitted to that run")


@dataclass(frozen=True)
class Scenario(JobSpec):
    """A run, checked: a job, where it runs, and what surrounds it. `where` is the file it came from.

    `extensions` has the sections that installed extensions declare, by name: those that say anything.

    With `jobs` the run is theirs: several on one cluster, each with its `name` and the `start` of its first step in
    seconds (None: apart from the others); the other sections are the cluster's, and what the jobs have in common.
    `notes` say what was decided for the reader.
    """

    cluster: Cluster = Cluster()
    nccl: Nccl = Nccl()
    placement: Placement = Placement()
    costs: Costs = Costs()
    measured: Measured = Measured()
    extensions: Mapping[str, Any] = field(default_factory=dict, hash=False)
    name: str = ""
    start: float | None = None
    jobs: tuple[Scenario, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def section(self, name: str) -> Any:
        """The section of that name; one that the scenario leaves out has its defaults."""
        if name in CORE:
            return getattr(self, name)
        return self.extensions[name] if name in self.extensions else SECTIONS[name]()

    def sections(self) -> dict[str, Any]:
        """The core's sections by name, and those of extensions that say anything."""
        return {name: getattr(self, name) for name in CORE} | dict(self.extensions)

    def with_sections(self, sections: Mapping[str, Any]) -> Scenario:
        """The scenario with other sections of these names."""
        core = {name: section for name, section in sections.items() if name in CORE}
        others = {name: sections[name] for name in sections if name not in CORE}
        return replace(self, extensions={**self.extensions, **others}, **core)

    @property
    def other_run(self) -> tuple[str, OtherRun] | None:
        """The section that asks for something else than a training step, with its name; the first of several."""
        others = sorted(self.extensions.items())
        return next((one for one in others if isinstance(one[1], OtherRun)), None)


class OtherRun:
    """Base of sections that ask for something else than a training step, which `prestep run` predicts.

    A module under the entry point group `prestep.runs`, by the name of the section, has `predict(scenario)`, which
    returns the table of `--json`, and `render(table)`, the page for people.

    Attributes
    ----------
    COMMANDS : str
        What a user is told who asks for a training step: the commands that predict it.
    OWN_LAYOUT, PART_OF_CLUSTER : bool
        Replicas and microbatches follow from the section, which checks them; or its GPUs need not be all of the
        cluster's.
    COMPARABLE : bool
        `prestep whatif` compares `step_time` and `breakdown` of its table.
    """

    COMMANDS: ClassVar[str]
    OWN_LAYOUT: ClassVar[bool] = False
    PART_OF_CLUSTER: ClassVar[bool] = False
    COMPARABLE: ClassVar[bool] = False


def run_of(name: str) -> ModuleType:
    """The module that predicts what a section asks for.

    Raises
    ------
    InputError
        If no installed extension has one.
    """
    group = "prestep.runs"
    plugin = plugins.plugins_in(group).get(name)
    if plugin is None:
        expected = f"a module under {group} that predicts it"
        raise InputError.of(group, name, "nothing", expected)
    return plugins.imported_plugin(plugin)


#: The core's tables of a scenario's file, in the order in which they are read and described.
CORE: dict[str, type] = {
    "cluster": Cluster,
    "model": Model,
    "training": Training,
    "parallel": Parallel,
    "megatron": Megatron,
    "pytorch": PyTorch,
    "adapter": Adapter,
    "nccl": Nccl,
    "placement": Placement,
    "faults": Faults,
    "costs": Costs,
    "measured": Measured,
}


class _Sections(Mapping[str, type]):
    """Classes of all sections by name: the core's, then those of extensions, which are imported when asked for."""

    GROUP = "prestep.sections"

    def __getitem__(self, name: str) -> type:
        plugin = plugins.plugins_in(self.GROUP).get(name)
        if plugin is None:
            return CORE[name]
        module = plugins.imported_plugin(plugin)
        assert plugin.entry is not None  # only files of a package have none
        cls = getattr(module, plugin.entry.attribute, None)
        expected = CORE.get(name, object)
        if isinstance(cls, type) and issubclass(cls, expected):
            return cls
        what = f"a subclass of {expected.__name__}" if name in CORE else "a dataclass"
        key = f"{self.GROUP}: {name}"
        wanted = f'{what}: "module:Class"'
        raise InputError.of(plugin.source, key, plugin.entry.value, wanted)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*CORE, *plugins.plugins_in(self.GROUP))))

    def __len__(self) -> int:
        return len(CORE.keys() | plugins.plugins_in(self.GROUP).keys())

    def __contains__(self, name: object) -> bool:
        return name in CORE or name in plugins.plugins_in(self.GROUP)


SECTIONS: Mapping[str, type] = _Sections()
