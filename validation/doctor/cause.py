"""Causes of a slow log: what each would change in the cluster or in NCCL's settings. A file of `causes` is a cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prestep.sim import plugins
from prestep.validation.doctor.sweep import Situation

PACKAGE = "prestep.validation.doctor.causes"


@dataclass(frozen=True)
class Change:
    """One way in which a cause shows: changes of links as `--set` takes them, and settings of NCCL."""

    text: str
    links: Mapping[str, str] = field(default_factory=dict)
    nccl: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """Something that makes collectives slow.

    Attributes
    ----------
    title : str
        What it is.
    check : str
        What to look at next, to be sure.
    changes : callable
        The ways in which it could show in a situation; none where it cannot.
    signs, rules_out : tuple of str
        Regular expressions of lines of a log that show it, and that show that it is not so.
    """

    title: str
    check: str
    changes: Callable[[Situation], Sequence[Change]]
    signs: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()


def causes() -> Iterator[tuple[str, Cause]]:
    """Every cause, by the name of its file."""
    for name in plugins.discover(PACKAGE):
        yield name.replace("_", "-"), plugins.load(PACKAGE, name).CAUSE


def slower(text: str, selector: str) -> tuple[Change, ...]:
    """Links at a half, and at a quarter, of their bandwidth."""
    shares = {"a half": "0.5x", "a quarter": "0.25x"}
    return tuple(
        Change(f"{text} at {share} of its bandwidth", {f"{selector}.bandwidth": factor})
        for share, factor in shares.items()
    )
