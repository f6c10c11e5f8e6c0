"""Rules on layers with experts, and on parts of a transformer that only Megatron's modules have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.errors import Mistake

if TYPE_CHECKING:
    from sim.spec.rules.layout import ModelShape
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
    if s.training.megatron:
        return
    for key, value in (
        ("etp", p.etp),
        ("imbalance", None if p.imbalance == "uniform" else p.imbalance),
    ):
        if value is not None:
            yield Mistake(
                s.where,
                f"parallel.{key}",
                str(value),
                "nothing",
                'for training.framework = "megatron" only',
            )


def order(s: Scenario, axes: tuple[str, ...]) -> Iterator[Mistake]:
    """Layers with experts lie on a grid of their own, whose pipelines must be the other layers' (`RankGenerator`)."""
    p = s.parallel
    etp = p.tp if p.etp is None else p.etp
    if p.pp == 1 or (p.ep == 1 and etp == p.tp):
        return
    copies = p.dp * p.cp * p.tp // (p.ep * etp)
    inner = axes[: axes.index("pp")]
    dense = math.prod(
        {"tp": p.tp, "cp": p.cp, "dp": p.dp}.get(axis, 1) for axis in inner
    )
    spread = math.prod(
        {"tp": etp, "ep": p.ep, "dp": copies}.get(axis, 1) for axis in inner
    )
    if dense != spread:
        hint = f"{dense} ranks would lie between two stages, and {spread} in layers with experts"
        yield Mistake(
            s.where,
            "parallel.order",
            f'"{"-".join(axes)}"',
            "an order with pp last",
            hint,
        )


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
    if not s.training.megatron:
        if s.parallel.tp > 1 and model.experts:
            hint = 'tensor parallelism of experts is simulated with training.framework = "megatron" only'
            yield Mistake(
                s.where,
                "parallel.tp",
                str(s.parallel.tp),
                "1: the model has experts",
                hint,
            )
    elif model.experts:
        yield from _loads(s, model)
        if s.parallel.tp > 1 and not s.parallel.sequence_parallel:
            hint = "Megatron wants it for experts beside tensor parallelism"
            yield Mistake(s.where, "parallel.sequence_parallel", "false", "true", hint)
        if s.parallel.etp != 1 and model.moe_ffn % s.parallel.tp:
            expected = f"a multiple of tp = {s.parallel.tp}, or parallel.etp = 1"
            yield Mistake(s.where, "model.moe_ffn", str(model.moe_ffn), expected)


def _loads(s: Scenario, model: ModelShape) -> Iterator[Mistake]:
    """The tokens of experts: a known word with a number, or a load for each expert."""
    said = s.parallel.imbalance
    if isinstance(said, str):
        if zipf_exponent(said) is None:
            yield Mistake(
                s.where,
                "parallel.imbalance",
                f'"{said}"',
                'uniform, zipf, "zipf 0.5" or a list of loads',
            )
    elif len(said) != model.experts:
        yield Mistake(
            s.where,
            "parallel.imbalance",
            f"{len(said)} loads",
            f"{model.experts}, one for each expert",
        )
    elif min(said) < 0 or sum(said) <= 0:
        yield Mistake(
            s.where,
            "parallel.imbalance",
            str(list(said))[:60],
            "no load below 0, and some above",
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


# Parts of a transformer that the plain PyTorch modules of workloads/torch/transformer.py do not have.
MEGATRON_ONLY = (
    "kv_lora_rank",
    "shared_experts",
    "dense_layers",
    "router_bias",
    "mtp_layers",
    "window",
    "sinks",
    "embedding_norm",
)


def parts(s: Scenario, model: ModelShape) -> Iterator[Mistake]:
    if s.training.megatron or model.kind != "transformer":
        return
    found = [
        f"{key} = {str(getattr(model, key)).lower()}"
        for key in MEGATRON_ONLY
        if getattr(model, key, 0)
    ]
    found += [
        f'{key} = "{value}"'
        for key, value in (("activation", "relu2"), ("positions", "alibi"))
        if getattr(model, key, "") == value
    ]
    if getattr(model, "moe_every", 1) > 1:
        found.append(f"moe_every = {getattr(model, 'moe_every', 1)}")
    if found:
        hint = "PyTorch's plain modules have no such layers"
        expected = 'training.framework = "megatron"'
        yield Mistake(s.where, "model", ", ".join(found), expected, hint)
