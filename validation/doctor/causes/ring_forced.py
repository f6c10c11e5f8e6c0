"""Rings where a tree or NVLink SHARP would be faster."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change
from prestep.validation.doctor.facts import algorithms_of
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    return (
        (Change("NCCL runs rings", nccl={"algo": "ring"}),)
        if algorithms_of(here) - {"ring", "pairwise", "p2p", ""}
        else ()
    )


CAUSE = Cause(
    "rings instead of a tree or NVLink SHARP",
    "NCCL_ALGO, a tuner plug-in (NCCL_TUNER_PLUGIN) or its file; NCCL_DEBUG=INFO with "
    "NCCL_DEBUG_SUBSYS=INIT,TUNING prints what is chosen",
    _changes,
    signs=(r"NCCL_ALGO set by environment to \S*[Rr]ing",),
)
