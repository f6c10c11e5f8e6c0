"""Rules that tie keys of a scenario together: the batch, the schedule, the model and the number of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from prestep.sim.errors import Mistake
from prestep.sim.spec.rules import model as layout_model
from prestep.sim.spec.sections import Scenario
from prestep.topologies import larger_cluster
from prestep.workloads.frameworks import Rule, framework_of, rule
from prestep.workloads.job.layout import stated_microbatches
from prestep.workloads.models.model import ModelSpec

ONE_STAGE_SCHEDULES = ("gpipe", "1f1b")
V_SCHEDULES = ("zbv", "v-half", "v-min")
AXES = ("tp", "cp", "ep", "pp", "dp")
VPP_SCHEDULES = (
    "interleaved",
    "zero-bubble",
    "zbv",
    "v-half",
    "v-min",
    "dualpipe",
)  # named in the advice; others may do too


def check_scenario(scenario: Scenario, skip: Collection[str] = ()) -> list[Mistake]:
    """Mistakes visible in the scenario alone; rules on keys in `skip` (already wrong) are left out."""
    rules = [*_RULES, *_framework_rules(scenario, skip)]
    _, other = scenario.other_run or ("", None)
    if other and other.OWN_LAYOUT:
        # Replicas and microbatches follow from the section, which checks the layout that it makes.
        rules = [each for each in rules if not _of_batches(each.keys)]
    return _apply(rules, skip, scenario)


def _of_batches(keys: str) -> bool:
    """Whether a rule on these keys is about replicas and microbatches."""
    return any(key.startswith(("parallel", "training")) for key in keys.split())


def check_layout(
    scenario: Scenario,
    gpus: int | None = None,
    model: ModelSpec | None = None,
    skip: Collection[str] = (),
) -> list[Mistake]:
    """Mistakes against a cluster of `gpus` GPUs and a model; what is None is not checked."""
    mistakes: list[Mistake] = []
    if gpus is not None:
        mistakes += _apply(_GPU_RULES, skip, scenario, gpus)
    if model is not None:
        rules = [*layout_model.RULES, *_framework_rules(scenario, skip, of_model=True)]
        mistakes += _apply(rules, skip, scenario, model)
    return mistakes


def _framework_rules(
    scenario: Scenario, skip: Collection[str], of_model: bool = False
) -> tuple[Rule, ...]:
    """Rules of the framework; none where it is not known which."""
    if {"training", "training.framework"} & set(skip):
        return ()
    framework = framework_of(scenario)
    return framework.model_rules if of_model else framework.rules


def _apply(
    rules: Sequence[Rule], skip: Collection[str], *args: object
) -> list[Mistake]:
    return [
        mistake
        for each in rules
        if not set(each.keys.split()) & set(skip)
        for mistake in each.check(*args)
    ]


@rule("cluster cluster.name cluster.file")
def _one_cluster(s: Scenario) -> Iterator[Mistake]:
    """A cluster by its name or as a file."""
    if (s.cluster.name is None) == (s.cluster.file is None):
        found = "neither" if s.cluster.name is None else "both"
        hint = "`prestep list clusters` shows the names"
        yield s.mistake("cluster", "name or file", hint, found)


@rule("model model.name model.file model.kind")
def _one_model(s: Scenario) -> Iterator[Mistake]:
    """A model by its name, as a file or by its sizes."""
    stated = [
        key for key in ("name", "file", "kind") if getattr(s.model, key) is not None
    ]
    if len(stated) != 1:
        found = " and ".join(stated) or "none of them"
        hint = "`prestep list models` shows the names"
        yield s.mistake("model", "one of name, file or kind", hint, found)


MOST_LAYERS = 10_000  # ten times what anybody has trained
# Layers times microbatches of a step, where layers that are alike are simulated once: hundreds of times what any known
# run has.
MOST_BLOCKS = 2_000_000
# Microbatches of a rank, each of which is simulated, where layers are folded: a quarter of a minute without a pipeline;
# and those of all stages together. Known runs have at most 512, and 49,152.
MOST_RUNS = 3_000
MOST_PASSES = 60_000
# ... and where every layer of every microbatch is: some tens of operations each, half a minute in all.
MOST_BLOCKS_BY_ONE = 10_000


def runs_of_layers(s: Scenario) -> int:
    """How often a step runs every layer."""
    whole = max(s.training.global_batch or 0, 1) // max(
        1, s.training.micro_batch * s.parallel.dp
    )
    said = s.training.microbatches or s.parallel.microbatches or 1
    return max(1, whole, said * (s.training.grad_accumulation or 1))


def countable(s: Scenario, layers: int) -> Iterator[Mistake]:
    """A step that could not be simulated in hours is refused before it is tried."""
    runs = runs_of_layers(s)
    if layers > MOST_LAYERS:
        yield s.mistake("model.layers", f"at most {MOST_LAYERS}", found=layers)
        return
    folds = framework_of(s).folds_layers
    most = MOST_BLOCKS if folds else MOST_BLOCKS_BY_ONE
    stages = s.parallel.pp * s.parallel.vpp
    if folds and (runs > MOST_RUNS or stages * runs > MOST_PASSES):
        found = f"{runs} microbatches of {stages} stages"
        expected = f"at most {MOST_RUNS}, and {MOST_PASSES} by stages"
        yield s.mistake("training.microbatches", expected, _FEWER, found)
    elif layers * runs > most:
        found, expected = (
            f"{layers} layers and {runs} microbatches",
            f"a product of at most {most}",
        )
        hint = "" if folds else _FEWER
        yield s.mistake("model.layers, training", expected, hint, found)


_FEWER = (
    "every microbatch is simulated; each beyond the first few adds the same time, "
    "so predict two smaller numbers and draw the line"
)


_BATCH = (
    "training parallel parallel.dp parallel.pp training.global_batch training.micro_batch "
    "training.grad_accumulation training.microbatches parallel.microbatches"
)


@rule(_BATCH)
def _global_batch(s: Scenario) -> Iterator[Mistake]:
    """A batch that the replicas' samples make."""
    whole, samples = s.training.global_batch, s.training.micro_batch * s.parallel.dp
    if whole is None:
        return
    if whole % samples:
        below, above = (whole // samples * samples, (whole // samples + 1) * samples)
        near = f"{below} or {above} would do" if below else f"{above} would do"
        expected = f"a multiple of micro_batch * dp = {s.training.micro_batch} * {s.parallel.dp}"
        yield s.mistake("training.global_batch", expected, near)
        return
    yield from _steps_of_batch(s, whole // samples)


def _steps_of_batch(s: Scenario, steps: int) -> Iterator[Mistake]:
    """Whether the stated microbatches make `steps` of them, as the global batch wants."""
    total, runs = stated_microbatches(s), s.training.grad_accumulation or 1
    if total is not None and total != steps:
        micro_batch, dp = s.training.micro_batch, s.parallel.dp
        product = f"{micro_batch} * {dp} * {total}"
        batch = total * micro_batch * dp
        expected = f"{batch} (micro_batch * dp * microbatches = {product})"
        yield s.mistake("training.global_batch", expected, "leave one of the two out")
    elif s.parallel.pp > 1 and steps % runs:
        expected = f"a divisor of {steps} microbatches"
        yield s.mistake("training.grad_accumulation", expected, found=runs)


@rule(_BATCH)
def _microbatches(s: Scenario) -> Iterator[Mistake]:
    """Microbatches that are said once, and in a pipeline at all."""
    ours, theirs = s.training.microbatches, s.parallel.microbatches
    if ours is not None and theirs is not None and ours != theirs:
        expected = f"{ours}, as in training.microbatches"
        yield s.mistake("parallel.microbatches", expected, "say it once")
    per_run, runs, pp = ours or theirs, s.training.grad_accumulation, s.parallel.pp
    if pp == 1 and per_run is not None and runs is not None and per_run != runs:
        hint = "without a pipeline both mean the same; say it once"
        expected = f"{runs}, as in training.grad_accumulation"
        yield s.mistake("training.microbatches", expected, hint, per_run)
    if pp > 1 and per_run is None and s.training.global_batch is None:
        hint = f"a pipeline of {pp} wants at least {pp}"
        expected, found = "microbatches or global_batch", "nothing"
        yield s.mistake("training.microbatches", expected, hint, found)


@rule("parallel parallel.schedule parallel.vpp parallel.pp")
def _schedule(s: Scenario) -> Iterator[Mistake]:
    """A schedule that takes so many stages a rank."""
    parallel = s.parallel
    if parallel.vpp > 1 and parallel.pp == 1:
        yield s.mistake("parallel.vpp", "1 when pp = 1")
    elif parallel.vpp > 1 and parallel.schedule in ONE_STAGE_SCHEDULES:
        hint = f'or one stage per rank: vpp = 1 with "{parallel.schedule}"'
        yield s.mistake("parallel.schedule", f"one of {', '.join(VPP_SCHEDULES)}", hint)
    v_shaped = parallel.schedule in V_SCHEDULES
    if v_shaped and parallel.pp > 1 and parallel.vpp != 2:
        yield s.mistake("parallel.vpp", "2: the V shape has two stages per rank")


@rule("parallel parallel.order")
def _order(s: Scenario) -> Iterator[Mistake]:
    """An order of axes that names each once, and all that have several ranks."""
    if s.parallel.order is None:
        return
    axes = s.parallel.order.lower().split("-")
    missing = [
        axis for axis in AXES if getattr(s.parallel, axis) > 1 and axis not in axes
    ]
    if sorted(set(axes)) != sorted(axes) or set(axes) - set(AXES):
        expected = f"some of {', '.join(AXES)}, each once, with dashes between"
        yield s.mistake("parallel.order", expected, f'such as "{"-".join(AXES)}"')
    elif missing:
        expected = f"{', '.join(missing)} in it too: more than one rank"
        yield s.mistake("parallel.order", expected)


@rule(
    "training parallel training.seq_len parallel.cp parallel.tp parallel.sequence_parallel"
)
def _sequence(s: Scenario) -> Iterator[Mistake]:
    """A sequence in equal parts."""
    parts = s.parallel.cp * (s.parallel.tp if s.parallel.sequence_parallel else 1)
    if s.training.seq_len % parts:
        ranks = "cp * tp" if s.parallel.sequence_parallel else "cp"
        yield s.mistake("training.seq_len", f"a multiple of {ranks} = {parts}")


@rule(
    "nccl nccl.min_channels nccl.max_channels nccl.min_p2p_nchannels nccl.max_p2p_nchannels"
)
def _channels(s: Scenario) -> Iterator[Mistake]:
    """Least numbers of channels above the most there may be."""
    for least, most in (
        ("min_channels", "max_channels"),
        ("min_p2p_nchannels", "max_p2p_nchannels"),
    ):
        low, high = getattr(s.nccl, least), getattr(s.nccl, most)
        if low is not None and high is not None and low > high:
            yield s.mistake(f"nccl.{least}", f"at most {most} = {high}")


def too_many_gpus(s: Scenario, wanted: int, most: int) -> Mistake:
    """That a cluster has fewer GPUs than a scenario asks of it."""
    expected = f"at most {most}, the GPUs of the cluster"
    hint = larger_cluster(s.cluster.name, wanted)
    return s.mistake("cluster.gpus", expected, hint, wanted)


@rule("cluster.gpus parallel parallel.dp parallel.tp parallel.pp parallel.cp")
def _gpu_count(s: Scenario, gpus: int) -> Iterator[Mistake]:
    if s.cluster.gpus is not None and s.cluster.gpus > gpus:
        yield too_many_gpus(s, s.cluster.gpus, gpus)
        return
    p, count = s.parallel, s.cluster.gpus or gpus
    product = p.dp * p.tp * p.pp * p.cp
    if product == count:
        return
    rest = p.tp * p.pp * p.cp
    hint = (
        f"dp = {count // rest} would fill it"
        if count % rest == 0
        else f"{rest} does not divide {count}"
    )
    found = f"dp * tp * pp * cp = {p.dp} * {p.tp} * {p.pp} * {p.cp} = {product}"
    if product < count:
        hint += f"; or [cluster] gpus = {product} to use only some"
    yield s.mistake("parallel", f"{count}, the number of GPUs", hint, found)


@rule("cluster.gpus faults.slow_rank")
def _slow_rank(s: Scenario, gpus: int) -> Iterator[Mistake]:
    """Slowness of a rank that there is."""
    count = min(gpus, s.cluster.gpus or gpus)
    if s.faults.slow_rank is None:
        keys = ("faults.slow_per_layer", "faults.slow_factor")
        yield from s.refused(keys, "slow_rank beside it", "which rank is slow?")
    elif s.faults.slow_rank >= count:
        yield s.mistake("faults.slow_rank", f"a rank from 0 to {count - 1}")


@rule("megatron megatron.attention_dropout megatron.hidden_dropout")
def _dropout(s: Scenario) -> Iterator[Mistake]:
    """Shares of what is dropped: something has to stay."""
    for name in ("attention_dropout", "hidden_dropout"):
        if getattr(s.megatron, name) >= 1:
            yield s.mistake(f"megatron.{name}", "a share below 1")


@rule("megatron.cuda_graph_scope megatron.moe_pad_to_capacity")
def _graphs(s: Scenario) -> Iterator[Mistake]:
    """A graph of experts has shapes of its own: their rows may not depend on what the router chose."""
    o = s.megatron
    captured = "moe" in o.cuda_graph_scope and s.model.experts
    if captured and not o.moe_pad_to_capacity:
        expected = "moe_pad_to_capacity = true beside moe, or moe_router"
        yield s.mistake("megatron.cuda_graph_scope", expected)


_RULES = [
    *(_one_cluster, _one_model, _global_batch, _microbatches, _schedule),
    *(layout_model.expert_ranks, _sequence, layout_model.rings, _order, _channels),
    *(_dropout, _graphs, layout_model.adapter_targets, layout_model.adapter_dropout),
    *(layout_model.adapter_fp32, layout_model.adapter_base),
    *(layout_model.adapter_framework, layout_model.packed),
]
_GPU_RULES = [_gpu_count, _slow_rank]
