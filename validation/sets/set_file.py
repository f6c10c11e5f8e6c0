"""A set's own file: what `set.toml` may say, by the kind of the set, read strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import schema
from sim.costs.library_families import FAMILIES
from sim.errors import Mistake, unknown
from sim.schema import Items, Number, Schema, Switch, Table, Text

STEPS = "steps"
TEXTS = Items(Text())
#: Limits of errors, as shares of the measured value.
SHARE = Number(above=True)
ERRORS = schema.all_of(("mean", "worst"), SHARE)
LIBRARY_ERRORS = schema.all_of(
    [family.name for family in FAMILIES],
    schema.all_of(("median", "ninetieth"), SHARE),
)
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


def _kind(needed: tuple[str, ...] = (), **keys: Schema) -> Table:
    """What a set of a kind may say beside its title; `needed`: what it must."""
    return Table({"title": Text(), "kind": Text(), **keys}, ("title", *needed))


@dataclass(frozen=True)
class Named:
    """A table of values of one kind under any names."""

    value: Schema
    kind: str

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        table = value if isinstance(value, Mapping) else {}
        if not table:
            yield Mistake(where, key, "nothing", f"a table of {self.kind}")
        for name, each in table.items():
            yield from self.value.mistakes(where, f"{key}.{name}", each)


#: Kinds of sets; each has a module of its name in `validation.sets`.
KINDS: Mapping[str, Table] = {
    STEPS: _kind(
        ("rows",),
        rows=TEXTS,
        base=Text(),
        limits=Text(),
        bases=TEXTS,
        cluster=Table({"name": Text(), "host_factor": Number(above=True)}, ("name",)),
    ),
    "collectives": _kind(
        ("rows",),
        rows=TEXTS,
        base=Text(),
        limits=Text(),
        fitted=TEXTS,
        fitted_cases=TEXTS,
    ),
    "choices": _kind(("rows",), rows=TEXTS),
    "traces": _kind(
        ("limits",),
        limits=Table({"recorded": ERRORS, "simulated": ERRORS}),
        retarget=Items(RETARGET),
    ),
    "published": _kind(
        group=TEXTS,
        part=Number(low=1, whole=True),
        cuts=TEXTS,
        replicas=Number(low=2, whole=True),
        replicated_work=Number(above=True),
    ),
    "lora": _kind(
        group=TEXTS,
        part=Number(low=1, whole=True),
        cuts=TEXTS,
    ),
    "checkpoint": _kind(
        ("rows", "calibration", "stall", "beside"),
        rows=TEXTS,
        calibration=Text(),
        stall=SHARE,
        beside=SHARE,
    ),
    "energy": _kind(
        ("rows", "calibration", "clusters", "power", "energy", "given", "clock"),
        rows=TEXTS,
        calibration=TEXTS,
        clusters=Named(Text(), "texts"),
        hosts=Named(Number(above=True), "numbers"),
        power=SHARE,
        energy=SHARE,
        given=SHARE,
        clock=SHARE,
    ),
    "rl": _kind(
        ("rows", "mean", "order", "fitted"),
        rows=TEXTS,
        mean=SHARE,
        order=Number(low=0),
        fitted=TEXTS,
    ),
    "wall": _kind(
        ("rows", "calibration", "busy", "idle"),
        rows=TEXTS,
        calibration=TEXTS,
        busy=SHARE,
        idle=SHARE,
    ),
    "schedules": _kind(
        ("rows", "sections", "speed", "memory"),
        rows=TEXTS,
        sections=Named(Text(), "texts"),
        speed=SHARE,
        memory=SHARE,
    ),
    "automodel": _kind(("rows",), rows=TEXTS, fitted=TEXTS),
    "probes": _kind(),
    "stragglers": _kind(
        ("rows", "replayed", "ideal", "slowdown"),
        rows=TEXTS,
        replayed=SHARE,
        ideal=SHARE,
        slowdown=SHARE,
    ),
    "doctor": _kind(
        ("alarms", "wrong"),
        alarms=SHARE,
        wrong=SHARE,
        measured=Items(LOG),
        emulated=Items(EMULATED),
    ),
    "kernels": _kind(("rows", "limits"), rows=TEXTS, limits=LIBRARY_ERRORS),
    "low_precision": _kind(("rows",), rows=TEXTS),
    "programs": _kind(
        ("rows", "clusters"),
        rows=TEXTS,
        clusters=Named(Text(), "texts"),
        hosts=Named(Number(above=True), "numbers"),
        fitted=TEXTS,
    ),
}
ALIAS = Table({"alias": Text()})


@dataclass(frozen=True)
class SetFile:
    """A set.toml: another name of a set, or what its kind may say."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        table = value if isinstance(value, Mapping) else {}
        kind = str(table.get("kind", STEPS))
        if "alias" in table:
            yield from ALIAS.mistakes(where, key, value)
        elif kind in KINDS:
            yield from KINDS[kind].mistakes(where, key, value)
            yield from _unknown_hosts(where, table)
        else:
            yield unknown(where, "kind", kind, KINDS)


def _unknown_hosts(where: str, table: Mapping[str, Any]) -> Iterator[Mistake]:
    """Host factors of what is neither a cluster of the set nor a file of its rows."""
    clusters = [str(name) for name in _table(table, "clusters").values()]
    rows = table.get("rows")
    files = [Path(str(file)).stem for file in rows] if isinstance(rows, list) else []
    named = [*clusters, *files]
    for name in _table(table, "hosts"):
        if name not in named:
            yield unknown(where, f"hosts.{name}", name, named)


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table of a key, empty where there is none or something else."""
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}


def read(path: Path) -> dict[str, Any]:
    """The table of a set.toml.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    return schema.read(path, SetFile(), "a set.toml")
