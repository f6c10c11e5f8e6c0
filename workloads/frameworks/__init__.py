"""Frameworks: what runs a training step. One module each, which defines FRAMEWORK; its file's name is its name.

Host time by operation and the pause between kernels are tables beside the modules (`prestep.workloads.host_costs`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from prestep.sim import plugins
from prestep.sim.errors import Mistake, PrestepError

if (
    TYPE_CHECKING
):  # what these import takes long, and reading a scenario needs none of it
    from prestep.workloads.job import JobSpec
    from prestep.workloads.lowered import Lowered, Site
    from prestep.workloads.models.model import ModelSpec

Check = Callable[..., Iterator[Mistake]]
#: Sections whose keys are read by some families of frameworks.
OF_FAMILIES = ("pytorch", "megatron")


class Rule(NamedTuple):
    """A check of a scenario, or of it and a model, and the keys that it rests on: one that is wrong silences it."""

    keys: str
    check: Check

    def __call__(self, *args: object) -> Iterator[Mistake]:
        return self.check(*args)


def rule(keys: str) -> Callable[[Check], Rule]:
    """Makes a rule of a check; `keys` are separated by spaces."""
    return lambda check: Rule(keys, check)


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Framework:
    """What a framework decides of a step.

    Attributes
    ----------
    lower
        Records the step of a model: what each simulated rank issues.
    marks
        What tells ranks apart: a step that was lowered for equal marks can be run again elsewhere.
    order
        Parallel axes from the innermost, where `parallel.order` does not say.
    precisions, updates
        Needs of a precision that it meets (`prestep.workloads.precision`), and updates of optimizers that it records.
    recompute, data_parallel
        Values of those keys that are simulated.
    sharded
        Values of parallel.data_parallel with which each rank keeps a part of the parameters.
    family
        Under which name keys say that it reads them: `of` of a key, else `OF` of its section.
    rules, model_rules
        What it cannot run, by keys of the scenario, and of scenario and model.
    refusals
        What it could run but is not simulated.
    tries
        Values of keys that a search tries, beyond those that every framework has.
    level
        Whether every step begins with all ranks level, as where the host reads the gradients' norm.
    fused_load
        Whether its elementwise kernels take what the GPU's table says of joined ones (`fused`).
    folds_layers
        Whether layers that are alike are simulated once, however often they run.
    few_microbatches
        Whether its 1F1B runs fewer microbatches than stages.
    context_parallel
        Whether sequences are spread over ranks.
    master
        Whether the optimizer's state is in fp32, with a copy of the parameters.
    blockwise
        Whether an orthogonal update takes a tensor-parallel part of a matrix for itself.
    gathers_matrices
        Whether an orthogonal update gathers the matrices that FSDP shards and tensor parallelism splits.
    shares_heads
        Whether tensor-parallel ranks that are more than heads of keys and values share them.
    layers_beside
        How many of embedding and head count as layers in the cut into stages.
    adapters
        Whether it trains adapters beside frozen weights.
    fp32_adapters
        Whether these may be in fp32, under autocast.
    packs
        Whether attention sees documents of packed samples alone.
    caveats
        What a result should say of the model of it.
    operator_times
        Seconds of operators of its own by name, from those that are stated as texts; None where it has none.
    """

    lower: Callable[[JobSpec, ModelSpec, Site], Lowered]
    marks: Callable[[Site], Sequence[Hashable]]
    order: tuple[str, ...] = ("tp", "cp", "ep", "pp", "dp")
    precisions: tuple[str, ...] = ()
    updates: tuple[str, ...] = ("adam",)
    recompute: tuple[str, ...] = ("none",)
    data_parallel: tuple[str, ...] = ("none", "ddp", "ddp-no-overlap")
    sharded: tuple[str, ...] = ("fsdp", "zero3")
    family: str = ""
    rules: tuple[Rule, ...] = ()
    model_rules: tuple[Rule, ...] = ()
    refusals: Callable[[JobSpec], Iterator[Mistake]] = _nothing
    tries: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    level: bool = False
    fused_load: bool = False
    folds_layers: bool = False
    few_microbatches: bool = False
    context_parallel: bool = False
    master: bool = False
    blockwise: bool = False
    gathers_matrices: bool = False
    shares_heads: bool = False
    layers_beside: Callable[[JobSpec], int] = lambda scenario: 0
    adapters: bool = False
    fp32_adapters: bool = False
    packs: bool = False
    caveats: Callable[[JobSpec, ModelSpec], Iterator[str]] = _nothing
    operator_times: (
        Callable[[JobSpec, Mapping[str, str]], Mapping[str, float]] | None
    ) = None

    @property
    def steps(self) -> int:
        """Steps to simulate; the last one is reported.

        Two bring the host's lead over the GPU to its steady state; where steps begin level, the second is like any
        other.
        """
        return 2 if self.level else 3

    def reads(self, section: type) -> tuple[str, ...]:
        """Keys of a section that it reads and others may not."""
        keys = fields(section)
        return tuple(k.name for k in keys if self.family in readers(section, k))


def readers(section: type, key: Field[Any]) -> list[str]:
    """Families of frameworks that read a key."""
    of: str = key.metadata["of"] or getattr(section, "OF", "")
    return of.split()


@rule("pytorch megatron training")
def foreign(s: JobSpec) -> Iterator[Mistake]:
    """Keys of other frameworks, in sections of which this one reads some: they would be taken for its own."""
    mine = framework_of(s)
    for name in OF_FAMILIES:
        part = getattr(s, name)
        read = mine.reads(type(part))
        for key in fields(part) if read else ():
            if key.name not in read and getattr(part, key.name) != key.default:
                families = readers(type(part), key)
                of = [f for f in names() if framework(f).family in families]
                hint = f"training.framework = {' or '.join(of)} reads it"
                yield s.mistake(f"{name}.{key.name}", "nothing", hint)


def names() -> list[str]:
    """Names that `training.framework` can have, sorted."""
    return [name.replace("_", "-") for name in plugins.discover(__name__)]


def framework(name: str) -> Framework:
    """The framework of that name.

    Raises
    ------
    InputError
        If there is none; close names are suggested.
    """
    module = plugins.load(__name__, name)
    if not isinstance(getattr(module, "FRAMEWORK", None), Framework):
        raise PrestepError(
            f"{module.__name__}: a framework's module must define FRAMEWORK, a Framework"
        )
    return module.FRAMEWORK  # type: ignore[no-any-return]


def framework_of(scenario: JobSpec) -> Framework:
    """What a scenario is trained with."""
    return framework(scenario.training.framework)
