"""What `--set` changes in the tables of a scenario: keys of sections, of tables in them, of jobs, and links."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prestep.sim import strict
from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily
from prestep.sim.spec import jobs
from prestep.sim.spec.sections import SECTIONS
from prestep.topologies.files.bundled import is_as_it_is

with lazily():
    from prestep.sim import assignments

#: Keys that say which cluster it is.
_PLACES = ("cluster.name", "cluster.file")
#: The key that names a GPU and leaves its cluster to us, as a recorded program has it; keys that say where that runs.
GPU = "gpu"
PLACE = (GPU, *_PLACES, "cluster.hosts")
_JOB = re.compile(r"jobs?\[([^\]]+)\]\.(.+)")


def key_of(override: str) -> str:
    """The key of a `--set` item."""
    return override.partition("=")[0].strip()


def placing(overrides: Sequence[str]) -> tuple[str, ...]:
    """Those of the overrides that say where a recorded program runs."""
    return tuple(item for item in overrides if key_of(item) in PLACE)


def overridden(
    tables: dict[str, Any],
    overrides: Sequence[str],
    stated_jobs: list[dict[str, Any]] | None,
) -> tuple[dict[str, str], list[Mistake]]:
    """Writes `--set` items into the tables, and those of the jobs; returns where each key came from, and mistakes."""
    origins: dict[str, str] = {}
    mistakes: list[Mistake] = []
    of_jobs: list[tuple[str, str, object]] = []
    several = stated_jobs is not None
    for text in overrides:
        with InputError.collected(mistakes):
            item = _item(text, several)
            if _written_inside(tables, item.name, item.value):
                origins |= _table_origin(item)
            elif several and item.section in jobs.own_sections():
                of_jobs.append((item.job, item.name, item.read))
            elif _put(tables, item, item.read):
                origins[item.name] = "--set"
    mistakes += jobs.overridden(stated_jobs or [], of_jobs)
    return origins, mistakes


class _Item(NamedTuple):
    """One `--set`: the dotted name of a key, its value as text, and the job that it is of ("": all)."""

    job: str
    name: str
    value: str

    @property
    def section(self) -> str:
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        return self.name.partition(".")[2]

    @property
    def read(self) -> object:
        """The value, typed as its key is."""
        return assignments.read(SECTIONS[self.section], self.key, self.value)


def _item(text: str, several: bool) -> _Item:
    """An item of `--set`, of a scenario with `several` jobs or with one."""
    routed = f"cluster.{text}" if text.startswith("routing=") else text
    name, value = assignments.split(routed)
    job, name = _job_and_key(name) if several else ("", name)
    return _Item(job, name, value)


def _put(tables: dict[str, Any], item: _Item, value: object) -> bool:
    """Writes a key into its section; whether that is a table, as it should be."""
    section = tables.setdefault(item.section, {})
    if isinstance(section, dict):
        if item.name in _PLACES:
            _move(section, item.name, item.value)
        section[item.key] = value
    return isinstance(section, dict)


def _move(cluster: dict[str, Any], key: str, place: str) -> None:
    """Leaves out the place before: a name and a file exclude each other, and a graph has its own hosts."""
    for other in _PLACES:
        if other != key:
            cluster.pop(other.partition(".")[2], None)
    if is_as_it_is(place):
        cluster.pop("hosts", None)


def _job_and_key(name: str) -> tuple[str, str]:
    """The job that a key names, or "" for all, and the rest of the key."""
    match = _JOB.fullmatch(name)
    return (match[1], match[2]) if match else ("", name)


def _written_inside(tables: dict[str, Any], name: str, value: str) -> bool:
    """Writes a change of a link, or a key of a table in a section (faults.rates.gpu); whether it was one of these."""
    section, _, key = name.partition(".")
    if section not in SECTIONS or name.startswith("cluster.set."):
        _change_link(tables, assignments.link_key(name, SECTIONS), value)
        return True
    head, _, inner = key.partition(".")
    if not inner or not strict.holds_table(SECTIONS[section], head):
        return False
    outer = tables.setdefault(section, {})
    table = outer.setdefault(head, {}) if isinstance(outer, dict) else None
    if isinstance(table, dict):  # else it is a mistake that is reported later
        table[inner] = assignments.read_inside(SECTIONS[section], head, inner, value)
    return True


def _table_origin(item: _Item) -> dict[str, str]:
    """That the table of a key comes from the command line, where its keys are checked."""
    if item.section not in SECTIONS:
        return {}
    head = item.key.partition(".")[0]
    checked = strict.has_keys(strict.type_hints(SECTIONS[item.section]).get(head))
    return {f"{item.section}.{head}": "--set"} if checked else {}


def _change_link(tables: dict[str, Any], link: str, value: str) -> None:
    table = tables.setdefault("cluster", {})
    changes = table.get("set", {}) if isinstance(table, dict) else None
    if isinstance(changes, Mapping):  # else the file is wrong here, and reported
        table["set"] = {**dict(strict.flatten(changes)), link: value}
