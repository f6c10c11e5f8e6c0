"""What Megatron's pipelines refuse: stages of a rank, groups of microbatches, layouts by hand."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads.frameworks import rule
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import grad_accumulation_of, microbatches_of
from prestep.workloads.megatron.pipeline_layout import pipeline_layout
from prestep.workloads.models.model import ModelSpec


@rule("parallel parallel.pp parallel.vpp parallel.schedule")
def chunks(s: JobSpec) -> Iterator[Mistake]:
    """Megatron interleaves virtual stages, of which it wants two or more; DeepSpeed's engine has none."""
    p = s.parallel
    if p.schedule != "interleaved" or p.pp == 1:
        return
    if s.training.framework == "deepspeed":
        hint = "DeepSpeed's TrainSchedule does not interleave (deepspeed/runtime/pipe/schedule.py)"
        yield s.mistake("parallel.schedule", '"1f1b"', hint)
    elif p.vpp == 1:
        hint = 'or parallel.schedule = "1f1b", as Megatron runs one stage a rank'
        yield s.mistake("parallel.vpp", "2 or more", hint)


@rule(
    "megatron.microbatch_group_size_per_vp_stage parallel parallel.pp parallel.schedule training"
)
def groups(s: JobSpec) -> Iterator[Mistake]:
    """Groups of microbatches that Megatron takes: every one keeps all ranks of the pipeline busy (schedules.py)."""
    key, p = "megatron.microbatch_group_size_per_vp_stage", s.parallel
    width = s.megatron.microbatch_group_size_per_vp_stage
    if width is None or p.pp == 1 or p.schedule != "interleaved":
        return
    microbatches = microbatches_of(s) // grad_accumulation_of(s)
    if not p.pp <= width <= microbatches:
        expected = f"from parallel.pp = {p.pp} to {microbatches} microbatches"
        yield s.mistake(key, expected)
    elif 0 < (left := microbatches % width) < p.pp:
        expected = f"one that leaves no group of fewer than parallel.pp = {p.pp} of {microbatches} microbatches"
        yield s.mistake(key, expected, found=f"{width}, which leaves {left}")


@rule(
    "megatron.pipeline_layout megatron.account_for_embedding megatron.account_for_loss "
    "parallel.pp parallel.vpp model.layers model.mtp_layers"
)
def layout(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """A cut of one's own: as many stages, layers and predictions as there are."""
    key, text, p = "megatron.pipeline_layout", s.megatron.pipeline_layout, s.parallel
    if text is None:
        return
    try:
        made = pipeline_layout(text)
    except ValueError as error:
        hint = 'as in "Et*3|(tt|)*29,m|L"'
        yield s.mistake(key, f"a layout of stages: {error}", hint)
        return
    ends = ("megatron.account_for_embedding", "megatron.account_for_loss")
    yield from s.refused(ends, "false: pipeline_layout says what is where")
    counts = (
        ("stages", len(made.stages), p.pp * p.vpp, "pp x vpp"),
        ("layers (t)", made.count("t"), model.layers, "model.layers"),
        ("predictions (m)", made.count("m"), model.mtp_layers, "model.mtp_layers"),
    )
    for name, count, wanted, source in counts:
        if count != wanted:
            yield s.mistake(key, f"{source} = {wanted}", found=f"{count} {name}")
