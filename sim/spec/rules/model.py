"""Rules that tie a layout to its model: layers and stages, heads, positions, what can be sharded."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.sim.extras import lazily
from prestep.sim.spec.sections import Scenario
from prestep.workloads.frameworks import framework_of, rule
from prestep.workloads.job.adapter import TARGETS, targets_of
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.precision import precision

with lazily():
    from prestep.workloads import schedules

#: Tokens spread over experts alike.
EVEN = "uniform"

#: Frameworks that train vision transformers.
PICTURES = "pytorch-eager", "pytorch-compiled"


@rule("parallel parallel.dp parallel.cp parallel.tp parallel.ep parallel.etp")
def expert_ranks(s: Scenario) -> Iterator[Mistake]:
    """Ranks that experts are spread over."""
    p, whole = s.parallel, s.parallel.etp == 1 and s.parallel.tp > 1
    room = p.dp * p.cp * (p.tp if whole else 1)
    if room % p.ep:
        hint = "expert parallelism takes its ranks from dp and cp"
        if not whole and room * p.tp % p.ep == 0:
            hint += "; with parallel.etp = 1 from tp too"
        name = "dp * cp * tp" if whole else "dp * cp"
        yield s.mistake("parallel.ep", f"a divisor of {name} = {room}", hint)
    if p.etp not in (None, 1, p.tp):
        yield s.mistake("parallel.etp", f"1 or tp = {p.tp}")


@rule("parallel.ep parallel.tp parallel.etp parallel.imbalance model.experts")
def experts(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Experts that there are, in equal numbers on ranks."""
    if s.parallel.imbalance != EVEN and not model.experts:
        expected, found = f'"{EVEN}": the model has no experts', s.parallel.imbalance
        yield s.mistake("parallel.imbalance", expected, found=str(found)[:60])
    ep = s.parallel.ep
    if ep > 1 and not model.experts:
        yield s.mistake("parallel.ep", "1: the model has no experts")
    elif model.experts % ep:
        expected = f"a divisor of the model's {model.experts} experts"
        yield s.mistake("parallel.ep", expected)


@rule("parallel.pp parallel.vpp parallel.schedule training.framework model.layers")
def _layers(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """A layer or more for each stage, as many for all unless they may be uneven."""
    stages, key = s.parallel.pp * s.parallel.vpp, "model.layers"
    if model.kind != "transformer" or stages == 1 or s.megatron.pipeline_layout:
        return  # a cut of one's own has its own rule
    ends = framework_of(s).layers_beside(s)
    counted, beside = model.layers + ends, f" and {ends} for embedding and loss"
    found = f"{model.layers}{beside if ends else ''}"
    least = s.parallel.pp * schedules.chunks_of(s.parallel.schedule, s.parallel.vpp)
    if s.parallel.pp > 1 and counted < max(stages, least):
        needed = f"pp * vpp = {stages}" if least <= stages else str(least)
        yield s.mistake(key, f"at least {needed}, one for each stage", found=found)
    elif counted % stages and not s.parallel.uneven_stages:
        hint = "or parallel.uneven_stages = true"
        yield s.mistake(key, f"a multiple of pp * vpp = {stages}", hint, found)


@rule("parallel.tp model.heads model.kv_heads model.ffn")
def _tensor(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Whole heads and equal parts of a feed-forward layer for each tensor-parallel rank."""
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
            yield s.mistake(f"model.{key}", expected, found=count)


@rule("training.seq_len training.framework parallel.tp parallel.cp model.kind")
def _pictures(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """A vision transformer's tokens are a picture's; every rank has whole layers."""
    if not model.patch:
        return
    if s.training.seq_len != model.tokens:
        yield s.mistake("training.seq_len", f"{model.tokens}: a picture's tokens")
    expected = "1: layers of a vision transformer are not cut"
    yield from s.refused(("parallel.tp", "parallel.cp"), expected)
    if s.training.framework not in PICTURES:
        expected = f"{' or '.join(PICTURES)}: the model is a vision transformer"
        yield s.mistake("training.framework", expected)


@rule("parallel parallel.cp parallel.ring_degree")
def rings(s: Scenario) -> Iterator[Mistake]:
    """Whole groups of neighbours, of those that share a sequence, exchange heads."""
    cp, ring = s.parallel.cp, s.parallel.ring_degree
    if ring is not None and cp > 1 and cp % ring:
        yield s.mistake("parallel.ring_degree", f"a divisor of cp = {cp}")


@rule("parallel.tp parallel.cp parallel.ring_degree model.heads")
def _exchanged_heads(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Neighbours that exchange heads have whole ones of queries each; those of keys they may share."""
    p = s.parallel
    ranks = p.cp // p.rings
    if model.kind == "transformer" and ranks > 1 and model.heads % (p.tp * ranks):
        hint = f"each of {ranks} ranks that exchange heads attends with whole ones"
        expected = f"a multiple of tp * cp / ring_degree = {p.tp * ranks}"
        yield s.mistake("model.heads", expected, hint, model.heads)


@rule("parallel.tp parallel.etp model.experts model.shared_experts model.moe_ffn")
def _experts_widths(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Tensor parallelism cuts every expert, unless each rank of it has whole ones; shared experts it always cuts."""
    tp, width = s.parallel.tp, model.moe_ffn
    if not model.experts or model.kind != "transformer":
        return
    if s.parallel.etp != 1 and width % tp:
        expected = f"a multiple of tp = {tp}, or parallel.etp = 1"
        yield s.mistake("model.moe_ffn", expected, found=width)
    elif width * model.shared_experts % tp:
        found = f"{width} x {model.shared_experts} shared experts"
        yield s.mistake("model.moe_ffn", f"a multiple of tp = {tp}", found=found)


@rule("parallel.tp parallel.pp parallel.cp parallel.data_parallel model.kind")
def _only_transformers(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Other models are not cut."""
    if model.kind == "transformer":
        return
    axes = ("parallel.tp", "parallel.pp", "parallel.cp")
    expected = f"1: only a transformer is split so, not a {model.kind}"
    yield from s.refused(axes, expected)
    sharded = s.parallel.data_parallel in framework_of(s).sharded
    if sharded and s.parallel.dp * s.parallel.cp > 1:
        hint = f"only a transformer is sharded by blocks, not a {model.kind}"
        expected = "none, ddp or ddp-no-overlap"
        yield s.mistake("parallel.data_parallel", expected, hint)


@rule("training.framework pytorch.attention model.capped_scores model.capped_logits")
def _capped(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Caps of scores, which one kernel of attention has, and of logits."""
    if not (model.capped_scores or model.capped_logits):
        return
    if s.training.framework not in PICTURES:
        hint = "Megatron's layers cap neither scores nor logits"
        yield s.mistake("training.framework", " or ".join(PICTURES), hint)
    elif model.capped_scores and s.pytorch.attention != "flash2":
        hint = "no other fused kernel caps scores"
        yield s.mistake("pytorch.attention", '"flash2" with capped_scores', hint)
    elif model.capped_scores and s.pytorch.modules != "plain":
        hint = "those write capped scores out"
        yield s.mistake("pytorch.modules", "nothing with capped_scores", hint)


@rule("training.seq_len model.chunked model.window")
def _chunks(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """A sequence of one chunk, in which attention in chunks sees what a window does."""
    if model.chunked and s.training.seq_len > model.window:
        hint = "attention over several chunks is not simulated"
        yield s.mistake("training.seq_len", f"at most window = {model.window}", hint)


@rule("training training.seq_len model.max_positions")
def _positions(s: Scenario, model: ModelSpec) -> Iterator[Mistake]:
    """Positions that a table has."""
    if 0 < model.max_positions < s.training.seq_len:
        expected = f"at most max_positions = {model.max_positions}"
        hint = "positions are learned, not rotary"
        yield s.mistake("training.seq_len", expected, hint)


RULES = [
    *(_layers, _tensor, _pictures, _exchanged_heads, _experts_widths, experts),
    *(_only_transformers, _positions, _chunks, _capped),
]


@rule("adapter adapter.targets")
def adapter_targets(s: Scenario) -> Iterator[Mistake]:
    """Names of projections that mean something, and at least one."""
    known, unknown = targets_of(s.adapter.targets)
    key, expected = (
        "adapter.targets",
        f"some of {', '.join(TARGETS)}, or modules' names such as linear_qkv or o_proj",
    )
    for name in unknown:
        yield s.mistake(key, expected, found=f'"{name}"')
    if not known and not unknown:
        yield s.mistake(key, expected, found="none")


@rule("adapter adapter.dropout")
def adapter_dropout(s: Scenario) -> Iterator[Mistake]:
    """A share below one."""
    if s.adapter.dropout >= 1:
        yield s.mistake("adapter.dropout", "a share below 1")


@rule("adapter training training.framework")
def adapter_framework(s: Scenario) -> Iterator[Mistake]:
    """A framework whose layers with adapters are simulated."""
    if s.adapter.on and not framework_of(s).adapters:
        hint = (
            "adapters are simulated in Megatron's layers and in PyTorch's own modules"
        )
        expected = (
            'framework = "megatron", "automodel", "pytorch-eager" or "pytorch-compiled"'
        )
        yield s.mistake("adapter.kind", expected, hint)


@rule("adapter training training.framework training.precision")
def adapter_fp32(s: Scenario) -> Iterator[Mistake]:
    """Adapters in fp32 where a framework's layers run under autocast, in 16 bits."""
    if not s.adapter.fp32:
        return
    if not framework_of(s).fp32_adapters:
        hint = "it is PEFT's way beside PyTorch's own modules"
        expected = 'false, or framework = "pytorch-eager" or "pytorch-compiled"'
        yield s.mistake("adapter.fp32", expected, hint)
    elif precision(s.training.precision).wide:
        hint = f"{s.training.precision} is in 32 bits itself"
        yield s.mistake("adapter.fp32", "false", hint)


@rule(
    "adapter training training.framework training.precision parallel parallel.tp parallel.data_parallel"
)
def adapter_base(s: Scenario) -> Iterator[Mistake]:
    """Weights in four bits: bitsandbytes' linear layers, whole on every rank."""
    if s.adapter.base == "bf16":
        return
    sharded = s.parallel.data_parallel in ("fsdp", "zero2", "zero3")
    if not framework_of(s).fp32_adapters:
        hint = "bitsandbytes replaces PyTorch's own linear layers"
        expected = '"bf16", or framework = "pytorch-eager"'
        yield s.mistake("adapter.base", expected, hint)
    elif sharded or s.parallel.tp > 1:
        hint = "parts of weights in four bits are not simulated"
        expected = '"bf16", or whole weights (data_parallel = "ddp", tp = 1)'
        yield s.mistake("adapter.base", expected, hint)
    elif precision(s.training.precision).wide:
        yield s.mistake("adapter.base", 'training.precision = "bf16" beside it')


@rule("training training.packed training.seq_len training.framework megatron")
def packed(s: Scenario) -> Iterator[Mistake]:
    """Packed samples where attention can tell their documents apart."""
    if s.training.packed is None:
        return
    if not framework_of(s).packs:
        hint = "packed samples are simulated in Megatron's layers and in PyTorch's own modules"
        expected = 'framework = "megatron" or "pytorch-eager"'
        yield s.mistake("training.packed", expected, hint)
    elif s.megatron.attention == "unfused":
        hint = "attention that writes all scores does not tell documents apart"
        yield s.mistake("training.packed", "a fused attention", hint)
    if s.training.packed > s.training.seq_len:
        expected = f"at most training.seq_len = {s.training.seq_len}"
        yield s.mistake("training.packed", expected)
