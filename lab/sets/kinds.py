"""Kinds of sets of the laboratory; each has a module of its name beside this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.formats.library_families import FAMILIES
from prestep.sim import schema
from prestep.sim.errors import Mistake, unknown
from prestep.sim.schema import Items, Number, Switch, Table, Text
from prestep.validation.sets.kinds import TEXTS, Kind, table_of

#: The kind of sets of training steps.
STEPS = "steps"
#: Limits of errors, as shares of the measured value.
SHARE = Number(above=True)

LIBRARY_ERRORS = schema.all_of(
    [family.name for family in FAMILIES],
    schema.all_of(("median", "ninetieth"), SHARE),
)

#: Logs of files of rows, and logs that are predicted; `cause`: what is true of them; none of good ones.
LOG = Table(
    {
        "rows": TEXTS,
        "labels": Text(),
        "cluster": Text(),
        "cause": Text(),
        "together": Switch(),
    },
    needed=("rows", "labels"),
)

EMULATED = Table(
    {
        "cluster": Text(),
        "set": schema.Named(Text()),
        "cause": Text(),
        "together": Switch(),
    },
    needed=("cluster", "set", "cause"),
)

#: Errors of runs that are replayed, and a run on another cluster beside the measurement of just that.
REPLAYED = schema.all_of(("mean", "worst"), SHARE)
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


class Hosted(NamedTuple):
    """A table of which `hosts` has factors of clusters of the set, or of files of its rows."""

    table: Table

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        yield from self.table.mistakes(where, key, value)
        table = value if isinstance(value, Mapping) else {}
        rows = table.get("rows")
        clusters = [str(name) for name in _table(table, "clusters").values()]
        files = (
            [Path(str(file)).stem for file in rows] if isinstance(rows, list) else []
        )
        named = [*clusters, *files]
        for name in _table(table, "hosts"):
            if name not in named:
                yield unknown(where, f"hosts.{name}", name, named)


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table of a key, empty where there is none or something else."""
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}


KINDS: Mapping[str, Kind] = {
    STEPS: Kind(
        table_of(
            ("rows",),
            rows=TEXTS,
            base=Text(),
            limits=Text(),
            cluster=Table(
                {"name": Text(), "host_factor": Number(above=True)}, ("name",)
            ),
        ),
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
    "changes": Kind(
        table_of(
            ("base", "rows", "bases", "ratio_worst"),
            base=Text(),
            rows=TEXTS,
            bases=TEXTS,
            ratio_worst=SHARE,
        )
    ),
    "traces": Kind(
        table_of(
            ("limits",),
            limits=Table({"recorded": REPLAYED, "simulated": REPLAYED}),
            retarget=Items(RETARGET),
        )
    ),
    "choices": Kind(table_of(("rows",), rows=TEXTS)),
    "published": Kind(
        table_of(
            format=Text(("lora_rows",)),
            group=TEXTS,
            part=Number(low=1, whole=True),
            cuts=TEXTS,
            replicas=Number(low=2, whole=True),
            replicated_work=Number(above=True),
        ),
    ),
    "published_collectives": Kind(
        table_of(("rows",), rows=TEXTS, base=Text(), limits=Text())
    ),
    "checkpoint": Kind(
        table_of(
            ("rows", "disks", "stall", "beside"),
            rows=TEXTS,
            disks=Text(),
            stall=SHARE,
            beside=SHARE,
        )
    ),
    "rl": Kind(
        table_of(
            ("rows", "mean", "order", "fitted"),
            rows=TEXTS,
            mean=SHARE,
            order=Number(low=0),
            fitted=TEXTS,
        )
    ),
    "wall": Kind(
        table_of(
            ("rows", "calibration", "busy", "idle"),
            rows=TEXTS,
            calibration=TEXTS,
            busy=SHARE,
            idle=SHARE,
        )
    ),
    "schedules": Kind(
        table_of(
            ("rows", "sections", "speed", "memory"),
            rows=TEXTS,
            sections=schema.Named(Text()),
            speed=SHARE,
            memory=SHARE,
        )
    ),
    "probes": Kind(table_of()),
    "exchanges": Kind(
        table_of(
            ("rows", "times", "ratios"),
            rows=TEXTS,
            calibration=TEXTS,
            times=SHARE,
            ratios=SHARE,
        )
    ),
    "stragglers": Kind(
        table_of(
            ("rows", "replayed", "ideal", "slowdown"),
            rows=TEXTS,
            replayed=SHARE,
            ideal=SHARE,
            slowdown=SHARE,
        )
    ),
    "doctor": Kind(
        table_of(
            ("alarms", "wrong", "threads", "threads_wrong"),
            alarms=SHARE,
            wrong=SHARE,
            threads=Items(Text()),
            threads_wrong=SHARE,
            measured=Items(LOG),
            emulated=Items(EMULATED),
        )
    ),
    "kernels": Kind(table_of(("rows", "limits"), rows=TEXTS, limits=LIBRARY_ERRORS)),
    "table": Kind(
        table_of(
            ("rows", "format"),
            rows=TEXTS,
            format=Text(("automodel_rows", "low_precision_rows", "script_rows")),
            fitted=TEXTS,
            cuts=TEXTS,
        )
    ),
    "energy": Kind(
        Hosted(
            table_of(
                (
                    "rows",
                    "calibration",
                    "clusters",
                    "power",
                    "energy",
                    "given",
                    "clock",
                ),
                rows=TEXTS,
                calibration=TEXTS,
                clusters=schema.Named(Text()),
                hosts=schema.Named(Number(above=True)),
                power=SHARE,
                energy=SHARE,
                given=SHARE,
                clock=SHARE,
            )
        ),
        placed=True,
    ),
    "programs": Kind(
        Hosted(
            table_of(
                ("rows", "clusters"),
                rows=TEXTS,
                clusters=schema.Named(Text()),
                hosts=schema.Named(Number(above=True)),
                fitted=TEXTS,
            )
        ),
        placed=True,
    ),
}
