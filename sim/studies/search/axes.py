"""What a search tries for each key of a layout, and how other values are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prestep.sim import assignments, strict
from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.sections import SECTIONS, Scenario
from prestep.sim.studies.grid import grid_of
from prestep.workloads.frameworks import framework_of
from prestep.workloads.operation import words

# Keys that a search chooses, in the order in which a layout is named. dp follows from the others.
KEYS = words(
    "parallel.dp parallel.tp parallel.cp parallel.ep parallel.etp parallel.pp parallel.vpp "
    "parallel.schedule parallel.data_parallel parallel.reshard_after_forward parallel.sequence_parallel "
    "training.micro_batch training.recompute"
)
# Keys of a scenario's file that contradict them.
FREE = (
    *KEYS,
    "training.microbatches",
    "training.grad_accumulation",
    "parallel.microbatches",
    "training.global_batch",
)
MOST_STAGES = 8  # pipeline stages per rank tried: more send more often than they fill
LEAST_TOKENS = 4096  # of a sequence on a rank: context parallelism is for longer ones
MOST_SAMPLES = 64  # of a microbatch

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Place:
    """What the values depend on: GPUs in all, those that NVLink joins, and the model."""

    gpus: int
    joined: int
    layers: int
    experts: int
    transformer: bool = True


class Axes:
    """Values by key: those that were asked for, else those that make sense."""

    def __init__(
        self, base: Scenario, place: Place, over: Mapping[str, Values]
    ) -> None:
        self.base, self.place, self.over = base, place, over
        self.framework = framework_of(base)

    def tensor(self) -> Values:
        return self._said("parallel.tp") or divisors(self.place.gpus, self.place.joined)

    def context(self) -> Values:
        spread = self.framework.context_parallel
        most = self.base.training.seq_len // LEAST_TOKENS if spread else 1
        return self._said("parallel.cp") or tuple(
            n for n in divisors(self.place.gpus, max(1, most)) if not n & (n - 1)
        )

    def pipeline(self) -> Values:
        return self._said("parallel.pp") or divisors(
            self.place.gpus, max(1, self.place.layers)
        )

    def schedules(self, pp: int) -> Iterator[tuple[str, int]]:
        """(schedule, stages per rank); one stage goes by 1F1B where the schedule was not asked for."""
        said, chunks = self._said("parallel.schedule"), self._said("parallel.vpp")
        per_rank = chunks or divisors(max(1, self.place.layers // pp), MOST_STAGES)
        for vpp in (1,) if pp == 1 and not chunks else per_rank:
            for schedule in said or (("1f1b",) if vpp == 1 else ("interleaved",)):
                yield schedule, vpp

    def experts(self, tp: int) -> Iterator[tuple[int, int | None]]:
        """(ep, etp): with tensor parallelism experts may be whole on each rank."""
        for ep in self._said("parallel.ep") or divisors(max(1, self.place.experts)):
            spread = self.place.experts and tp > 1
            split = self._tried("parallel.etp", (None,)) if spread else (None,)
            for etp in self._said("parallel.etp") or split:
                yield ep, etp

    def replicas(self, dp: int, cp: int) -> Iterator[tuple[str, bool]]:
        """(data_parallel, reshard_after_forward)."""
        ways = self._tried("parallel.data_parallel", ("ddp",))
        default = ways if dp * cp > 1 else ("none",)
        for way in self._said("parallel.data_parallel") or default:
            twice = (True, False) if way in ("fsdp", "zero3") else (True,)
            for reshard in self._said("parallel.reshard_after_forward") or twice:
                yield way, reshard

    def sequence(self, tp: int) -> Values:
        return self._said("parallel.sequence_parallel") or (
            (False, True) if tp > 1 else (False,)
        )

    def samples(self, batch: int, dp: int) -> Values:
        return self._said("training.micro_batch") or divisors(
            max(1, batch // dp), MOST_SAMPLES if self.place.transformer else None
        )

    def recompute(self) -> Values:
        if not self.place.transformer:
            return self._said("training.recompute") or ("none",)
        return self._said("training.recompute") or self._tried(
            "training.recompute", ("none",)
        )

    def allows(self, dp: int) -> bool:
        """Whether so many replicas were asked for, or nothing was said of them."""
        said = self._said("parallel.dp")
        return not said or dp in said

    def _tried(self, key: str, least: Values) -> Values:
        """What is usual with the framework."""
        return self.framework.tries.get(key, least)

    def _said(self, key: str) -> Values:
        return self.over.get(key, ())


def divisors(number: int, most: int | None = None) -> tuple[int, ...]:
    """Divisors of a whole number, ascending, up to `most`."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    every = sorted({*low, *(number // n for n in low)})
    return tuple(n for n in every if most is None or n <= most)


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with keys replaced; keys of no section change the cluster's links and GPUs, as `--set` does."""
    by_section: dict[str, dict[str, Any]] = {}
    links: dict[str, str] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if section in SECTIONS:
            by_section.setdefault(section, {})[name] = value
        else:
            links[key] = str(value)
    if links:
        by_section.setdefault("cluster", {})["set"] = {**scenario.cluster.set, **links}
    return scenario.with_sections(
        {name: replace(scenario.section(name), **k) for name, k in by_section.items()}
    )


def read_over(texts: Sequence[str], pinned: Sequence[str] = ()) -> dict[str, Values]:
    """`parallel.tp=1,2,4` -> its values, typed; `pinned` are items of `--set`, of which those of a layout count.

    Raises
    ------
    InputError
        For a text without key or values, an unknown key, or a value of the wrong type.
    """

    last = {item.partition("=")[0].strip(): item for item in pinned}
    grid = grid_of(
        [item for key, item in last.items() if key in KEYS], "--set"
    ) | grid_of(texts, "--over")
    found: dict[str, Values] = {}
    mistakes: list[Mistake] = []
    for key, values in grid.items():
        with InputError.collected(mistakes):
            found[key] = tuple(dict.fromkeys(_typed(key, value) for value in values))
    InputError.check(mistakes)
    return found


def _typed(key: str, text: str) -> Any:
    section, _, name = key.partition(".")
    if key in FREE and key not in KEYS and key != "training.global_batch":
        hint = "it follows from training.global_batch and the layout"
        raise InputError.of("--over", key, text, "a key of a layout", hint)
    if section not in SECTIONS:
        assignments.link_key(key, SECTIONS)
        return text
    cls: type[Any] = SECTIONS[section]
    made, mistakes = strict.build(
        cls, {name: assignments.read(cls, name, text)}, "--over", section, {}
    )
    InputError.check(mistakes)
    return getattr(made, name)
