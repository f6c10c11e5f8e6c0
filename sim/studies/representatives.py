"""What `prestep whatif --each` tries: one element of every class of those that are alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from prestep.sim.planning.planned import Planned
from prestep.sim.studies.classes import Colours
from prestep.sim.studies.elements import Element, elements

# Classes of one word that are tried unless more are asked for.
MOST = 64
MOST_NAMED = 16  # elements of a class, in a table
CHOSEN = "by turns from every pipeline stage and kind of link, those that stand for most first"


@dataclass(frozen=True)
class Representative:
    """An element that is tried, and those that are as good as it.

    Attributes
    ----------
    name, key
        The element, and the selector and attribute that change it.
    stands_for
        How many elements are alike, itself among them.
    alike
        Their names, in order.
    stages
        Pipeline stages of the ranks on it; empty where the job has one stage, or it is no GPU and no host.
    """

    name: str
    key: str
    stands_for: int = 1
    alike: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """For people: the element, its stages, and how many are like it."""
        first, last = (self.stages or (0,))[0], (self.stages or (0,))[-1]
        stage = f"stage {first}" if first == last else f"stages {first}-{last}"
        said = [stage] if self.stages else []
        said += [f"1 of {self.stands_for:,} alike"] if self.stands_for > 1 else []
        return f"{self.name} ({', '.join(said)})" if said else self.name

    def to_dict(self) -> dict[str, Any]:
        """What a row of the table says of it beside its effect."""
        return {
            "label": self.label,
            "stands_for": self.stands_for,
            "alike": list(self.alike[:MOST_NAMED]),
            "stages": list(self.stages),
        }


@dataclass(frozen=True)
class Tried:
    """Of one word of `--each`: how many elements and classes there are, and what is tried of them."""

    each: str
    elements: int
    classes: int
    chosen: tuple[Representative, ...]

    @property
    def covered(self) -> int:
        """Elements that those tried stand for."""
        return sum(one.stands_for for one in self.chosen)

    def to_dict(self) -> dict[str, Any]:
        whole = len(self.chosen) == self.classes
        return {
            "each": self.each,
            "elements": self.elements,
            "classes": self.classes,
            "tried": len(self.chosen),
            "covered": self.covered,
            "chosen": "all" if whole else CHOSEN,
        }


def representatives(planned: Planned, each: str, most: int = MOST) -> Tried:
    """One element of every class that `each` means on this step's cluster; of more than `most` classes, so many.

    Raises
    ------
    InputError
        For a word that is not one of `EACH`, or names nothing on this cluster.
    """
    found = elements(planned.fabric, each, planned.gpus)
    kind = _KINDS.get(each, _Apart)(Colours(planned))
    classes: dict[Hashable, list[Element]] = {}
    for element in found:
        classes.setdefault(kind.colour(element), []).append(element)
    made = {
        _representative(members, kind): kind.stratum(members[0])
        for members in classes.values()
    }
    chosen = list(made) if len(made) <= most else _by_turns(made, most)
    return Tried(each, len(found), len(made), tuple(chosen))


def _representative(members: Sequence[Element], kind: _Apart) -> Representative:
    name, key = members[0]
    alike = tuple(member for member, _ in members)
    return Representative(name, key, len(members), alike, kind.stages(members[0]))


def _by_turns(
    made: Mapping[Representative, Hashable], most: int
) -> list[Representative]:
    """One of every stratum, then another of each, until there are so many; in their first order."""
    strata: dict[Hashable, list[Representative]] = {}
    for one in sorted(made, key=lambda one: -one.stands_for):
        strata.setdefault(made[one], []).append(one)
    turns = [one for turn in zip_longest(*strata.values()) for one in turn if one]
    taken = set(turns[:most])
    return [one for one in made if one in taken]


@dataclass(frozen=True, eq=False)
class _Apart:
    """Elements of which none are alike; others say what tells them apart."""

    colours: Colours

    def colour(self, element: Element) -> Hashable:
        return element

    def stages(self, element: Element) -> tuple[int, ...]:
        """Pipeline stages of the ranks on it."""
        return ()

    def stratum(self, element: Element) -> Hashable:
        """What turns are taken by where not all are tried."""
        return self.stages(element)


class _Ranks(_Apart):
    def colour(self, element: Element) -> Hashable:
        return self.colours.of_node(self._gpu(element))

    def stages(self, element: Element) -> tuple[int, ...]:
        return self.colours.stages([self.colours.ranks[self._gpu(element)]])

    def _gpu(self, element: Element) -> str:
        """The name of `gpu[17]`."""
        number = element[0].removeprefix("gpu[").removesuffix("]")
        return self.colours.planned.fabric.gpus[int(number)]


class _HostClocks(_Apart):
    def colour(self, element: Element) -> Hashable:
        return self.colours.of_host(_host(element))

    def stages(self, element: Element) -> tuple[int, ...]:
        return self.colours.stages(self.colours.hosts[_host(element)])


class _Hosts(_HostClocks):
    def colour(self, element: Element) -> Hashable:
        return self.colours.of_host_links(_host(element))


class _Links(_Apart):
    def colour(self, element: Element) -> Hashable:
        return self.colours.of_link(element[0])

    def stratum(self, element: Element) -> Hashable:
        """Kinds of links."""
        return self.colours.kind(element[0])


def _host(element: Element) -> str:
    return element[0].removesuffix(" clock")


#: Words whose elements may be alike -> what tells them apart.
_KINDS = {"rank": _Ranks, "host": _Hosts, "host-clock": _HostClocks, "link": _Links}
