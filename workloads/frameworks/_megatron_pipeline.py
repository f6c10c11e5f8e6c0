"""What Megatron's pipelines refuse: stages of a rank, groups of microbatches, layouts by hand."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import grad_accumulation_of, microbatches_of
from prestep.workloads.megatron.pipeline_layout import pipeline_layout
from prestep.workloads.models.model import ModelSpec


def chunks(s: JobSpec) -> Iterator[Mistake]:
    """Megatron interleaves virtual stages, of which it wants two or more; DeepSpeed's engine has none."""
    p = s.parallel
    if p.schedule != "interleaved" or p.pp == 1:
        return
    if s.training.framework == "deepspeed":
        hint = "DeepSpeed's TrainSchedule does not interleave (deepspeed/runtime/pipe/schedule.py)"
        yield Mistake(s.where, "parallel.schedule", '"interleaved"', '"1f1b"', hint)
    elif p.vpp == 1:
        hint = 'or parallel.schedule = "1f1b", as Megatron runs one stage a rank'
        yield Mistake(s.where, "parallel.vpp", "1", "2 or more", hint)


def groups(s: JobSpec) -> Iterator[Mistake]:
    """Groups of microbatches that Megatron takes: every one keeps all ranks of the pipeline busy (schedules.py)."""
    key, p = "megatron.microbatch_group_size_per_vp_stage", s.parallel
    width = s.megatron.microbatch_group_size_per_vp_stage
    if width is None or p.pp == 1 or p.schedule != "interleaved":
        return
    microbatches = microbatches_of(s) // grad_accumulation_of(s)
    if not p.pp <= width <= microbatches:
        expected = f"from parallel.pp = {p.pp} to {microbatches} microbatches"
        yield Mistake(s.where, key, str(width), expected)
    elif 0 < (left := microbatches % width) < p.pp:
        expected = f"one that leaves no group of fewer than parallel.pp = {p.pp} of {microbatches} microbatches"
        yield Mistake(s.where, key, f"{width}, which leaves {left}", expected)


def layout(s: JobSpec, model: ModelSpec) -> Iterator[Mistake]:
    """A cut of one's own: as many stages, layers and predictions as there are."""
    text, p, where = s.megatron.pipeline_layout, s.parallel, s.where
    if text is None:
        return
    key, found = "megatron.pipeline_layout", f'"{text}"'
    try:
        made = pipeline_layout(text)
    except ValueError as error:
        hint = 'as in "Et*3|(tt|)*29,m|L"'
        yield Mistake(where, key, found, f"a layout of stages: {error}", hint)
        return
    for name in ("account_for_embedding", "account_for_loss"):
        if getattr(s.megatron, name):
            expected = "false: pipeline_layout says what is where"
            yield Mistake(where, f"megatron.{name}", "true", expected)
    counts = (
        ("stages", len(made.stages), p.pp * p.vpp, "pp x vpp"),
        ("layers (t)", made.count("t"), model.layers, "model.layers"),
        ("predictions (m)", made.count("m"), model.mtp_layers, "model.mtp_layers"),
    )
    for name, count, wanted, source in counts:
        if count != wanted:
            yield Mistake(where, key, f"{count} {name}", f"{source} = {wanted}")
