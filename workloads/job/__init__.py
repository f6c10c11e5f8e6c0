"""A job: what is trained, and how. One module for each section of a scenario that a framework reads."""
# ruff: noqa: RUF009 - a section is frozen: all jobs may share the default one

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prestep.sim.errors import Mistake
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.faults import Faults
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.job.training import Training


@dataclass(frozen=True)
class JobSpec:
    """What a framework reads of a scenario, by its keys; `where`: the file it came from, for mistakes.

    What later stages are handed, once a step is lowered, is `prestep.sim.planning.job.Job`.
    """

    model: Model = Model()
    training: Training = Training()
    parallel: Parallel = Parallel()
    megatron: Megatron = Megatron()
    pytorch: PyTorch = PyTorch()
    adapter: Adapter = Adapter()
    faults: Faults = Faults()
    where: str = "scenario"

    def mistake(
        self, key: str, expected: str, hint: str = "", found: object = None
    ) -> Mistake:
        """Returns a mistake about a key such as "parallel.tp"; `found`: in place of its value, a text as it is.

        Examples
        --------
        >>> print(JobSpec().mistake("training.optimizer", '"muon"'))
        scenario: training.optimizer: found "adamw", expected "muon"
        """
        text = found if isinstance(found, str) else written(found)
        if found is None:
            section, _, name = key.partition(".")
            text = written(getattr(getattr(self, section), name))
        return Mistake(self.where, key, text, expected, hint)

    def refused(
        self, keys: Iterable[str], expected: str, hint: str = ""
    ) -> Iterator[Mistake]:
        """Yields a mistake about each of some keys that is not the default."""
        for key in keys:
            section, _, name = key.partition(".")
            stated = getattr(self, section)
            if getattr(stated, name) != getattr(type(stated)(), name):
                yield self.mistake(key, expected, hint)


def written(value: object) -> str:
    """A value as a scenario has it, lists without brackets.

    Examples
    --------
    >>> written("fsdp"), written(True), written(("qkv", "proj"))
    ('"fsdp"', 'true', 'qkv, proj')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
