"""Rules that tie keys of a scenario together: the batch, the schedule, the model and the number of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from prestep.sim.errors import Mistake
from prestep.sim.spec.rules import model as layout_model
from prestep.sim.spec.sections import Scenario
from prestep.topologies import larger_cluster
from prestep.workloads.frameworks import Rule, framework_of
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
        rules = [(keys, rule) for keys, rule in rules if not _of_batches(keys)]
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
        for keys, rule in rules
        if not set(keys.split()) & set(skip)
        for mistake in rule(*args)
    ]


def _one_cluster(s: Scenario) -> Iterator[Mistake]:
    if (s.cluster.name is None) == (s.cluster.file is None):
        found = "neither" if s.cluster.name is None else "both"
        yield Mistake(
            s.where,
            "cluster",
            found,
            "name or file",
            "`prestep list clusters` shows the names",
        )


def _one_model(s: Scenario) -> Iterator[Mistake]:
    said = [
        key for key in ("name", "file", "kind") if getattr(s.model, key) is not None
    ]
    if len(said) != 1:
        found = " and ".join(said) or "none of them"
        yield Mistake(
            s.where,
            "model",
            found,
            "one of name, file or kind",
            "`prestep list models` shows the names",
        )


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
        expected = f"at most {MOST_LAYERS}"
        yield Mistake(s.where, "model.layers", str(layers), expected)
        return
    folds = framework_of(s).folds_layers
    most = MOST_BLOCKS if folds else MOST_BLOCKS_BY_ONE
    passes = s.parallel.pp * s.parallel.vpp * runs
    if folds and (runs > MOST_RUNS or passes > MOST_PASSES):
        found = f"{runs} microbatches of {s.parallel.pp * s.parallel.vpp} stages"
        expected = f"at most {MOST_RUNS}, and {MOST_PASSES} by stages"
        yield Mistake(s.where, "training.microbatches", found, expected, _FEWER)
    elif layers * runs > most:
        found = f"{layers} layers and {runs} microbatches"
        expected = f"a product of at most {most}"
        hint = "" if folds else _FEWER
        yield Mistake(s.where, "model.layers, training", found, expected, hint)


_FEWER = (
    "every microbatch is simulated; each beyond the first few adds the same time, "
    "so predict two smaller numbers and draw the line"
)


def _global_batch(s: Scenario) -> Iterator[Mistake]:
    whole, samples = s.training.global_batch, s.training.micro_batch * s.parallel.dp
    if whole is None:
        return
    if whole % samples:
        below, above = (whole // samples * samples, (whole // samples + 1) * samples)
        near = f"{below} or {above} would do" if below else f"{above} would do"
        expected = f"a multiple of micro_batch * dp = {s.training.micro_batch} * {s.parallel.dp}"
        yield Mistake(s.where, "training.global_batch", str(whole), expected, near)
        return
    yield from _steps_of_batch(s, whole // samples)


def _steps_of_batch(s: Scenario, steps: int) -> Iterator[Mistake]:
    """Whether the stated microbatches make `steps` of them, as the global batch wants."""
    key = "training.global_batch"
    total, runs = stated_microbatches(s), s.training.grad_accumulation or 1
    if total is not None and total != steps:
        micro_batch, dp = s.training.micro_batch, s.parallel.dp
        product = f"{micro_batch} * {dp} * {total}"
        batch = total * micro_batch * dp
        expected = f"{batch} (micro_batch * dp * microbatches = {product})"
        whole = str(s.training.global_batch)
        yield Mistake(s.where, key, whole, expected, "leave one of the two out")
    elif s.parallel.pp > 1 and steps % runs:
        expected = f"a divisor of {steps} microbatches"
        yield Mistake(s.where, "training.grad_accumulation", str(runs), expected)


def _microbatches(s: Scenario) -> Iterator[Mistake]:
    training, parallel = s.training, s.parallel
    ours, theirs = training.microbatches, parallel.microbatches
    if ours is not None and theirs is not None and ours != theirs:
        yield Mistake(
            s.where,
            "parallel.microbatches",
            str(theirs),
            f"{ours}, as in training.microbatches",
            "say it once",
        )
    per_run, runs = ours or theirs, training.grad_accumulation
    if (
        parallel.pp == 1
        and per_run is not None
        and runs is not None
        and per_run != runs
    ):
        hint = "without a pipeline both mean the same; say it once"
        yield Mistake(
            s.where,
            "training.microbatches",
            str(per_run),
            f"{runs}, as in training.grad_accumulation",
            hint,
        )
    if parallel.pp > 1 and per_run is None and training.global_batch is None:
        hint = f"a pipeline of {parallel.pp} wants at least {parallel.pp}"
        yield Mistake(
            s.where,
            "training.microbatches",
            "nothing",
            "microbatches or global_batch",
            hint,
        )


def _schedule(s: Scenario) -> Iterator[Mistake]:
    parallel = s.parallel
    if parallel.vpp > 1 and parallel.pp == 1:
        yield Mistake(s.where, "parallel.vpp", str(parallel.vpp), "1 when pp = 1")
    elif parallel.vpp > 1 and parallel.schedule in ONE_STAGE_SCHEDULES:
        hint = f'or one stage per rank: vpp = 1 with "{parallel.schedule}"'
        yield Mistake(
            s.where,
            "parallel.schedule",
            f'"{parallel.schedule}"',
            f"one of {', '.join(VPP_SCHEDULES)}",
            hint,
        )
    v_shaped = parallel.schedule in V_SCHEDULES
    if v_shaped and parallel.pp > 1 and parallel.vpp != 2:
        yield Mistake(
            s.where,
            "parallel.vpp",
            str(parallel.vpp),
            "2: the V shape has two stages per rank",
        )


def _order(s: Scenario) -> Iterator[Mistake]:
    if s.parallel.order is None:
        return
    told = s.parallel.order.lower().split("-")
    if sorted(set(told)) != sorted(told) or set(told) - set(AXES):
        expected = f"some of {', '.join(AXES)}, each once, with dashes between"
        yield Mistake(
            s.where,
            "parallel.order",
            f'"{s.parallel.order}"',
            expected,
            f'such as "{"-".join(AXES)}"',
        )
        return
    missing = [
        axis for axis in AXES if getattr(s.parallel, axis) > 1 and axis not in told
    ]
    if missing:
        found = f'"{s.parallel.order}"'
        yield Mistake(
            s.where,
            "parallel.order",
            found,
            f"{', '.join(missing)} in it too: more than one rank",
        )


def _sequence(s: Scenario) -> Iterator[Mistake]:
    parts = s.parallel.cp * (s.parallel.tp if s.parallel.sequence_parallel else 1)
    if s.training.seq_len % parts:
        ranks = "cp * tp" if s.parallel.sequence_parallel else "cp"
        yield Mistake(
            s.where,
            "training.seq_len",
            str(s.training.seq_len),
            f"a multiple of {ranks} = {parts}",
        )


def _channels(s: Scenario) -> Iterator[Mistake]:
    """Least numbers of channels above the most there may be."""
    for least, most in (
        ("min_channels", "max_channels"),
        ("min_p2p_nchannels", "max_p2p_nchannels"),
    ):
        low, high = getattr(s.nccl, least), getattr(s.nccl, most)
        if low is not None and high is not None and low > high:
            expected = f"at most {most} = {high}"
            yield Mistake(s.where, f"nccl.{least}", str(low), expected)


def too_many_gpus(s: Scenario, wanted: int, most: int) -> Mistake:
    """That a cluster has fewer GPUs than a scenario asks of it."""
    expected = f"at most {most}, the GPUs of the cluster"
    hint = larger_cluster(s.cluster.name, wanted)
    return Mistake(s.where, "cluster.gpus", str(wanted), expected, hint)


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
    yield Mistake(s.where, "parallel", found, f"{count}, the number of GPUs", hint)


def _slow_rank(s: Scenario, gpus: int) -> Iterator[Mistake]:
    if s.faults.slow_rank is None:
        for key, none in (("slow_per_layer", 0.0), ("slow_factor", 1.0)):
            if getattr(s.faults, key) != none:
                found, expected = str(getattr(s.faults, key)), "slow_rank beside it"
                yield Mistake(
                    s.where, f"faults.{key}", found, expected, "which rank is slow?"
                )
    count = min(gpus, s.cluster.gpus or gpus)
    if s.faults.slow_rank is not None and s.faults.slow_rank >= count:
        yield Mistake(
            s.where,
            "faults.slow_rank",
            str(s.faults.slow_rank),
            f"a rank from 0 to {count - 1}",
        )


def _dropout(s: Scenario) -> Iterator[Mistake]:
    """Shares of what is dropped: something has to stay."""
    for name in ("attention_dropout", "hidden_dropout"):
        if (share := getattr(s.megatron, name)) >= 1:
            key = f"megatron.{name}"
            yield Mistake(s.where, key, str(share), "a share below 1")


# Keys a rule rests on -> the rule. A key that is already wrong silences its rules: one mistake, one line.
_BATCH = (
    "training.global_batch training.micro_batch training.grad_accumulation "
    "training.microbatches parallel.microbatches"
)
_RULES: list[Rule] = [
    ("cluster cluster.name cluster.file", _one_cluster),
    ("model model.name model.file model.kind", _one_model),
    (f"training parallel parallel.dp parallel.pp {_BATCH}", _global_batch),
    (f"training parallel parallel.dp parallel.pp {_BATCH}", _microbatches),
    ("parallel parallel.schedule parallel.vpp parallel.pp", _schedule),
    (
        "parallel parallel.dp parallel.cp parallel.tp parallel.ep parallel.etp",
        layout_model.expert_ranks,
    ),
    (
        "training parallel training.seq_len parallel.cp parallel.tp parallel.sequence_parallel",
        _sequence,
    ),
    ("parallel parallel.cp parallel.ring_degree", layout_model.rings),
    ("parallel parallel.order", _order),
    (
        "nccl nccl.min_channels nccl.max_channels nccl.min_p2p_nchannels nccl.max_p2p_nchannels",
        _channels,
    ),
    ("megatron megatron.attention_dropout megatron.hidden_dropout", _dropout),
    ("adapter adapter.targets", layout_model.adapter_targets),
    ("adapter adapter.dropout", layout_model.adapter_dropout),
    (
        "adapter training training.framework training.precision",
        layout_model.adapter_fp32,
    ),
    (
        "adapter training training.framework training.precision parallel parallel.tp "
        "parallel.data_parallel",
        layout_model.adapter_base,
    ),
    ("adapter training training.framework", layout_model.adapter_framework),
    (
        "training training.packed training.seq_len training.framework megatron",
        layout_model.packed,
    ),
]
_GPU_RULES: list[Rule] = [
    (
        "cluster.gpus parallel parallel.dp parallel.tp parallel.pp parallel.cp",
        _gpu_count,
    ),
    ("cluster.gpus faults.slow_rank", _slow_rank),
]
