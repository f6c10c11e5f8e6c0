"""Kinds of sets that are installed with prestep; each has a module of its name beside this one."""

from __future__ import annotations

from collections.abc import Mapping

from prestep.sim import schema
from prestep.sim.schema import Items, Number, Table, Text
from prestep.validation.sets.kind import SHARE, TEXTS, Kind, table_of

#: The kind of a set.toml that does not name one.
STEPS = "steps"
ERRORS = schema.all_of(("mean", "worst"), SHARE)
RETARGET = Table(
    {
        "name": Text(),
        "run": Text(),
        "cluster": Text(),
        "set": TEXTS,
        "measured": Number(above=True),
        "of": Text(),
        "limit": SHARE,
    },
    needed=("name", "run", "measured", "limit"),
)

KINDS: Mapping[str, Kind] = {
    STEPS: Kind(
        table_of(
            ("rows",),
            rows=TEXTS,
            base=Text(),
            limits=Text(),
            bases=TEXTS,
            cluster=Table(
                {"name": Text(), "host_factor": Number(above=True)}, ("name",)
            ),
        ),
        steps=True,
        placed=True,
    ),
    "collectives": Kind(
        table_of(
            ("rows",),
            rows=TEXTS,
            base=Text(),
            limits=Text(),
            fitted=TEXTS,
            fitted_cases=TEXTS,
        )
    ),
    "choices": Kind(table_of(("rows",), rows=TEXTS)),
    "traces": Kind(
        table_of(
            ("limits",),
            limits=Table({"recorded": ERRORS, "simulated": ERRORS}),
            retarget=Items(RETARGET),
        )
    ),
}
