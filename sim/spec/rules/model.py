"""Rules that tie a layout to its model: layers and stages, heads, positions, what can be sharded."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.sim.spec.sections import Scenario
from prestep.workloads.frameworks import Rule, framework_of
from prestep.workloads.job.adapter import TARGETS, targets_of
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.precision import precision

with lazily():
    from prestep.workloads import schedules

#: Tokens spread over experts alike.
EVEN = "uniform"

#: Frameworks that train vision transformers.
PICTURES = "pytorch-eager", "pytorch-compiled"


def expert_ranks(s: Scenario) -> Iterator[Mistake]:
    p, whole = s.parallel, s.parallel.etp == 1 and s.parallel.tp > 1
    room = p.dp * p.cp * (p.tp if whole else 1)
    if room % p.ep:
        hint = "expert parallelism takes its ranks from dp and cp"
        if not whole and room * p.tp % p.ep == 0:
            hint += "; with parallel.etp = 1 from tp too"
        name = "dp * cp * tp" if whole else "dp * cp"
        expected = f"a divisor of {name} = {room}"
        yield Mistake(s.where, "parallel.ep", str(p.ep), expected, hint)
    if p.etp not in (None, 1, p.tp):
        yield Mistake(s.where, "parallel.etp", str(p.etp), f"1 or tp = {p.tp}")


def experts(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    if s.parallel.imbalance != EVEN and not model.experts:
        found, expected = s.parallel.imbalance, f'"{EVEN}": the model has no experts'
        yield Mistake(s.where, "parallel.imbalance", str(found)[:60], expected)
    key, ep = "parallel.ep", s.parallel.ep
    if ep > 1 and not model.experts:
        yield Mistake(s.where, key, str(ep), "1: the model has no experts")
    elif model.experts % ep:
        expected = f"a divisor of the model's {model.experts} experts"
        yield Mistake(s.where, key, str(ep), expected)


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
            s.where, "model.layers", found, f"at least {needed}, one for each stage"
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


def _pictures(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """A vision transformer's tokens are a picture's; every rank has whole layers."""
    if not model.patch:
        return
    if s.training.seq_len != model.tokens:
        found, expected = str(s.training.seq_len), f"{model.tokens}: a picture's tokens"
        yield Mistake(s.where, "training.seq_len", found, expected)
    for key in ("tp", "cp"):
        if (count := getattr(s.parallel, key)) > 1:
            expected = "1: layers of a vision transformer are not cut"
            yield Mistake(s.where, f"parallel.{key}", str(count), expected)
    if (name := s.training.framework) not in PICTURES:
        expected = f"{' or '.join(PICTURES)}: the model is a vision transformer"
        yield Mistake(s.where, "training.framework", name, expected)


def rings(s: Scenario) -> Iterator[Mistake]:
    """Whole groups of neighbours, of those that share a sequence, exchange heads."""
    cp, ring = s.parallel.cp, s.parallel.ring_degree
    if ring is not None and cp > 1 and cp % ring:
        expected = f"a divisor of cp = {cp}"
        yield Mistake(s.where, "parallel.ring_degree", str(ring), expected)


def _exchanged_heads(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Neighbours that exchange heads have whole ones of queries each; those of keys they may share."""
    p = s.parallel
    ranks = p.cp // p.rings
    if model.kind == "transformer" and ranks > 1 and model.heads % (p.tp * ranks):
        hint = f"each of {ranks} ranks that exchange heads attends with whole ones"
        found = str(model.heads)
        expected = f"a multiple of tp * cp / ring_degree = {p.tp * ranks}"
        yield Mistake(s.where, "model.heads", found, expected, hint)


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
        "training.seq_len training.framework parallel.tp parallel.cp model.kind",
        _pictures,
    ),
    ("parallel.tp parallel.cp parallel.ring_degree model.heads", _exchanged_heads),
    (
        "parallel.tp parallel.etp model.experts model.shared_experts model.moe_ffn",
        _experts_widths,
    ),
    ("parallel.ep parallel.tp parallel.etp parallel.imbalance model.experts", experts),
    (
        "parallel.tp parallel.pp parallel.cp parallel.data_parallel model.kind",
        _only_transformers,
    ),
    ("training training.seq_len model.max_positions", _positions),
]


def adapter_targets(s: Scenario) -> Iterator[Mistake]:
    """Names of projections that mean something, and at least one."""
    known, unknown = targets_of(s.adapter.targets)
    expected = (
        f"some of {', '.join(TARGETS)}, or modules' names such as linear_qkv or o_proj"
    )
    for name in unknown:
        yield Mistake(s.where, "adapter.targets", f'"{name}"', expected)
    if not known and not unknown:
        yield Mistake(s.where, "adapter.targets", "none", expected)


def adapter_dropout(s: Scenario) -> Iterator[Mistake]:
    """A share below one."""
    if s.adapter.dropout >= 1:
        found = str(s.adapter.dropout)
        yield Mistake(s.where, "adapter.dropout", found, "a share below 1")


def adapter_framework(s: Scenario) -> Iterator[Mistake]:
    """A framework whose layers with adapters are simulated."""
    if s.adapter.on and not framework_of(s).adapters:
        hint = (
            "adapters are simulated in Megatron's layers and in PyTorch's own modules"
        )
        expected = (
            'framework = "megatron", "automodel", "pytorch-eager" or "pytorch-compiled"'
        )
        yield Mistake(s.where, "adapter.kind", f'"{s.adapter.kind}"', expected, hint)


def adapter_fp32(s: Scenario) -> Iterator[Mistake]:
    """Adapters in fp32 where a framework's layers run under autocast, in 16 bits."""
    if not s.adapter.fp32:
        return
    if not framework_of(s).fp32_adapters:
        hint = "it is PEFT's way beside PyTorch's own modules"
        expected = 'false, or framework = "pytorch-eager" or "pytorch-compiled"'
        yield Mistake(s.where, "adapter.fp32", "true", expected, hint)
    elif precision(s.training.precision).wide:
        hint = f"{s.training.precision} is in 32 bits itself"
        yield Mistake(s.where, "adapter.fp32", "true", "false", hint)


def adapter_base(s: Scenario) -> Iterator[Mistake]:
    """Weights in four bits: bitsandbytes' linear layers, whole on every rank."""
    found, parallel = f'"{s.adapter.base}"', s.parallel
    if s.adapter.base == "bf16":
        return
    if not framework_of(s).fp32_adapters:
        hint = "bitsandbytes replaces PyTorch's own linear layers"
        expected = '"bf16", or framework = "pytorch-eager"'
        yield Mistake(s.where, "adapter.base", found, expected, hint)
    elif parallel.data_parallel in ("fsdp", "zero2", "zero3") or parallel.tp > 1:
        hint = "parts of weights in four bits are not simulated"
        expected = '"bf16", or whole weights (data_parallel = "ddp", tp = 1)'
        yield Mistake(s.where, "adapter.base", found, expected, hint)
    elif precision(s.training.precision).wide:
        expected = 'training.precision = "bf16" beside it'
        yield Mistake(s.where, "adapter.base", found, expected)


def packed(s: Scenario) -> Iterator[Mistake]:
    """Packed samples where attention can tell their documents apart."""
    if s.training.packed is None:
        return
    found = str(s.training.packed)
    if not framework_of(s).packs:
        hint = "packed samples are simulated in Megatron's layers and in PyTorch's own modules"
        expected = 'framework = "megatron" or "pytorch-eager"'
        yield Mistake(s.where, "training.packed", found, expected, hint)
    elif s.megatron.attention == "unfused":
        hint = "attention that writes all scores does not tell documents apart"
        yield Mistake(s.where, "training.packed", found, "a fused attention", hint)
    if s.training.packed > s.training.seq_len:
        expected = f"at most training.seq_len = {s.training.seq_len}"
        yield Mistake(s.where, "training.packed", found, expected)
