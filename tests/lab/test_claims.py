"""Claims of sources: the table, the runner and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.report import claims
from lab.report.claims import Answer, Claim
from prestep.sim.errors import InputError, PrestepError
from tests.conftest import MadeOnce

ALL = [one for path in claims.tables() for one in claims.claims_of(path)]


def claim(
    figure: float = 2.0, kind: str = "measurement", compare: str = "near"
) -> Claim:
    return Claim(
        "id",
        "a book",
        "says so",
        kind,
        "collective",
        "0.time",
        figure=figure,
        compare=compare,
    )


#: Measurements that prestep does not meet; the page says why.
MISSED = ("p5-send-latency",)


def answer(one: Claim, made_once: MadeOnce) -> Answer:
    """The answer to a claim, for its own test and for the page."""
    made: Answer = made_once(f"claim {one.id}", lambda: claims.answer(one))
    return made


def marked(one: Claim) -> object:
    """A claim as a parameter; one that is known to be missed has to be missed."""
    missed = pytest.mark.xfail(strict=True, reason=one.why)
    return pytest.param(one, id=one.id, marks=[missed] if one.id in MISSED else [])


@pytest.mark.slow
@pytest.mark.parametrize("one", [marked(one) for one in ALL])
def test_prestep_answers_every_claim_and_meets_every_measurement(
    one: Claim, made_once: MadeOnce
) -> None:
    """A measurement of a source is met within 15 %; whatever else a source says has an answer."""
    assert answer(one, made_once).good


@pytest.mark.slow
def test_the_page_is_what_the_command_writes(made_once: MadeOnce) -> None:
    """lab/notes/what-the-sources-say.md has every claim, with the answer of today."""
    subjects = [
        (path.stem, [answer(one, made_once) for one in claims.claims_of(path)])
        for path in claims.tables()
    ]
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(subjects)


def test_the_page_names_every_claim() -> None:
    """A claim that is added or reworded is on the page, under its own words."""
    text = claims.PAGE.read_text(encoding="utf-8")
    assert [one.id for one in ALL if one.says not in text] == []


def test_ids_are_unique_and_differences_are_explained() -> None:
    """No two claims share a name; an ideal or a contradicted figure says why prestep differs."""
    assert len({one.id for one in ALL}) == len(ALL)
    assert all(one.why for one in ALL if one.kind in ("ideal", "contradicted"))


@pytest.mark.parametrize(
    ("value", "compare", "good"),
    [
        (2.3, "near", True),
        (1.6, "near", False),
        (2.1, "least", True),
        (1.9, "least", False),
        (1.9, "most", True),
        (2.1, "most", False),
    ],
)
def test_a_measurement_is_met_within_tolerance(
    value: float, compare: str, good: bool
) -> None:
    """Near means within 15 % of the figure; a bound is kept exactly; an ideal binds nobody."""
    assert Answer(claim(compare=compare), value).good is good
    assert Answer(claim(kind="ideal", compare=compare), value).good


def test_few_claims_cannot_be_said() -> None:
    """At most five statements have no command, each with a reason, and the page says so."""
    unsaid = [one for one in ALL if one.kind == "unsaid"]
    assert len(unsaid) <= 5 and all(one.why for one in unsaid)
    silent = claims.page([("a-subject", [Answer(claim(kind="unsaid"), None)])])
    assert "cannot be said" in silent


def test_a_miss_stands_on_the_page() -> None:
    """Who reads the page sees which measurement is missed."""
    assert "MISSED" in claims.page([("a-subject", [Answer(claim(), 1.0)])])
    assert "MISSED" not in claims.page([("a-subject", [Answer(claim(), 2.0)])])


def test_a_claim_without_a_reason_is_refused(tmp_path: Path) -> None:
    """The table is read strictly: an ideal without a reason, or an unknown key, is a mistake that says its place."""
    table = tmp_path / "claims.toml"
    row = 'source = "a"\nsays = "b"\ncommand = "c"\nvalue = "0.time"\n'
    table.write_text(f'[one]\n{row}kind = "ideal"\n', encoding="utf-8")
    with pytest.raises(InputError, match="why"):
        claims.claims_of(table)
    table.write_text(f'[one]\n{row}kind = "rumour"\n', encoding="utf-8")
    with pytest.raises(InputError, match="rumour"):
        claims.claims_of(table)


def test_a_command_that_fails_names_its_claim() -> None:
    """A claim whose command prestep refuses is no answer."""
    bad = Claim("lost", "a", "b", "question", "collective --cluster nowhere", "0.time")
    with pytest.raises(PrestepError, match="lost"):
        claims.answer(bad)
