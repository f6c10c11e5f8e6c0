"""Rules on layers with experts."""

from __future__ import annotations

from collections.abc import Iterator

from sim.errors import Mistake
from sim.spec.rules.shape import ModelShape
from sim.spec.sections import Scenario


def ranks(s: Scenario) -> Iterator[Mistake]:
    p, whole = s.parallel, s.parallel.etp == 1 and s.parallel.tp > 1
    room = p.dp * p.cp * (p.tp if whole else 1)
    if room % p.ep:
        hint = "expert parallelism takes its ranks from dp and cp"
        if not whole and room * p.tp % p.ep == 0:
            hint += "; with parallel.etp = 1 from tp too"
        name = "dp * cp * tp" if whole else "dp * cp"
        yield Mistake(
            s.where, "parallel.ep", str(p.ep), f"a divisor of {name} = {room}", hint
        )
    if p.etp not in (None, 1, p.tp):
        yield Mistake(s.where, "parallel.etp", str(p.etp), f"1 or tp = {p.tp}")


def experts(s: Scenario, model: ModelShape) -> Iterator[Mistake]:
    if s.parallel.ep > 1 and not model.experts:
        yield Mistake(
            s.where, "parallel.ep", str(s.parallel.ep), "1: the model has no experts"
        )
    elif model.experts % s.parallel.ep:
        yield Mistake(
            s.where,
            "parallel.ep",
            str(s.parallel.ep),
            f"a divisor of the model's {model.experts} experts",
        )


def zipf_exponent(said: str) -> float | None:
    """Exponent of Zipf's law: 0 for uniform, 1 for zipf where none is said; None for other words."""
    word, _, number = said.replace(":", " ").strip().lower().partition(" ")
    if word == "uniform" and not number:
        return 0.0
    try:
        value = float(number or 1.0)
    except ValueError:
        return None
    return value if word == "zipf" and 0 <= value < 10 else None
