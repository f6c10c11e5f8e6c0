"""Good files that do not belong together: the fifth fuzzer.

    python -m tests.fuzz.crossed 1000 [--first 0] [--only ranks]

Splices two files of a kind, gives one kind's file to the command of another, plants a part of one file in another, and
replays ranks of different runs as if they were one.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz import options
from tests.fuzz.running import JUDGES, outcome
from tests.fuzz.seeds import Seed, seeds
from tests.fuzz.structured import places, text_of, tree_of
from tests.workloads.traces import synthetic

Chance = random.Random
Event = dict[str, Any]


@cache
def _texts() -> list[Seed]:
    return [seed for seed in seeds() if not seed.packed and not seed.binary]


def spliced(chance: Chance, folder: Path) -> str:
    """The lines of one file up to somewhere, then those of another of its kind."""
    seed = chance.choice(_texts())
    alike = [other for other in _texts() if other.suffix == seed.suffix]
    other = chance.choice(alike)
    one, two = (each.text.splitlines(keepends=True) for each in (seed, other))
    head = one[: chance.randrange(len(one) + 1)]
    tail = two[chance.randrange(len(two) + 1) :]
    return _read(seed, "".join([*head, *tail]), folder, other.name)


def misread(chance: Chance, folder: Path) -> str:
    """A good file of one kind, with its own ending or the other's, where another command expects one of its own."""
    seed, other = (chance.choice(_texts()) for _ in range(2))
    suffix = chance.choice((seed.suffix, other.suffix))
    taken = Seed(seed.name, suffix, seed.text, seed.words, beside=seed.beside)
    return _read(taken, other.text, folder, other.name)


def planted(chance: Chance, folder: Path) -> str:
    """A value of one file in the place of a value of another."""
    trees = [(seed, found) for seed in _texts() if (found := _tree(seed.name))]
    (seed, (kind, tree)), (other, (_, given)) = (chance.choice(trees) for _ in range(2))
    tree, given = copy.deepcopy(tree), copy.deepcopy(given)
    known, parts = places(tree), places(given)
    for _ in range(chance.choice((1, 1, 3))):
        node, key = chance.choice(known)
        if part := chance.choice(parts or [({0: None}, 0)]):
            node[key] = part[0][part[1]]
        if isinstance(node, dict) and parts and chance.random() < 0.5:
            more, name = chance.choice(parts)
            node[name if isinstance(name, str) else "x"] = more[name]
    try:
        text = text_of(kind, tree, chance)
    except (ValueError, TypeError, RecursionError):
        return ""  # a value that the format has no text for
    return _read(seed, text, folder, other.name)


@cache
def _tree(name: str) -> tuple[str, Any] | None:
    seed = next(one for one in _texts() if one.name == name)
    found = tree_of(seed)
    return found if found and isinstance(found[1], dict | list) and found[1] else None


def _read(seed: Seed, text: str, folder: Path, other: str) -> str:
    path = folder / f"x{seed.suffix}"
    seed.write(text, path)
    told = outcome(seed, path, folder / "out.json")
    return f"{seed.name} with {other}: {told}" if told else ""


def ranks(chance: Chance, folder: Path) -> str:
    """Traces of a job that miss ranks, have one twice, come from different runs, or whose events were moved."""
    for old in folder.glob("rank*"):
        old.unlink()
    world = chance.choice((1, 2, 4))
    names = [_save(chance, folder, number, world) for number in range(world)]
    if chance.random() < 0.2:
        names.append(chance.choice(names))
    if chance.random() < 0.2 and len(names) > 1:
        names.remove(chance.choice(names))
    words = ["replay", *names, "--json"]
    if chance.random() < 0.5:
        words += chance.choice(ASKED)
    JUDGES.add("replay")
    told = outcome(Seed("ranks", "", "", tuple(words)), folder / "x", folder / "out")
    return f"{words[1:]}: {told}" if told else ""


#: What a replay is asked beside.
ASKED = (
    *(["--comm", "simulated", "--cluster", name] for name in ("dgx-h100", "rail-h200")),
    *(["--set", change] for change in ("parallel.dp=2", "parallel.dp=8")),
    *(["--set", change] for change in ("gpu.flops=2x", "kernels.gemm=0.5x")),
    *(["--ranks", number] for number in ("1", "3", "8", "64")),
    ["--cluster", "dgx-a100", "--set", "nvlink.bandwidth=0.5x"],
)


def _save(chance: Chance, folder: Path, rank: int, world: int) -> str:
    """One rank's trace; now and then of another world, with other steps, late, or with damaged events."""
    unlike = chance.random() < 0.25
    told = synthetic.trace(
        rank if chance.random() < 0.9 else chance.randrange(8),
        chance.choice((1, 2, 8)) if unlike else world,
        steps=chance.choice((1, 2, 3)) if unlike else 2,
        late=chance.choice((0.0, 350.0, 1e7)),
        clock=chance.choice((0.0, 0.0, -2000.0, 1e12)),
    )
    if chance.random() < 0.6:
        for _ in range(chance.choice((1, 2, 5))):
            chance.choice(DAMAGE)(told["traceEvents"], chance)
    path = folder / f"rank{rank}.pt.trace.json"
    path.write_text(json.dumps(told))
    return str(path)


def _shifted(events: list[Event], chance: Chance) -> None:
    by = chance.choice((-5e3, -10.0, 10.0, 5e3, 1e9))
    for event in _some(events, chance):
        event["ts"] += by


def _scaled(events: list[Event], chance: Chance) -> None:
    factor = chance.choice((0.0, 1e-3, 3.0, 1e3))
    for event in _some(events, chance):
        event["dur"] = event.get("dur", 0.0) * factor


def _twice(events: list[Event], chance: Chance) -> None:
    events.extend(copy.deepcopy(_some(events, chance)))


def _lost(events: list[Event], chance: Chance) -> None:
    gone = set(map(id, _some(events, chance)))
    events[:] = [event for event in events if id(event) not in gone]


def _shuffled(events: list[Event], chance: Chance) -> None:
    chance.shuffle(events)


def _one_number(events: list[Event], chance: Chance) -> None:
    """Launches and kernels that all say they belong together."""
    key = chance.choice(("correlation", "External id", "stream", "device"))
    for event in _some(events, chance):
        event.setdefault("args", {})[key] = 7


def _other_lane(events: list[Event], chance: Chance) -> None:
    for event in _some(events, chance):
        event[chance.choice(("pid", "tid"))] = chance.choice((0, 1, 99, "x"))


def _other_name(events: list[Event], chance: Chance) -> None:
    name = chance.choice(events).get("name", "x")
    for event in _some(events, chance):
        event["name"] = name


def _some(events: list[Event], chance: Chance) -> list[Event]:
    """All of a category, one event, or those of a share of the time."""
    if not events:
        return []
    if chance.random() < 0.4:
        kind = chance.choice(events).get("cat")
        return [event for event in events if event.get("cat") == kind]
    if chance.random() < 0.5:
        return [chance.choice(events)]
    first = chance.randrange(len(events))
    return events[first : first + chance.randrange(1, 30)]


DAMAGE: tuple[Callable[[list[Event], Chance], None], ...] = (
    *(_shifted, _scaled, _twice, _lost, _shuffled),
    *(_one_number, _other_lane, _other_name),
)


def commands(chance: Chance, folder: Path) -> str:
    """The options of one command with another."""
    one, two = (list(chance.choice(options.GOOD)) for _ in range(2))
    at = [n for n, word in enumerate(two) if word.startswith("-")]
    taken = two[chance.choice(at) :][:2] if at else two[1:2]
    words = (*one, *taken)
    JUDGES.update({"run", "whatif", "topology", "replay", "calibrate", "convert"})
    told = outcome(Seed("commands", "", "", words), folder / "x", folder / "out")
    return f"{words}: {told}" if told else ""


KINDS = {kind.__name__: kind for kind in (spliced, misread, planted, ranks, commands)}

if __name__ == "__main__":
    from tests.fuzz.others import main

    sys.exit(main(KINDS))
