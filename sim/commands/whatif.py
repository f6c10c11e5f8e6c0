"""Predict SCENARIO as it is and with changes, side by side; or find out which element matters most."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.errors import InputError, unknown
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim import sheets
    from prestep.sim.analysis import cost
    from prestep.sim.exporters import _run_files as _report
    from prestep.sim.spec import load, openers, sections
    from prestep.sim.studies import elements, tornado, whatif, whatif_page
    from prestep.sim.studies import variants as study
    from prestep.sim.tools import catalog

GROUP = "Predict"
Table = dict[str, Any]


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep whatif llama8b-fsdp4 --set nvlink.bandwidth=2x\n"
    "  prestep whatif llama1b-ddp4 --each link-kind\n"
    "  prestep whatif job.toml --against nvlink.bandwidth=2x --against dgx-b200\n",
)
@click.argument("scenario")
@shared.changes
@click.option(
    "--against",
    multiple=True,
    metavar="[NAME|FILE][,KEY=VALUE...]",
    help="A variant: another cluster, or another scenario, recipe or capture, and changes. May be repeated; "
    "--set then changes the base.",
)
@click.option(
    "--each",
    multiple=True,
    metavar="WHAT",
    help="Try each link-kind, tier, latency, gpu, rank, host, host-clock, link; all.",
)
@click.option(
    "--factors", default="0.5,2", show_default=True, help="What --each multiplies by."
)
@click.option(
    "--most",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Of ranks, hosts or links that differ, --each tries so many.",
)
@shared.file_option(
    "--report", text="Write the answer: one page (.html) that works offline, or .md."
)
@shared.priced
@shared.as_json
@shared.of_scenario
@shared.explained
def command(
    scenario: str,
    overrides: tuple[str, ...],
    against: tuple[str, ...],
    each: tuple[str, ...],
    factors: str,
    most: int,
    report: Path | None,
    json_: bool,
    **asked: Any,
) -> None:
    prices = shared.prices_of(**asked)
    _check(each, against, report, prices)
    if each:
        _tornado(scenario, overrides, each, factors, most, report, json_)
    elif against:
        _variants(scenario, overrides, against, prices, report, json_)
    else:
        _side_by_side(scenario, overrides, report, json_)


def _check(
    each: Sequence[str], against: Sequence[str], report: Path | None, prices: object
) -> None:
    """Refuses options that do not go together."""
    if each and against:
        raise shared.misused("--against", "--against with --each", "one of them")
    if prices and not against:
        raise shared.misused(
            "--price-per-gpu-hour", "prices alone", "--against beside them"
        )
    if report is not None:
        sheets.check_suffix(report)


def _variants(
    scenario: str,
    overrides: Sequence[str],
    against: Sequence[str],
    prices: cost.Prices | None,
    report: Path | None,
    json_: bool,
) -> None:
    """The run and each of its variants, all of them with the overrides."""
    path = catalog.find_scenario(scenario)
    asked = [study.parse_against(text, path) for text in against]
    base = load.load_scenario(path, overrides)
    variants = study.variants_of(base, asked, overrides, prices)
    for note in dict.fromkeys(note for one in variants for note in one.scenario.notes):
        shared.talk(note)
    if report is not None:
        shared.talk(f"wrote {_report.write_variants(variants, report)}")
    table = [one.to_dict() for one in variants]
    shared.show_result(
        json_,
        lambda: {"base": table[0], "variants": table[1:]},
        lambda: whatif_page.variants_page(variants),
    )


def _side_by_side(
    scenario: str,
    overrides: Sequence[str],
    report: Path | None,
    json_: bool,
) -> None:
    """The scenario as it is, and with changes."""
    path = catalog.find_scenario(scenario)
    # A recorded program, or a recipe, has no cluster: the named one is no change, but that of both sides.
    tables = openers.tables_of(path)
    base = load.load_scenario(path, openers.unchanged(tables, overrides))
    if not overrides:
        hint = "--set nvlink.bandwidth=2x, --against dgx-b200, or --each link-kind"
        expected = "--set, --against or --each"
        raise shared.misused("--set", "nothing to change", expected, hint)
    changed = load.load_scenario(path, overrides)
    for note in dict.fromkeys((*base.notes, *changed.notes)):
        shared.talk(note)
    if report is None:
        table = _compared(base, changed, overrides)
    else:
        name = ", ".join(overrides)
        asked = study.Asked(name, path, tuple(overrides))
        variants = study.variants_of(base, [asked])
        shared.talk(f"wrote {_report.write_variants(variants, report)}")
        table = variants[1].comparison or {}
    shared.show_result(json_, lambda: table, lambda: whatif_page.comparison_page(table))


def _compared(
    base: sections.Scenario, changed: sections.Scenario, overrides: Sequence[str]
) -> Table:
    """Both steps and what differs; what is no training step, and can be compared, by its phases."""
    name, other = base.other_run or ("", None)
    if other is None or not other.COMPARABLE:
        return whatif.compared(base, changed, overrides)
    predict = sections.run_of(name).predict
    return {
        **whatif.compare(predict(base), predict(changed)),
        "difference_interval": None,
        "changed_kinds": [],
        "same_operations": False,
        "communication_alone": {"base": 0.0, "changed": 0.0},
        "because": "",
        "same_places": False,
        "choices": [],
    }


def _tornado(
    scenario: str,
    overrides: Sequence[str],
    each: Sequence[str],
    factors: str,
    most: int,
    report: Path | None,
    json_: bool,
) -> None:
    """The scenario, with its changes if there are any, and every element faster and slower."""
    words = [word.strip() for text in each for word in text.split(",")]
    wrong = [word for word in words if word not in elements.EACH]
    if wrong:
        raise InputError(
            unknown("command line", "--each", word, elements.EACH) for word in wrong
        )
    loaded = load.load_scenario(catalog.find_scenario(scenario), overrides)
    table = tornado.tornado(loaded, words, _factors(factors), most=most)
    if report is not None:
        _report.write_tornado(table, report, Path(loaded.where).name)
        shared.talk(f"wrote {report}")
    if json_:
        shared.echo_json(table)
    else:
        columns = shutil.get_terminal_size().columns
        click.echo(whatif_page.tornado_page(table, columns))


def _factors(text: str) -> list[float]:
    """`0.5,2` or `0.5x, 2x`."""
    return [_factor(piece.strip().removesuffix("x"), text) for piece in text.split(",")]


def _factor(piece: str, text: str) -> float:
    try:
        number = float(piece)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise shared.misused("--factors", f'"{text}"', "numbers above 0 such as 0.5,2")
    return number
