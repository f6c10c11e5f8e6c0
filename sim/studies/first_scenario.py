"""The first scenario of a job: sharded over all GPUs, with what of recomputation and micro batch fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prestep.sim.errors import InputError
from prestep.sim.files import toml
from prestep.sim.spec.load import scenario_of
from prestep.sim.studies.largest import largest_micro_batch

# From the fastest to the one that needs the least memory: (recompute, whether every microbatch reduces its gradients;
# else a rank holds all of them until the last has).
FRUGAL = tuple(
    (recompute, reduced)
    for recompute in ("none", "alternate", "full")
    for reduced in (False, True)
)


@dataclass(frozen=True)
class Job:
    """What somebody wants to train, and where; `hosts` None: as many as the cluster's file has."""

    model: str
    cluster: str
    hosts: int | None
    seq_len: int
    global_batch: int
    gpus: int


def text_of(job: Job) -> str:
    """The scenario's file.

    Raises
    ------
    InputError
        If the batch cannot be dealt out, or one sample on each GPU does not fit.
    """
    for recompute, reduced in FRUGAL:
        one = _text(job, recompute, reduced, micro_batch=1)
        limit = largest_micro_batch(scenario_of(toml(one), Path("init")))
        if limit.divides:
            return _text(job, recompute, reduced, limit.divides)
    raise InputError.of(
        "init",
        "training",
        f"no room for one sample of {job.seq_len} tokens on each of {job.gpus} GPUs",
        "more hosts, shorter samples, or a model split over GPUs",
        "`prestep search` finds layouts with tensor and pipeline parallelism",
    )


def _text(job: Job, recompute: str, reduced: bool, micro_batch: int) -> str:
    return "\n".join(_lines(job, recompute, reduced, micro_batch)) + "\n"


def _lines(job: Job, recompute: str, reduced: bool, micro_batch: int) -> Iterator[str]:
    yield "# Written by `prestep init`. Ask next: `prestep whatif FILE --each all`, `prestep search FILE`."
    yield "[cluster]"
    yield _named(job.cluster)
    if job.hosts is not None:
        yield f"hosts = {job.hosts}"
    yield "\n[model]"
    yield _named(job.model)
    yield "\n[training]"
    yield f"seq_len = {job.seq_len}"
    yield f"micro_batch = {micro_batch}"
    yield f"global_batch = {job.global_batch}"
    if recompute != "none":
        yield f'recompute = "{recompute}"'
    yield "\n[parallel]"
    yield f"dp = {job.gpus}"
    if job.gpus > 1:
        yield 'data_parallel = "fsdp"'
    if reduced:
        yield "\n[pytorch]"
        yield "reduce_every_microbatch = true"


def _named(name: str) -> str:
    """`name = "dgx-h100"`, or the file of that name, wherever the scenario will lie."""
    path = Path(name)
    if path.is_file():
        return f"file = {_quoted(str(path.resolve()))}"
    return f"name = {_quoted(name)}"


def _quoted(text: str) -> str:
    """A string of TOML: its escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
