"""Training steps: the environments and numbers of GPUs of the cases."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.validation.measure import cases
from prestep.validation.measure.options import Options, Place
from prestep.validation.measure.plan import Variant


def variants(options: Options, place: Place) -> Sequence[Variant]:
    """A group of processes for each environment and number of GPUs among the cases."""
    if options.cases is None:
        return [Variant("default", order=30)]
    groups = cases.groups(cases.load(options.cases).training, place.world)
    total = sum(len(listed) for *_, listed in groups)
    return [
        Variant(
            label,
            env,
            ranks,
            30,
            len(listed) / total,
            tuple(case["id"] for case in listed),
        )
        for label, env, ranks, listed in groups
    ]
