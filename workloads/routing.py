"""How tokens are spread over experts, as a job says it: a law, a preset (routings.toml), or what was recorded.

For captured programs, whose scores nobody computes: which experts each token goes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import gcd, nan
from pathlib import Path

from prestep.sim import schema
from prestep.sim.schema import Number, Table, Text
from prestep.workloads import histogram

FILE = Path(__file__).with_name("routings.toml")
ROW = Table(
    {
        "gini": Number(high=1.0),
        "evidence": Text(("measured", "fitted", "guess")),
        "source": Text(),
    },
    needed=("gini", "evidence", "source"),
)
Loads = tuple[float, ...]  # tokens of every expert over their mean
#: Largest exponent of Zipf's law: above it all tokens go to one expert.
STEEPEST = 10.0
HALVINGS = 60  # of the interval of exponents: 1e-17 of it


@dataclass(frozen=True)
class Routing:
    """How uneven a router is: the Gini coefficient of the tokens of experts, and who measured it."""

    gini: float
    evidence: str
    source: str


@cache
def presets() -> Mapping[str, Routing]:
    """The rows of routings.toml by name.

    Raises
    ------
    InputError
        With every mistake in the file.
    """
    return {name: Routing(**row) for name, row in schema.rows(FILE, ROW).items()}


def expected() -> str:
    """What a routing may be, for messages."""
    words = 'uniform, zipf, "zipf 0.5", "gini 0.2", a file (.csv, .json, .npy), a list of loads'
    return ", or ".join((words, " or ".join(presets())))


def is_known(said: str) -> bool:
    """Whether a text is a law or a preset."""
    return _exponent(said, experts=2, chosen=1) is not None


def layers_of(
    said: str | Sequence[float], experts: int, chosen: int = 1
) -> tuple[Loads, ...]:
    """Loads of every layer with experts, the first first; of all of them alike where there is one.

    Parameters
    ----------
    chosen
        Experts that a token chooses, each once: by a law none has more than all tokens.

    Raises
    ------
    InputError
        If it names a file that cannot be read.
    """
    if not isinstance(said, str):
        return (_relative(said),)
    if histogram.is_file(said):
        return tuple(_relative(layer) for layer in histogram.read(said, experts))
    return (_dealt(experts, _exponent(said, experts, chosen) or 0.0, chosen),)


def _exponent(said: str, experts: int, chosen: int) -> float | None:
    """Exponent of the Zipf's law that a text or a preset says: 0 for uniform, 1 for zipf; None for other words."""
    word, _, text = said.replace(":", " ").strip().lower().partition(" ")
    if said.strip().lower() in presets():
        word, number = "gini", presets()[said.strip().lower()].gini
    else:
        number = _number(text or {"zipf": "1", "uniform": "0"}.get(word, ""))
    if word == "gini" and 0 <= number < 1:
        return exponent_of(number, experts, chosen)
    within = word == "zipf" and 0 <= number < STEEPEST
    return number if within or (word == "uniform" and not text) else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def gini(loads: Sequence[float]) -> float:
    """Gini coefficient of loads: 0 when all are alike, near 1 when one expert gets all."""
    n, total = len(loads), sum(loads)
    ranked = sum((i + 1) * load for i, load in enumerate(sorted(loads)))
    return 2.0 * ranked / (n * total) - (n + 1) / n


@cache
def exponent_of(coefficient: float, experts: int, chosen: int = 1) -> float:
    """Exponent of Zipf's law over so many experts with a Gini coefficient; the steepest where none has it."""
    low, high = 0.0, STEEPEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if gini(_zipf(experts, middle, chosen)) < coefficient:
            low = middle
        else:
            high = middle
    return low


def _zipf(experts: int, exponent: float, chosen: int) -> Loads:
    """The i-th most popular expert has i^-exponent, over the mean; those that every token chooses have all tokens."""
    weights = [(i + 1.0) ** -exponent for i in range(experts)]
    most, full, scale = experts / chosen, 0, experts / sum(weights)
    # What the law gives an expert beyond all tokens, the others share by the same law.
    while full < chosen and scale * weights[full] > most:
        full += 1
        rest = sum(weights[full:])
        scale = (experts - full * most) / rest if rest else 0.0
    return (most,) * full + tuple(scale * weight for weight in weights[full:])


def _dealt(experts: int, exponent: float, chosen: int) -> Loads:
    """Zipf's law, dealt to experts by a fixed shuffle: popularity has nothing to do with an expert's rank.

    Multiples of a stride that has no divisor in common with their number. The busiest rank is within 6 % of the
    median of 101 random deals, for 128 and 256 experts on 8 and 32 ranks.
    """
    loads = _zipf(experts, exponent, chosen)
    strides = range(max(1, round(0.618 * experts)), 2 * experts + 2)
    stride = next(n for n in strides if gcd(n, experts) == 1)
    return tuple(loads[i * stride % experts] for i in range(experts))


def _relative(counts: Sequence[float]) -> Loads:
    """Over their mean."""
    mean = sum(counts) / len(counts)
    return tuple(count / mean for count in counts)


Choices = tuple[tuple[int, ...], ...]


@cache
def choices(rows: int, count: int, experts: int, busiest: float = 1.0) -> Choices:
    """`count` different experts for each of `rows` tokens.

    Expert 0 takes `busiest` times its share of all choices, at most one of every token; the others take turns. With 1,
    all experts are chosen equally often.
    """
    if count >= experts:
        return (tuple(range(experts)),) * rows
    share = min(Fraction(1), Fraction(busiest) * count / experts)
    return tuple(_choices_of(row, count, experts, share) for row in range(rows))


def _choices_of(row: int, count: int, experts: int, share: Fraction) -> tuple[int, ...]:
    before = int(row * share)
    first = int((row + 1) * share) - before
    turn = row * count - before
    others = (1 + (turn + i) % (experts - 1) for i in range(count - first))
    return *(0,) * first, *others


def assumption(busiest: float) -> str:
    """What is assumed, in words."""
    if busiest == 1.0:
        return "experts balanced"
    return f"experts: the first has {busiest:g} times its share"
