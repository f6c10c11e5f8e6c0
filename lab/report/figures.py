"""Figures of README.md and docs/accuracy.md: `python -m lab.report.figures` runs the sets and writes them there.

README gets what its command prints and the accuracy in a few lines;
docs/accuracy.md gets the accuracy by family, and lab/notes/accuracy.md every row.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from lab.sets.steps import Predict, Report
from prestep import cli
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.predict import predict
from prestep.sim.spec.sections import Scenario
from prestep.validation.report.report import markdown
from prestep.validation.report.summary import Errors
from prestep.validation.sets.sets import kind_of
from prestep.validation.sets.sources import module_of

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PRINTED = "<!-- printed: begin -->", "<!-- printed: end -->"
#: README's question.
SHOWN = (
    "whatif examples/pretrain_llama3_70b.sh --cluster examples/clusters/hall.toml --hosts 32",
    "--set placement.by=scattered --against spine.bandwidth=2x --against placement.by=leaf --against dgx-b200",
)
SETS = (
    "h200",
    "h200-unseen",
    "h200-preregistered",
    "h200-preregistered-2",
    "h200-preregistered-3",
    "h200-straggler",
    "h200-whatif",
    "leafspine",
    "h100",
    "h100-preregistered",
)
#: README's lines: the set, and whether only rows that no constant was taken from.
HEADLINE = {
    "h200": "one host with 4 H200",
    "h200-unseen": "other models, layouts and sizes, measured later",
    "h200-preregistered": "predicted before it was measured",
    "h200-preregistered-2": "predicted before it was measured, on a host with slow processors",
    "leafspine": "an emulated leaf-spine network, two jobs, a slow rank",
    "h100": "one H100, whose host alone was calibrated",
    "h100-preregistered": "predicted before it was measured, on another H100",
}
ROOT = Path(__file__).parents[2]
README, ACCURACY = ROOT / "README.md", ROOT / "docs" / "accuracy.md"
ROWS = ROOT / "lab" / "notes" / "accuracy.md"


def on_bundled_host(scenario: Scenario) -> Prediction:
    """The prediction of a row's scenario without the host's speed that came with the row."""
    return predict(
        replace(scenario, cluster=replace(scenario.cluster, host_factor=None))
    )


def validate_set(name: str, jobs: int = 1, predict: Predict | None = None) -> Report:
    """The report of a set of steps, or of steps with a change."""
    module = module_of(kind_of(name))
    report: Report = module.validate_set(name, jobs=jobs, predict=predict)
    return report


def reports_of(
    names: Sequence[str], jobs: int = 1
) -> tuple[list[Report], dict[str, Report]]:
    """Reports of the sets; and, of those whose rows say how fast their host was, the same had they not."""
    reports = [validate_set(name, jobs=jobs) for name in names]
    texts = [
        r.name
        for r in reports
        if any("host_factor" in case.row.cluster for case in r.cases)
    ]
    return reports, {
        name: validate_set(name, jobs=jobs, predict=on_bundled_host) for name in texts
    }


def summary(
    reports: Sequence[Report], untold: Mapping[str, Report] | None = None
) -> str:
    """One table: every set, and the families of the first; checks that fail are listed under it.

    `untold` has the sets once more, predicted without the speed of the host that came with their rows.
    """
    lines = [
        "| rows | n | mean error | bias | worst | peak memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for report in reports:
        title = f"**{report.name}**: {report.title[:1].lower()}{report.title[1:]}"
        memory = f"{report.memory.mape:.1%}" if report.memory.n else ""
        lines.append(f"{_line(title, report.select())} {memory} |")
        more: list[tuple[str, Errors]] = []
        if report is reports[0]:
            more += [(f"of these {n}", one) for n, one in report.families.items()]
            no_constant = report.select(fitted=False)
            more.append(("of these no constant was taken from", no_constant))
        if untold and report.name in untold:
            bundled = untold[report.name].select()
            more.append(("with the bundled `host_factor`", bundled))
        if report.select(noisy=True).n:
            more.append(("noisy ones", report.select(noisy=True)))
        lines += [f"{_line(name, errors)}  |" for name, errors in more]
    return "\n".join(lines) + "\n\n" + _misses(reports)


def headline(reports: Sequence[Report]) -> str:
    """A line for each of the sets that README shows; every failed check is listed under them."""
    lines = [
        "| steps measured on | n | mean error | bias | worst |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        _line(f"{HEADLINE[r.name]} ({r.name})", r.select(fitted=False))
        for r in reports
        if r.name in HEADLINE
    ]
    return "\n".join(lines) + "\n\n" + _misses(reports)


def whole(reports: Sequence[Report]) -> str:
    """Every set with every case."""
    return "\n".join(
        markdown(report).replace("\n## ", "\n### ").replace("# ", "## ", 1)
        for report in reports
    )


def printed() -> str:
    """README's question, and what the command prints up to the intervals."""
    with contextlib.chdir(ROOT):
        text = CliRunner().invoke(cli.main, " ".join(SHOWN).split()).stdout
    page = "\n\n".join(text.split("\n\n")[:2])
    command = " \\\n  ".join(
        (f"prestep {SHOWN[0]}", *SHOWN[1:], "--report answer.html")
    )
    return f"```sh\n{command}\n```\n\n```text\n{page}\n...\n```"


def written(text: str, figures: str, markers: tuple[str, str] = (BEGIN, END)) -> str:
    """`text` with `figures` between the markers.

    Raises
    ------
    ValueError
        If the markers are not there, once each and in order.
    """
    begin, end = markers
    if (
        text.count(begin) != 1
        or text.count(end) != 1
        or text.index(begin) > text.index(end)
    ):
        raise ValueError(f"expected one {begin} and after it one {end}")
    return f"{text.partition(begin)[0]}{begin}\n{figures.strip()}\n{end}{text.partition(end)[2]}"


def _line(name: str, errors: Errors) -> str:
    worst = f"{errors.worst:.1%} ({errors.worst_id})"
    return f"| {name} | {errors.n} | {errors.mape:.1%} | {errors.bias:+.1%} | {worst} |"


def _misses(reports: Sequence[Report]) -> str:
    failed = [
        (report.name, check)
        for report in reports
        for check in report.checks
        if not check.passed
    ]
    if not failed:
        return "All checks of these sets pass."
    told = [
        f"{name}, {check.name}: {check.value:.1%} (limit {check.limit:.1%})"
        for name, check in failed
    ]
    return "Checks that fail: " + "; ".join(told) + "."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    options = parser.parse_args(arguments)
    reports, untold = reports_of(SETS, options.jobs)
    readme = written(README.read_text(encoding="utf-8"), printed(), PRINTED)
    README.write_text(written(readme, headline(reports)), encoding="utf-8")
    for page, part in ((ACCURACY, summary(reports, untold)), (ROWS, whole(reports))):
        page.write_text(
            written(page.read_text(encoding="utf-8"), part), encoding="utf-8"
        )


if __name__ == "__main__":
    # By its name: worker processes look for `on_bundled_host` in the module, not in what was started.
    importlib.import_module("lab.report.figures").main()
