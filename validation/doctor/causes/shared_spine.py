"""A spine with less bandwidth than it should have, or shared with others."""

from collections.abc import Sequence

from prestep.validation.doctor.cause import Cause, Change, slower
from prestep.validation.doctor.sweep import Situation


def _changes(here: Situation) -> Sequence[Change]:
    return slower("the spine", "spine") if here.hosts > 1 else ()


CAUSE = Cause(
    "a spine that is shared or lacks bandwidth",
    "run the same on hosts of one leaf, where it should be normal; look at the load and the lost cables of the "
    "switches' uplinks, and whether other jobs ran",
    _changes,
)
