"""When the actions of a schedule run: as a timetable, as a picture, and how many activations they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prestep.sim.errors import PrestepError
from prestep.workloads.schedules import Action, needs

# The textbook picture: a backward is two slots, or one for the input's gradient and one for the weights'.
SLOTS: Mapping[str, int] = {"F": 1, "B": 2, "I": 1, "W": 1}

Timetable = tuple[tuple[tuple[float, Action], ...], ...]


def timetable(
    rows: Sequence[Sequence[Action]], slots: Mapping[str, float] = SLOTS
) -> Timetable:
    """When each action starts if every one starts as early as it can and sending takes no time.

    `slots` is the duration of each kind, in any unit; the starts are in the same unit.

    Raises
    ------
    PrestepError
        If the rows can never finish; the text says what each rank waits for.
    """
    ranks = range(len(rows))
    clock = _Clock(rows, slots)
    while clock.done_of != [len(row) for row in rows]:
        advanced = [clock.advance(rank) for rank in ranks]
        if not any(advanced):
            raise PrestepError(clock.stuck())
    return tuple(map(tuple, clock.times))


@dataclass
class _Clock:
    """Ranks that run their actions.

    Attributes
    ----------
    rows, slots
        What the ranks run, and how long each kind takes.
    done : dict
        When an action had ended; a whole backward pass counts as the gradient of the input.
    times : list
        Starts of the actions of every rank.
    free, done_of : list
        When each rank is free, and how many of its actions it has run.
    """

    rows: Sequence[Sequence[Action]]
    slots: Mapping[str, float]
    done: dict[Action, float] = field(default_factory=dict)
    times: list[list[tuple[float, Action]]] = field(init=False)
    free: list[float] = field(init=False)
    done_of: list[int] = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.times = [[] for _ in self.rows]
        self.free = [0.0] * len(self.rows)
        self.done_of = [0] * len(self.rows)
        stages = (action.stage for row in self.rows for action in row)
        self.last = max(stages, default=0)

    def advance(self, rank: int) -> bool:
        """Runs a rank until it has to wait; whether it ran anything."""
        row, begun = self.rows[rank], self.done_of[rank]
        for action in row[begun:]:
            before = needs(action, self.last)
            if not all(need in self.done for need in before):
                break
            start = max([self.free[rank], *(self.done[need] for need in before)])
            self._run(rank, action, start)
        return self.done_of[rank] > begun

    def _run(self, rank: int, action: Action, start: float) -> None:
        end = start + self.slots[action.kind]
        kind = "I" if action.kind == "B" else action.kind
        self.done[action._replace(kind=kind)] = self.free[rank] = end
        self.times[rank].append((start, action))
        self.done_of[rank] += 1

    def stuck(self) -> str:
        """What every rank waits for."""
        lines = ["the schedule can never finish:"]
        for rank, (row, count) in enumerate(zip(self.rows, self.done_of, strict=True)):
            if count == len(row):
                continue
            action = row[count]
            before = needs(action, self.last)
            missing = " and ".join(
                str(need) for need in before if need not in self.done
            )
            lines.append(f"  rank {rank} is at {action}, which waits for {missing}")
        return "\n".join(lines)


def render(rows: Sequence[Sequence[Action]], slots: Mapping[str, int] = SLOTS) -> str:
    """The schedule as a table: a line per rank, a column per slot, `.` where the rank is idle.

    An action that takes several slots is followed by `=`. The times are those of `timetable`.
    """
    grid = [_cells(row, slots) for row in timetable(rows, slots)]
    columns = max(map(len, grid), default=0)
    width = max((len(cell) for cells in grid for cell in cells), default=0)
    lead = len(str(len(grid) - 1))
    lines = []
    for rank, cells in enumerate(grid):
        padded = cells + ["."] * (columns - len(cells))
        line = " ".join(f"{cell:<{width}}" for cell in padded)
        lines.append(f"rank {rank:>{lead}} | {line}".rstrip())
    return "\n".join(lines) + "\n"


def _cells(row: Sequence[tuple[float, Action]], slots: Mapping[str, int]) -> list[str]:
    """What a rank does in every slot."""
    cells: list[str] = []
    for start, action in row:
        cells.extend("." * (int(start) - len(cells)))
        cells.extend([str(action), *"=" * (int(slots[action.kind]) - 1)])
    return cells
