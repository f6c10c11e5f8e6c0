"""Rules on layers with experts."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.spec.sections import Scenario
from prestep.workloads.models.model import ModelSpec

#: Tokens spread over experts alike.
EVEN = "uniform"


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


def experts(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    if s.parallel.imbalance != EVEN and not model.experts:
        yield Mistake(
            s.where,
            "parallel.imbalance",
            str(s.parallel.imbalance)[:60],
            f'"{EVEN}": the model has no experts',
        )
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
