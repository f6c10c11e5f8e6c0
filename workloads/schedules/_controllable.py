"""What the schedules of controllable memory share: a block that repeats, squeezed.

Every microbatch runs the same block of passes, six slots after the one before (F, I and W of two chunks fill six
slots). The block alone decides how long activations live. Weight gradients take the slots that are left. What stands
idle at both ends is then squeezed out, as far as activations and dependencies allow.

Qi et al. 2024, Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, sections 3 and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from prestep.workloads.schedules import Action, Rows, needs

PERIOD = 6
#: What an action adds to the activations that a rank holds.
HELD = {"F": 1, "I": 0, "W": -1}

#: Slot in which each pass of the first microbatch begins, by pass such as "F0" (forward of chunk 0).
Block = Mapping[str, int]


@lru_cache(maxsize=8)
def rows(block: Callable[[int, int], Block], ranks: int, microbatches: int) -> Rows:
    """The actions of every rank of a V, in their order; `block` of a rank and the number of ranks."""
    grid = _Grid(ranks)
    for rank in range(ranks):
        grid.lay(rank, block(rank, ranks), microbatches)
        grid.fill(rank)
    grid.squeeze()
    grid.cool_down(microbatches)
    return grid.rows()


@dataclass
class _Grid:
    """Slots of every rank, and where each action stands.

    Attributes
    ----------
    ranks : int
        Pipeline ranks; rank r holds the stages r and 2 P - 1 - r.
    slots : list of dict
        Of each rank, the action in each slot that is not idle.
    start : dict
        Slot of each action.
    """

    ranks: int
    slots: list[dict[int, Action]] = field(init=False)
    start: dict[Action, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = [{} for _ in range(self.ranks)]

    @property
    def last_stage(self) -> int:
        return 2 * self.ranks - 1

    def lay(self, rank: int, block: Block, microbatches: int) -> None:
        """Sets the forwards and input gradients of all microbatches down, a block after the other."""
        stages = (rank, self.last_stage - rank)
        for microbatch in range(microbatches):
            for name, slot in block.items():
                action = Action(stages[int(name[1])], name[0], microbatch)
                self._put(rank, action, slot + PERIOD * microbatch)

    def fill(self, rank: int) -> None:
        """Gives each idle slot to the weight gradient that has waited longest."""
        waiting = deque[Action]()
        slot, end = 0, max(self.slots[rank])
        while slot <= end or waiting:
            action = self.slots[rank].get(slot)
            if action is None and waiting:
                self._put(rank, waiting.popleft(), slot)
            elif action is not None and action.kind == "I":
                waiting.append(action._replace(kind="W"))
            slot += 1

    def squeeze(self) -> None:
        """Moves every action to the first idle slot that it could have, without more activations than there are."""
        room = max(max(self._held(rank)) for rank in range(self.ranks))
        for slot, rank, action in self._in_order():
            earliest = self._earliest(action)
            self._move(
                rank, action, slot, self._first_free(rank, earliest, slot, action, room)
            )

    def cool_down(self, microbatches: int) -> None:
        """After the last forward of a rank: input gradients as early as they can, weight gradients in between."""
        late = [self._after_forwards(rank, microbatches) for rank in range(self.ranks)]
        held_back: list[list[Action]] = [[] for _ in range(self.ranks)]
        for slot, rank, action in self._in_order():
            if slot < late[rank]:
                continue
            self._take(rank, action, slot)
            if action.kind == "W":
                held_back[rank].append(action)
            else:
                self._put(rank, action, self._idle(rank, self._earliest(action)))
        for rank, weights in enumerate(held_back):
            for weight in weights:
                self._put(rank, weight, self._idle(rank, self._earliest(weight)))

    def rows(self) -> Rows:
        return tuple(tuple(slots[at] for at in sorted(slots)) for slots in self.slots)

    def _in_order(self) -> Iterable[tuple[int, int, Action]]:
        """All actions by slot, then by rank, as they stand now."""
        return sorted(
            (slot, rank, action)
            for rank, slots in enumerate(self.slots)
            for slot, action in slots.items()
        )

    def _put(self, rank: int, action: Action, slot: int) -> None:
        self.slots[rank][slot] = action
        self.start[action] = slot

    def _take(self, rank: int, action: Action, slot: int) -> None:
        del self.slots[rank][slot]
        del self.start[action]

    def _move(self, rank: int, action: Action, old: int, new: int) -> None:
        if new != old:
            self._take(rank, action, old)
            self._put(rank, action, new)

    def _earliest(self, action: Action) -> int:
        """The slot after all that must be done before, the same pass of the microbatch before included."""
        before = list(needs(action, self.last_stage))
        if action.microbatch:
            before.append(action._replace(microbatch=action.microbatch - 1))
        return max(
            (self.start[one] + 1 for one in before if one in self.start), default=0
        )

    def _idle(self, rank: int, slot: int) -> int:
        """The first idle slot from `slot` on."""
        while slot in self.slots[rank]:
            slot += 1
        return slot

    def _first_free(
        self, rank: int, earliest: int, now: int, action: Action, room: int
    ) -> int:
        """The first idle slot in which the action leaves no more than `room` activations held until `now`."""
        more = HELD[action.kind]
        held = self._held(rank)
        for slot in range(earliest, now):
            if slot in self.slots[rank]:
                continue
            if more <= 0 or max(held[slot:now]) + more <= room:
                return slot
        return now

    def _held(self, rank: int) -> list[int]:
        """Activations that a rank holds after each slot."""
        slots, held, total = self.slots[rank], [], 0
        for slot in range(max(slots) + 1):
            total += HELD[slots[slot].kind] if slot in slots else 0
            held.append(total)
        return held

    def _after_forwards(self, rank: int, microbatches: int) -> int:
        """The first slot after a rank's last forward."""
        last = max(
            self.start[Action(stage, "F", microbatches - 1)]
            for stage in (rank, self.last_stage - rank)
        )
        return last + 1
