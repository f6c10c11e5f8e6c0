"""Fewer channels than NCCL would take."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.facts import algorithms_of
from prestep.validation.doctor.sweep import Situation

COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24)
NAMES = {"max_channels": "MAX_NCHANNELS", "max_ctas": "MAX_CTAS"}


def _changes(here: Situation) -> Sequence[Change]:
    most = max(size.expected.channels for size in here.sizes)
    counts = [count for count in COUNTS if count < most]
    keys = ["max_channels"]
    if {"nvls", "nvls_tree"} & algorithms_of(here):
        keys.append("max_ctas")  # which limits NVLink SHARP too
    return tuple(
        Change(f"NCCL_{NAMES[key]}={count}", nccl={key: count})
        for key in keys
        for count in counts
    )


CAUSE = Cause(
    "NCCL has few channels",
    "NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, NCCL_MIN_CTAS and the communicator's config; NCCL_DEBUG=INFO prints "
    "`coll channels`",
    _changes,
    signs=(r"NCCL_(MAX_NCHANNELS|MAX_NRINGS|MAX_CTAS) set by environment to \d+",),
)
