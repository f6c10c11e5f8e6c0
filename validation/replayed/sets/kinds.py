"""The kind of sets that are recorded runs (`kind = "traces"` in set.toml)."""

from __future__ import annotations

from collections.abc import Mapping

from prestep.sim import schema
from prestep.sim.schema import Items, Number, Table, Text
from prestep.validation.sets.kinds import SHARE, TEXTS, Kind, table_of

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
    "traces": Kind(
        table_of(
            ("limits",),
            limits=Table({"recorded": ERRORS, "simulated": ERRORS}),
            retarget=Items(RETARGET),
        )
    )
}
