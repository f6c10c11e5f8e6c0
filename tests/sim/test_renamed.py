"""A key that got another name: the old one is read, says so, and is deprecated in the schema."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner

from prestep.sim import renamed, strict
from prestep.sim.commands._shared import explained
from prestep.sim.spec import grammar


@dataclass(frozen=True)
class Section:
    """A section with a renamed key."""

    width: int = strict.key(1, "how wide", low=1, was=("breadth", "w"))
    height: int = strict.key(2, "how high")


def built(table: dict[str, Any], **origins: str) -> tuple[Section, list[str]]:
    section, mistakes = strict.build(Section, table, "a.toml", "box", origins)
    return section, [*map(str, mistakes)]


@pytest.mark.parametrize("old", ["breadth", "w"])
def test_an_old_name_is_read_and_told(old: str) -> None:
    """The value counts; the warning has the place, the old name and the new."""
    with pytest.warns(renamed.Renamed) as told:
        section, mistakes = built({old: 7, "height": 3})
    assert section == Section(7, 3) and not mistakes
    assert f"a.toml: box.{old} is called box.width now" in str(told[0].message)


def test_the_new_name_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert built({"width": 7}) == (Section(7), [])


def test_both_names_at_once_are_a_mistake() -> None:
    """Nobody can say which one was meant."""
    _, mistakes = built({"w": 7, "width": 8})
    assert (
        len(mistakes) == 1
        and "a.toml: box.w: found box.width beside it" in (mistakes[0])
    )


def test_a_wrong_value_is_told_under_the_name_that_was_written() -> None:
    """From where it came."""
    with pytest.warns(renamed.Renamed):
        _, mistakes = built({"w": 0}, **{"box.w": "--set"})
    assert mistakes == ["--set: box.w: found 0, expected at least 1"]


def test_the_schema_has_old_names_as_deprecated() -> None:
    """An editor strikes them out; a validator lets them pass."""
    properties = grammar._section_schema(Section)["properties"]
    assert [name for name, one in properties.items() if one.get("deprecated")] == [
        "breadth",
        "w",
    ]
    assert properties["w"] == properties["width"] | {"deprecated": True}


def test_a_command_says_it_on_stderr() -> None:
    """A line, without Python's file and line number; stdout stays JSON; other warnings are Python's."""

    @click.command()
    @explained
    def command() -> None:
        section, _ = built({"w": 4})
        click.echo(json.dumps({"width": section.width}))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        made = CliRunner().invoke(command, [])
        assert warnings.showwarning is before
    assert json.loads(made.stdout) == {"width": 4}
    assert made.stderr == (
        "a.toml: box.w is called box.width now; the old name will go\n"
    )
