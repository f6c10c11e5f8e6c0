"""The words of the harness that measured training steps, and which of them a scenario cannot say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prestep.sim.errors import Mistake, unknown
from prestep.validation.formats.rows import BOOKKEEPING, Row
from prestep.validation.formats.usual import MODES, REHEARSED
from prestep.validation.formats.usual import SIZES as MEASURED_SIZES
from prestep.workloads.operation import words

MODELS = {
    "llama125m": "llama3-125m-plain",
    "llama1b": "llama3-1b-plain",
    "llama8b": "llama3-8b-plain",
    "moe8x": "moe8x-plain",
    "resnet50": "resnet50",
}
# Models of the harness that have no name in prestep; the harness's own tiny ones are for rehearsals.
SIZES = {
    name: sizes
    for name, sizes in MEASURED_SIZES.items()
    if name not in MODELS and name not in REHEARSED
}
SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "zb": "zero-bubble",
}
# Static graphs change DDP's first step only; `gpus` is read by nothing.
KEYS = BOOKKEEPING | frozenset(
    words(
        "model mode mbs seq ga bucket_mb reshard ac ep microbatches vpp tp pp schedule compile set_to_none "
        "gabv static slow gpus"
    )
)
UNLESS_SAID = ("sp", "ckpt", "slow")  # nothing at all when false
NCCL = {
    "NCCL_MAX_NCHANNELS": ("max_channels", int),
    "NCCL_MIN_NCHANNELS": ("min_channels", int),
    "NCCL_ALGO": ("algo", str),
    "NCCL_PROTO": ("proto", str),
}


def beyond_scenarios(row: Row) -> list[Mistake]:
    """What a scenario cannot say of a row."""
    return [*_wrong_case(row), *_wrong_pipeline(row), *_wrong_variables(row)]


def _wrong_variables(row: Row) -> Iterator[Mistake]:
    """Variables of NCCL that [nccl] has no key for."""
    for key in row.env:
        if key not in NCCL:
            yield unknown(row.where, f"env.{key}", key, NCCL)


def _wrong_case(row: Row) -> Iterator[Mistake]:
    """Keys and values of a case that have no counterpart."""
    case, where = row.case, row.where
    for key, value in case.items():
        if key not in KEYS and (value or key not in UNLESS_SAID):
            yield unknown(where, f"case.{key}", key, KEYS)
    if str(case.get("mode")) not in MODES:
        yield unknown(where, "case.mode", str(case.get("mode")), MODES)
    model = str(case.get("model"))
    if model not in MODELS | SIZES and not re.fullmatch(r"seedmlp_[1-9]\d*", model):
        models = [*MODELS, *SIZES, "seedmlp_<size>"]
        yield unknown(where, "case.model", model, models)
    if not isinstance(case.get("mbs"), int):
        expected = "samples per rank and microbatch"
        yield Mistake(where, "case.mbs", repr(case.get("mbs")), expected)
    if case.get("slow") and case.get("mode") == "single":
        hint = "ranks of single run apart"
        yield Mistake(where, "case.slow", "a slow rank", "nothing", hint)


def _wrong_pipeline(row: Row) -> Iterator[Mistake]:
    """A schedule or a number of microbatches that has no counterpart."""
    case, where = row.case, row.where
    if not is_pipeline(case):
        return
    schedule, microbatches = case.get("schedule"), case.get("microbatches")
    if str(schedule) not in SCHEDULES:
        yield unknown(where, "case.schedule", str(schedule), SCHEDULES)
    if not isinstance(microbatches, int):
        yield Mistake(where, "case.microbatches", repr(microbatches), "a number")


def is_pipeline(case: Mapping[str, Any]) -> bool:
    """Whether a case ran pipeline stages."""
    return case.get("mode") in ("pp", "ppdp")
