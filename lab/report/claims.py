"""What sources say and what prestep says: `python -m lab.report.claims` writes lab/notes/what-the-sources-say.md.

`lab/cases/claims/*.toml` has a file for each subject: claims of books and articles, the command that answers
each, and the source's figure. A measurement must be met within `TOLERANCE`. What is an ideal of its author, or is
contradicted by somebody's measurement, says why prestep differs. Exit code 1: a measurement is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from lab import CASES
from prestep.cli import main as prestep
from prestep.sim import files, schema
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.units import format_bandwidth, format_duration
from prestep.validation.report.interface import Table
from prestep.validation.report.report import markdown_table

FOLDER = CASES / "claims"
PAGE = Path(__file__).parents[1] / "notes" / "what-the-sources-say.md"
TOLERANCE = 0.15
#: What a claim is: somebody's measurement; a figure that no run has reached, or a rule of thumb; a figure that another
#: measurement contradicts; or a statement that only has to be answerable.
#: An input is a measurement that a constant was read from; what is unsaid has no command, and a reason.
KINDS = ("measurement", "input", "ideal", "contradicted", "question", "unsaid")
BINDING = ("measurement", "input")
COMPARISONS = ("near", "least", "most")
UNITS = ("s", "B/s", "x", "")
HEAD = ("claim", "source", "its figure", "prestep", "difference", "why")
NEEDED = ("source", "says", "kind")


@dataclass(frozen=True)
class Claim:
    """One statement of a source.

    Attributes
    ----------
    command : str
        Arguments of `prestep`; scenario files lie beside the table of claims.
    value : str
        Where the answer is in what is printed: keys of its JSON with dots between them, or `text` and a pattern.
    over : str
        A second command, by whose value the first one's is divided; empty: none.
    figure : float or None
        What the source says, in SI units; None: it gives no number.
    compare : str
        Whether the answer must be near the figure, at least it, or at most it.
    why : str
        Why prestep differs, or how it comes to the same.
    """

    id: str
    source: str
    says: str
    kind: str
    command: str = ""
    value: str = ""
    over: str = ""
    figure: float | None = None
    unit: str = ""
    compare: str = "near"
    why: str = ""


@dataclass(frozen=True)
class Answer:
    """What prestep says to a claim."""

    claim: Claim
    value: float | None

    @property
    def difference(self) -> float | None:
        """Share of the source's figure by which the answer is off."""
        figure, value = self.claim.figure, self.value
        return value / figure - 1 if figure and value is not None else None

    @property
    def good(self) -> bool:
        """Whether the answer is what a measurement says; an ideal or a question binds nobody."""
        off = self.difference
        if self.claim.kind not in BINDING or off is None:
            return True
        if self.claim.compare == "near":
            return abs(off) <= TOLERANCE
        return off >= 0 if self.claim.compare == "least" else off <= 0


_KEYS: dict[str, schema.Schema] = {
    **dict.fromkeys(
        ("source", "says", "command", "value", "over", "why"), schema.Text()
    ),
    "kind": schema.Text(KINDS),
    "compare": schema.Text(COMPARISONS),
    "unit": schema.Text(UNITS[:-1]),
    "figure": schema.Number(),
}


def claims_of(path: Path) -> list[Claim]:
    """The claims of one table.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    rows = schema.rows(path, schema.Table(_KEYS, NEEDED))
    claims = [Claim(name, **row) for name, row in rows.items()]
    mistakes = [
        Mistake(str(path), f"{claim.id}.{key}", "nothing", expected)
        for claim in claims
        for key, expected in _absent(claim)
    ]
    if mistakes:
        raise InputError(mistakes)
    return claims


def _absent(claim: Claim) -> Iterator[tuple[str, str]]:
    """Keys that a claim of its kind needs and has not, and what they are for."""
    if claim.kind in ("ideal", "contradicted", "unsaid") and not claim.why:
        yield "why", "why prestep differs, or cannot say"
    if claim.kind != "unsaid" and not (claim.command and claim.value):
        yield "command", "a command, and where its answer is (value)"


def tables() -> list[Path]:
    """Files of claims, one for each subject."""
    return sorted(FOLDER.glob("*.toml"))


def answer(claim: Claim) -> Answer:
    """Runs the command of a claim.

    Raises
    ------
    PrestepError
        If a command fails, or does not print the value.
    """
    if claim.kind == "unsaid":
        return Answer(claim, None)
    value = _printed(claim, claim.command)
    if claim.over:
        value /= _printed(claim, claim.over)
    return Answer(claim, value)


def _printed(claim: Claim, command: str) -> float:
    """The value in what a command prints."""
    arguments = [
        str(FOLDER / "scenarios" / word) if word.endswith(".toml") else word
        for word in shlex.split(command)
    ]
    _, text, pattern = claim.value.rpartition("text ")
    result = CliRunner().invoke(prestep, arguments if text else [*arguments, "--json"])
    if result.exit_code:
        raise PrestepError(f"{claim.id}: prestep {command}: {result.output.strip()}")
    printed = result.stdout
    return _matched(claim, printed, pattern) if text else _keyed(claim, printed)


def _matched(claim: Claim, printed: str, pattern: str) -> float:
    """The first number that a pattern finds; without one, how often the pattern is there."""
    hits = re.findall(pattern, printed)
    if re.compile(pattern).groups == 0:
        return float(len(hits))
    if not hits:
        raise PrestepError(f"{claim.id}: no {pattern} in what is printed:\n{printed}")
    return float(hits[0])


def _keyed(claim: Claim, printed: str) -> float:
    """The number under keys with dots between them; a missing key of a breakdown is 0."""
    at: Any = json.loads(printed)
    *path, last = claim.value.split(".")
    for key in path:
        at = at[int(key)] if isinstance(at, list) else at[key]
    return float(at[int(last)] if isinstance(at, list) else at.get(last, 0.0))


def page(subjects: Sequence[tuple[str, Sequence[Answer]]]) -> str:
    """The page as Markdown."""
    sections = [
        f"## {name.replace('-', ' ').capitalize()}\n\n"
        + markdown_table(Table(_counted(answers), HEAD, list(_rows(answers))))
        for name, answers in subjects
    ]
    return "\n".join([INTRODUCTION, *sections])


def _counted(answers: Sequence[Answer]) -> str:
    of_kind = [one for one in answers if one.claim.kind == "measurement"]
    met = sum(one.good for one in of_kind)
    inputs = sum(one.claim.kind == "input" for one in answers)
    among = f", {inputs} of them inputs" if inputs else ""
    return f"{len(answers)} claims{among}; of {len(of_kind)} measurements {met} are met"


def _rows(answers: Sequence[Answer]) -> Iterator[tuple[str, ...]]:
    for one in answers:
        claim, off = one.claim, one.difference
        figure = "" if claim.figure is None else _quantity(claim.figure, claim.unit)
        bound = {"near": "", "least": "at least ", "most": "at most "}[claim.compare]
        difference = "" if off is None or claim.compare != "near" else f"{off:+.0%}"
        kind = "" if claim.kind in ("measurement", "question") else f" ({claim.kind})"
        kind = kind.replace("unsaid", "cannot be said")
        yield (
            claim.says,
            claim.source,
            f"{bound}{figure}{kind}",
            "" if one.value is None else _quantity(one.value, claim.unit),
            difference if one.good else f"{difference} MISSED",
            claim.why,
        )


def _quantity(value: float, unit: str) -> str:
    if unit == "s":
        return format_duration(value)
    if unit == "B/s":
        return format_bandwidth(value)
    return f"{value:.4g}{unit and ' ' + unit}"


INTRODUCTION = f"""# What the sources say

Claims of books and articles about the same things that prestep predicts. Each was answered by a command;
`python -m lab.report.claims` runs them all and writes this page, so edit nothing here but
`lab/cases/claims/`. A measurement must be met within {TOLERANCE:.0%}. An *ideal* is a figure that nobody ran, a
*contradicted* one differs from another measurement; both say why prestep answers otherwise. What prestep's own
constants were read from is called an *input*, and proves nothing. What *cannot be said* has its reason.

Sources: *playbook*: Hugging Face, The Smol Training Playbook; *scaling book*: How to Scale Your Model, its chapter on
GPUs; *AI systems*: AI Systems Performance Engineering, its chapter on distributed communication.
"""


def run(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or answers the claims that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claims", nargs="*", help="only these, printed; default: all")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    wanted = parser.parse_args(arguments)
    subjects = [
        (path.stem, [answer(claim) for claim in _chosen(path, wanted.claims)])
        for path in tables()
    ]
    if wanted.claims:
        print(page(subjects))
    else:
        files.write_text(wanted.output, page(subjects))
    missed = [one for _, answers in subjects for one in answers if not one.good]
    for one in missed:
        print(f"missed: {one.claim.id}", file=sys.stderr)
    return bool(missed)


def _chosen(path: Path, names: Sequence[str]) -> list[Claim]:
    return [one for one in claims_of(path) if not names or one.id in names]


if __name__ == "__main__":
    sys.exit(run())
