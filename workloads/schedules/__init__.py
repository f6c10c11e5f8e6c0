"""Pipeline schedules: who computes what in which order.

A schedule is one file of this package with a pure function `actions(rank, ranks, microbatches, chunks)` and the
constant `PLACEMENT`; its name is its file name with dashes, or its constant `NAME`. Optional: `CHUNKS` (the only number
of chunks it works with), `problems` (what it cannot run), `FEW` (frameworks may run it all the same with fewer
microbatches than stages), `steps` (actions that the runtime issues as one), `operations` (a runtime of its own; see
`prestep.workloads.schedules.runtime`).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

from prestep.sim import plugins
from prestep.sim.errors import InputError, Mistake, PrestepError, unknown

PACKAGE = __name__
KINDS = "FBIW"


class Action(NamedTuple):
    """One stage's work on one microbatch, printed like `2F0`.

    kind: F forward, B backward, or B split in two: I gradient of the input and W gradient of the weights.
    stage: index in the whole pipeline, not on the rank.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def onward(self) -> int:
        """How far the stage that its result goes to is from its own."""
        return 1 if self.kind == "F" else -1


Rows = tuple[tuple[Action, ...], ...]


def names() -> tuple[str, ...]:
    """The names of all schedules, sorted."""
    return tuple(sorted(_files()))


def summaries() -> dict[str, str]:
    """A line about each schedule."""
    lines = plugins.summaries(PACKAGE)
    return {name: lines[file] for name, file in _files().items()}


def find(name: str) -> ModuleType:
    """The module of the schedule `name`.

    Raises
    ------
    InputError
        If there is none; close names are suggested.
    """
    files = _files()
    file = (
        files.get(name)
        or files.get(name.replace("_", "-"))
        or (name if name in files.values() else None)
    )
    if file is None:
        raise InputError(unknown("schedule", "", name, files))
    return plugins.load(PACKAGE, file)


@cache
def _files() -> dict[str, str]:
    """Public name -> file name."""
    modules = {
        file: plugins.load(PACKAGE, file)
        for file in plugins.providers(PACKAGE, "actions")
    }
    return {
        getattr(module, "NAME", file.replace("_", "-")): file
        for file, module in modules.items()
    }


def chunks_of(name: str, chunks: int) -> int:
    """Stages of every pipeline rank: those of the schedule itself, where it has so many and one is said.

    Raises
    ------
    InputError
        If there is no schedule of that name.
    """
    return _chunks(find(name), chunks if chunks > 1 else None)


def check(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    where: str = "schedule",
    few: bool = False,
) -> tuple[Mistake, ...]:
    """Everything that keeps the schedule from running so; `where` is the file that asked for it.

    Raises
    ------
    InputError
        If there is no schedule of that name.
    """
    module = find(name)
    chunks = _chunks(module, chunks)
    counts = (
        ("parallel.pp", ranks),
        ("training.microbatches", microbatches),
        ("parallel.vpp", chunks),
    )
    found = [
        Mistake(where, key, str(count), "at least 1")
        for key, count in counts
        if count < 1
    ]
    needed = getattr(module, "CHUNKS", None)
    if needed is not None and chunks != needed and chunks >= 1:
        found.append(
            Mistake(
                where, "parallel.vpp", str(chunks), f"{needed} for the schedule {name}"
            )
        )
    if (
        not found
        and hasattr(module, "problems")
        and not (few and getattr(module, "FEW", False))
    ):
        found.extend(module.problems(ranks, microbatches, chunks, where))
    return tuple(found)


def schedule(
    name: str, ranks: int, microbatches: int, chunks: int | None = None
) -> Rows:
    """The actions of every pipeline rank, in the order it runs them.

    Parameters
    ----------
    ranks : pipeline ranks.
    chunks : stages on each rank; None is the schedule's own number, or 1.

    Raises
    ------
    InputError
        If there is no such schedule, or it cannot run with these numbers.
    """
    module, chunks = checked(name, ranks, microbatches, chunks)
    return tuple(
        tuple(module.actions(rank, ranks, microbatches, chunks))
        for rank in range(ranks)
    )


def splits_backward(
    name: str, ranks: int, microbatches: int, chunks: int | None = None
) -> bool:
    """Whether any backward pass comes in halves: the gradient of the input (I) apart from that of the weights (W)."""
    module, stages = find(name), _chunks(find(name), chunks)
    rows = (module.actions(rank, ranks, microbatches, stages) for rank in range(ranks))
    return any(action.kind in ("I", "W") for row in rows for action in row)


def checked(
    name: str, ranks: int, microbatches: int, chunks: int | None, few: bool = False
) -> tuple[ModuleType, int]:
    """The schedule's module and its number of chunks; raises InputError where `check` finds mistakes."""
    mistakes = check(name, ranks, microbatches, chunks, few=few)
    InputError.check(mistakes)
    module = find(name)
    return module, _chunks(module, chunks)


def _chunks(module: ModuleType, chunks: int | None) -> int:
    return int(getattr(module, "CHUNKS", 1)) if chunks is None else chunks


def rank_of_stages(style: str, ranks: int, chunks: int) -> tuple[int, ...]:
    """The rank that holds each stage.

    `loop`: rank r holds r, r + P, ...; `v`: the stages go down the ranks and come back up, so that with two chunks
    rank r holds r and 2P - 1 - r (and the last rank two adjacent ones).
    """
    if style not in ("loop", "v"):
        raise PrestepError(f'placement "{style}": expected "loop" or "v"')
    turned = [
        style == "v" and stage // ranks % 2 == 1 for stage in range(ranks * chunks)
    ]
    return tuple(
        ranks - 1 - stage % ranks if back else stage % ranks
        for stage, back in enumerate(turned)
    )


def placement(style: str, ranks: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """The stages that each rank holds, ascending; see `rank_of_stages`."""
    owner = rank_of_stages(style, ranks, chunks)
    return tuple(
        tuple(stage for stage, rank in enumerate(owner) if rank == own)
        for own in range(ranks)
    )


def needs(action: Action, last_stage: int) -> tuple[Action, ...]:
    """What must be done before `action`, each a full backward or its first half where that is what was run."""
    stage, kind, microbatch = action
    if kind == "F":
        return (Action(stage - 1, "F", microbatch),) if stage else ()
    if kind == "W":
        return (Action(stage, "I", microbatch),)
    own = Action(stage, "F", microbatch)
    return (own,) if stage == last_stage else (own, Action(stage + 1, "I", microbatch))
