"""Which parameters DeepSpeed's ZeRO 3 gathers, keeps and frees at each module of a course that it has recorded.

Rules from deepspeed/runtime/zero/partitioned_param_coordinator.py (0.19): the first microbatch says in which order
modules run, forward and backward; the ones after it look ahead along that course. A module gathers what it lacks, then
what comes next, up to `PREFETCH` elements at a time while fewer than `LIVE` are gathered. Behind it, its parameters are
freed, unless they persist, the look-ahead has passed a later use of theirs, or one comes within `REUSE` elements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from prestep.workloads.torch.tape import Tape, Tensor

#: Elements (deepspeed/runtime/zero/config.py): stage3_prefetch_bucket_size, stage3_max_live_parameters,
#: stage3_max_reuse_distance, and the size up to which a parameter stays, stage3_param_persistence_threshold.
PREFETCH, LIVE, REUSE, PERSISTENT = 50_000_000, 1_000_000_000, 1_000_000_000, 100_000


def with_hook(t: Tape, y: Tensor, before_backward: Callable[[], None]) -> Tensor:
    """The same tensor, whose gradient calls before it goes on."""

    def backward(g: Tensor) -> list[Tensor | None]:
        before_backward()
        return [g]

    return t.apply(Tensor(y.storage, y.shape, y.itemsize), [y], backward)


class ModuleHooks(Protocol):
    """What an engine hangs on every module (`torch.nn.Module.register_forward_pre_hook` and its kin).

    A module is known by the parameters that it has itself, and not by its children.
    """

    def enter(self, parameters: Sequence[Tensor]) -> None:
        """A module is about to run."""
        ...

    def take(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The input that it gets, whose gradient says that the module has run backward."""
        ...

    def leave(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """The output that it gives, whose gradient says that the module is about to run backward."""
        ...


@dataclass
class Course:
    """Modules in the order in which a microbatch runs them, forward and backward: hooks that write it down.

    Attributes
    ----------
    tape : Tape
    modules : list of lists
        Parameters of each, as it is entered.
    """

    tape: Tape
    modules: list[list[Tensor]] = field(default_factory=list)

    def enter(self, parameters: Sequence[Tensor]) -> None:
        self.modules.append(list(parameters))

    def take(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        return x

    def leave(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        return with_hook(self.tape, y, lambda: self.enter(parameters))

    def numbered(self, parameters: Sequence[Tensor]) -> list[list[int]]:
        """The course by numbers of parameters, each module's sorted."""
        numbers = {id(p): number for number, p in enumerate(parameters)}
        return [sorted(numbers[id(p)] for p in module) for module in self.modules]


class Coordinator:
    """What is gathered while a microbatch follows its course; parameters are numbers.

    Parameters
    ----------
    course : sequence of sequences
        Parameters of each module, in order.
    elements : sequence of int
        Of every parameter.

    Attributes
    ----------
    gathered : set
        Parameters that are there or under way.
    """

    def __init__(
        self, course: Sequence[Sequence[int]], elements: Sequence[int]
    ) -> None:
        self.course, self.elements = course, elements
        self.queue = [(p, place) for place, each in enumerate(course) for p in each]
        self.before = [0, *accumulate(sum(elements[p] for p in m) for m in course)]
        self.uses: dict[int, list[int]] = {}
        for p, place in self.queue:
            self.uses.setdefault(p, []).append(place)
        self.gathered: set[int] = set()
        self.begin()

    def persists(self, p: int) -> bool:
        """Whether a parameter is small enough to stay."""
        return self.elements[p] <= PERSISTENT

    def begin(self) -> None:
        """A microbatch starts (`reset_step`); what is there already does not count as live."""
        self.place = self.next = self.live = 0
        self.passed: dict[int, int] = {}  # the latest use up to which was looked ahead

    def lacking(self, module: Sequence[int]) -> list[int]:
        """What a module that is entered has to gather."""
        return self._take([p for p in module if p not in self.gathered])

    def ahead(self, module: Sequence[int]) -> list[int]:
        """What is gathered for modules to come, after a module has got its own; then it has been entered."""
        self._drop(module)
        room = min(LIVE - self.live, PREFETCH)
        chosen: dict[int, None] = {}
        size = 0
        while self.next < len(self.queue) and size < room:
            p = self._pass()
            if p not in self.gathered and p not in chosen:
                chosen[p] = None
                size += self.elements[p]
        self.place += 1
        return self._take(list(chosen))

    def _drop(self, module: Sequence[int]) -> None:
        """A module's own entries leave the queue, if the look-ahead has not passed them."""
        fresh = {p for p in module if self.passed.get(p, -1) < self.place}
        left = set(fresh)
        while left and self.next < len(self.queue):
            left.discard(self._pass())

    def _pass(self) -> int:
        p, place = self.queue[self.next]
        self.next += 1
        self.passed[p] = max(place, self.passed.get(p, -1))
        return p

    def _take(self, parameters: list[int]) -> list[int]:
        self.gathered.update(parameters)
        self.live += sum(self.elements[p] for p in parameters)
        return sorted(parameters)

    def freed(self, module: Sequence[int]) -> list[int]:
        """What is freed behind a module."""
        going = [p for p in module if p in self.gathered and not self._stays(p)]
        self.gathered.difference_update(going)
        self.live -= sum(self.elements[p] for p in going)
        return going

    def _stays(self, p: int) -> bool:
        if self.persists(p) or self.passed.get(p, -1) > self.place:
            return True
        uses = self.uses[p]
        at = bisect_left(uses, self.place)
        if at == len(uses):
            return False
        return self.before[uses[at]] - self.before[self.place] < REUSE
