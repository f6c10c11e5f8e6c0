"""Rows of `prestep collective --op dispatch` and `combine`: exchanges of experts' tokens by tokens of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from prestep.sim.collectives import backends
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake
from prestep.sim.exchanges import collective as collectives
from prestep.sim.exchanges import experts
from prestep.sim.exchanges.bound import Bounds
from prestep.sim.exchanges.experts import Exchange
from prestep.sim.exchanges.table import short
from prestep.sim.units import aligned, format_bandwidth, format_bytes, format_duration
from prestep.topologies import load_cluster

TOKENS = "128,4096"
SHAPE = ("library", "tokens", "hidden", "topk", "experts", "dtype", "sms")
#: Options of collectives, and what they are where nobody says them.
UNSAID = {
    "min_bytes": ("8",),
    "max_bytes": ("4G",),
    "backend": (None, "nccl"),
    "constants": (None,),
    "counts": (None,),
    "explain": (False,),
    "algo": (None,),
    "proto": (None,),
    "channels": (None,),
}
HEAD = ("tokens", "copies", "time", "sent", "bound by")


@dataclass(frozen=True)
class Row:
    """One exchange; `rate` counts the bytes that a rank sends, those to itself or its own host among them."""

    exchange: Exchange
    plan: Plan
    time: float
    bottleneck: str

    @property
    def rate(self) -> float:
        return self.plan.size / self.time

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.exchange),
            "ranks": len(self.plan.ranks),
            "bytes": self.plan.size,
            "time": self.time,
            "rate": self.rate,
            "latency": self.plan.latency,
            "bottleneck": self.bottleneck,
            "evidence": self.plan.evidence,
        }


@dataclass(frozen=True)
class Exchanges:
    """Exchanges of one library, by tokens of a rank."""

    rows: Sequence[Row]

    def to_json(self) -> Any:
        return [row.to_json() for row in self.rows]

    def render(self) -> str:
        e, plan = self.rows[0].exchange, self.rows[0].plan
        shape = f"{e.hidden} elements, {e.topk} of {e.experts} experts"
        title = f"# {e.op} by {e.library} over {len(plan.ranks)} GPUs: {shape}"
        cells = [HEAD, *(_cells(row) for row in self.rows)]
        end = f"evidence: {', '.join(sorted({row.plan.evidence for row in self.rows}))}"
        return "\n".join([title, *aligned(cells, left=(len(HEAD) - 1,)), end])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.exchange.tokens),
        format_bytes(row.plan.size),
        format_duration(row.time),
        format_bandwidth(row.rate),
        short(row.bottleneck),
    )


def collective(
    cluster: str,
    op: str,
    exchange: Mapping[str, Any] | None = None,
    **choices: Any,
) -> Exchanges | collectives.Sweep | collectives.Creation:
    """The rows that were asked for: exchanges of experts' tokens, or what `prestep.sim.exchanges.collective` has.

    Parameters
    ----------
    exchange : mapping, optional
        What is exchanged (`SHAPE`), where `op` is "dispatch" or "combine".
    **choices
        Of `prestep.sim.exchanges.collective.collective`; of an exchange hosts, ranks, gpus and overrides.

    Raises
    ------
    InputError
        For options that say nothing of the operation, and whatever is wrong with the others.
    """
    shape = {key: value for key, value in (exchange or {}).items() if value is not None}
    if op not in backends.EXCHANGES:
        _nothing(shape, f"an option of --op {' and '.join(backends.EXCHANGES)}")
        return collectives.collective(cluster, op, **choices)
    _nothing(
        {
            key: value
            for key, value in choices.items()
            if value not in UNSAID.get(key, (value,))
        },
        f"an option of collectives, not of --op {op}",
    )
    nccl, links, numa = collectives.settings_of(choices.get("overrides", ()))
    fabric = load_cluster(cluster, choices.get("hosts"), links, "--set")
    fabric = collectives.with_processes(fabric, numa)
    gpus, ranks = choices.get("gpus"), choices.get("ranks")
    return _rows(op, shape, _group(gpus, ranks, fabric), fabric, nccl)


def _group(gpus: str | None, ranks: int | None, fabric: Any) -> tuple[str, ...]:
    """The GPUs of a list, or the first `ranks` of the cluster, or all."""
    if ranks and gpus:
        both = f"{ranks} beside --gpus {gpus}"
        raise InputError.of(experts.WHERE, "--ranks", both, "one of the two")
    if ranks and ranks > len(fabric.gpus):
        expected = f"at most the {len(fabric.gpus)} GPUs of {fabric.name}"
        raise InputError.of(experts.WHERE, "--ranks", str(ranks), expected)
    group: Sequence[str] = fabric.gpus[: ranks or len(fabric.gpus)]
    return collectives.chosen_gpus(gpus, fabric) if gpus else tuple(group)


def _nothing(options: Mapping[str, Any], what: str) -> None:
    """Raises InputError with options that say nothing here."""
    wrong = [
        Mistake(
            experts.WHERE,
            f"--{key.replace('_', '-')}",
            str(value),
            f"nothing: it is {what}",
        )
        for key, value in options.items()
    ]
    if wrong:
        raise InputError(wrong)


def _rows(
    op: str,
    shape: Mapping[str, Any],
    ranks: tuple[str, ...],
    fabric: Any,
    settings: Nccl,
) -> Exchanges:
    """Rows of an exchange between `ranks`, by the tokens that `shape` lists."""
    others = {"library": "deepep", **shape}
    counts = _counts(str(others.pop("tokens", TOKENS)))
    bounds = Bounds(fabric)
    made = []
    for tokens in counts:
        exchange = Exchange(op, tokens=tokens, **others)
        planned = partial(experts.plan, exchange, ranks, settings=settings)
        plan = planned(fabric)
        time = plan.duration(fabric.links.bandwidth)
        made.append(Row(exchange, plan, time, bounds.of(plan, planned)))
    return Exchanges(made)


def _counts(text: str) -> list[int]:
    """Numbers of tokens of a list such as "128,4096"."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        expected = "tokens of a rank, from 1 on: 128 or 128,4096"
        raise InputError.of(experts.WHERE, "--tokens", f'"{text}"', expected)
    return [int(part) for part in parts]
