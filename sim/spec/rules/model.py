"""Rules that tie a layout to its model: layers and stages, heads, positions, what can be sharded."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.sim.spec.sections import Scenario
from prestep.workloads.frameworks import Rule, framework_of
from prestep.workloads.models.model import ModelSpec

with lazily():
    from prestep.workloads import schedules

#: Tokens spread over experts alike.
EVEN = "uniform"


def expert_ranks(s: Scenario) -> Iterator[Mistake]:
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


def _layers(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    stages = s.parallel.pp * s.parallel.vpp
    if model.kind != "transformer" or stages == 1 or s.megatron.pipeline_layout:
        return  # a cut of one's own has its own rule
    uneven = s.parallel.uneven_stages
    ends = framework_of(s).layers_beside(s)
    counted = model.layers + ends
    found = (
        f"{model.layers} and {ends} for embedding and loss"
        if ends
        else str(model.layers)
    )
    least = s.parallel.pp * schedules.chunks_of(s.parallel.schedule, s.parallel.vpp)
    if s.parallel.pp > 1 and counted < max(stages, least):
        needed = f"pp * vpp = {stages}" if least <= stages else str(least)
        yield Mistake(
            s.where,
            "model.layers",
            found,
            f"at least {needed}, one for each stage",
        )
    elif counted % stages and not uneven:
        hint = "or parallel.uneven_stages = true"
        yield Mistake(
            s.where, "model.layers", found, f"a multiple of pp * vpp = {stages}", hint
        )


def _tensor(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    if model.kind != "transformer":
        return
    tp, shares = s.parallel.tp, framework_of(s).shares_heads
    for key in ("heads", "kv_heads", "ffn"):
        count = getattr(model, key)
        # Ranks that are more than heads of keys and values share each of them.
        shared = key == "kv_heads" and shares and tp % count == 0
        if count % tp and not shared:
            divisor = " or a divisor" if key == "kv_heads" and shares else ""
            expected = f"a multiple{divisor} of tp = {tp}"
            yield Mistake(s.where, f"model.{key}", str(count), expected)


def _experts_widths(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Tensor parallelism cuts every expert, unless each rank of it has whole ones; shared experts it always cuts."""
    tp, width = s.parallel.tp, model.moe_ffn
    if not model.experts or model.kind != "transformer":
        return
    if s.parallel.etp != 1 and width % tp:
        expected = f"a multiple of tp = {tp}, or parallel.etp = 1"
        yield Mistake(s.where, "model.moe_ffn", str(width), expected)
    elif width * model.shared_experts % tp:
        found = f"{width} x {model.shared_experts} shared experts"
        yield Mistake(s.where, "model.moe_ffn", found, f"a multiple of tp = {tp}")


def _only_transformers(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    for key in ("tp", "pp", "cp"):
        degree = getattr(s.parallel, key)
        if degree > 1 and model.kind != "transformer":
            yield Mistake(
                s.where,
                f"parallel.{key}",
                str(degree),
                f"1: only a transformer is split so, not a {model.kind}",
            )
    way = s.parallel.data_parallel
    sharded = way in framework_of(s).sharded
    if sharded and s.parallel.dp * s.parallel.cp > 1 and model.kind != "transformer":
        hint = f"only a transformer is sharded by blocks, not a {model.kind}"
        yield Mistake(
            s.where,
            "parallel.data_parallel",
            f'"{way}"',
            "none, ddp or ddp-no-overlap",
            hint,
        )


def _positions(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    if 0 < model.max_positions < s.training.seq_len:
        expected = f"at most max_positions = {model.max_positions}"
        yield Mistake(
            s.where,
            "training.seq_len",
            str(s.training.seq_len),
            expected,
            "positions are learned, not rotary",
        )


# Keys a rule rests on -> the rule, as in `prestep.sim.spec.rules.layout`.
RULES: list[Rule] = [
    (
        "parallel.pp parallel.vpp parallel.schedule training.framework model.layers",
        _layers,
    ),
    ("parallel.tp model.heads model.kv_heads model.ffn", _tensor),
    (
        "parallel.tp parallel.etp model.experts model.shared_experts model.moe_ffn",
        _experts_widths,
    ),
    (
        "parallel.ep parallel.tp parallel.etp parallel.imbalance model.experts",
        experts,
    ),
    (
        "parallel.tp parallel.pp parallel.cp parallel.data_parallel model.kind",
        _only_transformers,
    ),
    ("training training.seq_len model.max_positions", _positions),
]
