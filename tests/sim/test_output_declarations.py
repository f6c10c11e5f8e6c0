"""Outputs that a TOML file declares are those that the words of `prestep.sim.outputs.words` make."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from prestep.sim.analysis.cost import Cost
from prestep.sim.outputs import words
from prestep.sim.outputs.declarations import schemas_beside

FILE = """
several = "step|steps"
steps = "list of step: in their order"

[titles]
several = "What a command prints."

[step]
is = "table: a step"
time = "number: s <- took"
low = "null or number: s"
days = "maybe whole <- job.days"
shares = "names of names of number (0 to 1): rank -> phase -> share"
"first, last" = "seconds"
good = "flag <- is_good"
cost.is = "null or Cost: what it costs"
cost.step = "text"
parts.is = "list of table (a part): the largest first"
parts.name = "text"

[longer]
is = "step"
beyond = "text"
"""
STEP = words.table(
    "a step",
    time=words.number("s", of="took"),
    low=words.or_null(words.number("s")),
    days=words.maybe(words.whole(of="job.days")),
    shares=words.named(words.named(words.number("0 to 1")), "rank -> phase -> share"),
    first=words.SECONDS,
    last=words.SECONDS,
    good=words.flag(),
    cost=words.or_null(words.of_class(Cost, "what it costs", step=words.text())),
    parts=words.items(words.table("a part", name=words.text()), "the largest first"),
)


def declared(folder: Path, text: str) -> dict[str, words.Schema]:
    (folder / "output.toml").write_text(text)
    return schemas_beside(
        str(folder / "output.py"), Cost, is_good=lambda step: step.took < 1
    )


def test_declarations_are_the_words_in_one_line(tmp_path: Path) -> None:
    schemas = declared(tmp_path, FILE)
    assert schemas["step"] == STEP
    assert schemas["longer"] == words.more(STEP, beyond=words.text())
    several = words.either("", STEP, words.items(STEP, "in their order"))
    assert schemas["several"] == words.titled("What a command prints.", several)


def test_a_declared_table_writes_what_it_describes(tmp_path: Path) -> None:
    """Values come from the attribute, or the function, that the arrow names; a key that is there at times is left out."""
    step = SimpleNamespace(took=0.5, low=None, first=1, last=2, shares={0: {"x": 1.0}})
    step.job, step.cost = SimpleNamespace(days=None), None
    step.parts = [SimpleNamespace(name="a")]
    assert declared(tmp_path, FILE)["step"].row(step) == {
        "time": 0.5,
        "low": None,
        "shares": {"0": {"x": 1.0}},
        "first": 1,
        "last": 2,
        "good": True,
        "cost": None,
        "parts": [{"name": "a"}],
    }


@pytest.mark.parametrize("line", ["numbr", "number (of) (what)", "list off number"])
def test_a_mistake_in_a_declaration_is_told(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="declar"):
        declared(tmp_path, f'key = "{line}"')
