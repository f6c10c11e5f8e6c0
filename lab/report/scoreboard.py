"""The scoreboard of published steps: `python -m lab.report.scoreboard RESULT.json` writes docs/scoreboard.md.

RESULT.json is what `prestep validate published mlperf --json` printed. Our error by source, on rows that no constant
was taken from, stands beside what peers reach there (cases/published/peers.toml) and beside llm-analysis on the same
rows (`lab.bench.peer_llm_analysis`); a picture shows predicted over measured times by source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lab.bench import peer_llm_analysis as peer
from lab.report.cells import PEER_STEPS
from lab.report.scoreboard_sources import Case, Source, published_sets, sources
from prestep.sim import files
from prestep.sim.errors import PrestepError
from prestep.validation.report.interface import Table
from prestep.validation.report.report import markdown_table
from prestep.validation.report.summary import rank_correlation
from prestep.validation.sets.sets import folder_of

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs" / "scoreboard.md", ROOT / "docs" / "scoreboard.svg"
HEAD = (
    "source",
    "rows",
    "prestep",
    "bias",
    "rank",
    "best peer as it comes",
    "llm-analysis",
    "at half peak",
    "its authors",
)


def page(sources: Sequence[Source], picture: str) -> str:
    """The scoreboard as Markdown."""
    cases = [case for source in sources for case in source.cases]
    every = Source("all", tuple(cases))
    steps = Source("all measured steps", tuple(c for c in cases if not c.computed))
    rows = [_row(source) for source in (*sources, every, steps)]
    return "\n".join(
        [
            INTRODUCTION,
            markdown_table(Table("Mean absolute error by source", HEAD, rows)),
            "",
            f"![predicted over measured]({picture})",
            "",
            NOTES,
            "",
            "Authors of the measurements or of their own tools report:",
            "",
            *(_claims(sources) or ["* nothing on these sources."]),
            "",
            "The judged rows that are farthest off:",
            "",
            *(_worst(sources) or ["* none."]),
            "",
        ]
    )


def _claims(sources: Sequence[Source]) -> list[str]:
    return [
        f"* {s.name}: {c['peer']} {_percent(c['error'])} ({c['cite']})."
        for s in sources
        for c in s.claims
    ]


def _worst(sources: Sequence[Source], most: int = 5) -> list[str]:
    """The judged rows that are farthest off, a line each."""
    errors = [
        (case.predicted / case.measured - 1, source.name, case.id)
        for source in sources
        for case in source.judged
    ]
    errors.sort(key=lambda item: -abs(item[0]))
    return [f"* {name}, {id_}: {error:+.1%}" for error, name, id_ in errors[:most]]


INTRODUCTION = """# Scoreboard

Training steps that others measured and published, and who predicts them how well. Written by
`python -m lab.report.scoreboard RESULT.json` from what `prestep validate published mlperf --json`
printed; edit nothing here.
"""
NOTES = f"""* **rows**: those that are judged, of all that are predicted. No constant was taken from
  their groups, and their configuration is complete. Constants were taken from other rows of the same source, most of
  all of vTrain's on one node: [what rests on that](published.md#what-rests-on-fits-per-source). These are not measured
  steps: runs that differ in layers, microbatches or replicas only are exact sums, to the microsecond printed.
* **prestep**, **bias**, **rank**: mean absolute error, mean signed error, and Spearman's rank correlation of times,
  over all judged rows of the source.
* **best peer as it comes**: the least mean error of the simulators and calculators that were run on the same source
  without fitting them to it, over all of its rows. Ours are a part of those rows, so the two compare roughly.
* **llm-analysis**: release 0.2.2 from PyPI on the same judged rows (in brackets: on how many; it cannot express
  context parallelism, fp8 and GPUs such as H800, B200 and GB200). As it comes it lets arithmetic reach the
  datasheet's peak; its source says that training reaches about half, which is the next column. Run by
  `python -m lab.bench.peer_llm_analysis`; its predictions are in
  `lab/cases/published/{PEER_STEPS.name}`."""


def _row(source: Source) -> tuple[str, ...]:
    """The cells of a source."""
    judged = f"{source.ours.n} of {len(source.cases)}"
    peers = [source.of_peer(name) for name in peer.EFFICIENCIES]
    cells = [f"{_percent(e.mape)} ({e.n})" if e.n else "" for e in peers]
    box = "" if source.box is None else source.note or _percent(source.box)
    if not source.ours.n:
        return source.name, judged, "", "", "", box, *cells, ""
    box += f" (rank {source.rank})" if source.rank else ""
    claims = ", ".join(f"{c['peer']} {_percent(c['error'])}" for c in source.claims)
    return source.name, judged, *_figures(source), box, *cells, claims


def _figures(source: Source) -> tuple[str, str, str]:
    """Mean error, bias and rank correlation over the judged rows."""
    pairs = [(case.measured, case.predicted) for case in source.judged]
    rank = rank_correlation(*map(list, zip(*pairs, strict=True)))
    bias = f"{source.ours.bias:+.1%}".replace("%", " %")
    return _percent(source.ours.mape), bias, "" if rank is None else f"{rank:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def write_picture(sources: Sequence[Source], path: Path) -> None:
    """Predicted over measured seconds, a panel for each source; bands of 10 %. The suffix says the format."""
    columns = min(4, max(1, len(sources)))
    lines = -(-len(sources) // columns)
    figure = Figure(figsize=(3.1 * columns, 3.1 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, source in zip(panels, sources, strict=False):
        _panel(panel, source)
    for panel in panels[len(sources) :]:
        panel.set_visible(False)
    if sources:
        marks = panels[0].get_legend_handles_labels()
        figure.legend(*marks, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("measured step, s")
    figure.supylabel("predicted step, s")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Writes a picture; the same cases give the same bytes: no dates, no random ids."""
    kind = path.suffix.lstrip(".") or "svg"
    metadata = {"Date": None} if kind == "svg" else {}
    with (
        matplotlib.rc_context({"svg.hashsalt": "scoreboard"}),
        files.replacing(path) as beside,
        beside.open("wb") as file,
    ):
        figure.savefig(file, dpi=110, format=kind, metadata=metadata)


def _panel(panel: Any, source: Source) -> None:
    """Predicted over measured steps of one source."""
    times = [time for case in source.cases for time in (case.measured, case.predicted)]
    ends = [min(times) / 1.3, max(times) * 1.3]
    _diagonal(panel, ends)
    fitted = [case for case in source.cases if case.fitted]
    incomplete = [case for case in source.cases if case.assumed and not case.fitted]
    _dots(panel, fitted, "#BBBBBB", "for fitting")
    _dots(panel, incomplete, "#E69F00", "incomplete")
    _dots(panel, source.judged, "#0072B2", "judged")
    panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    error = f": {_percent(source.ours.mape)}" if source.ours.n else ""
    panel.set_title(f"{source.name}{error}", fontsize=9)
    _plain_ticks(panel)


def _diagonal(panel: Any, ends: list[float]) -> None:
    """Where predicted is measured, and the band about it."""
    low, high = ([factor * end for end in ends] for factor in (0.9, 1.1))
    panel.fill_between(ends, low, high, color="#DCDCDC", linewidth=0)
    panel.plot(ends, ends, color="grey", linewidth=0.8)


def _plain_ticks(panel: Any) -> None:
    """Both axes with the same few numbers, written out."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    panel.tick_params(labelsize=7)
    panel.set_aspect("equal")


def _dots(panel: Any, cases: Sequence[Case], colour: str, label: str) -> None:
    measured = [case.measured for case in cases]
    predicted = [case.predicted for case in cases]
    panel.scatter(measured, predicted, s=6, color=colour, label=label)


def main(arguments: Sequence[str] | None = None) -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog="python -m lab.report.scoreboard", description=summary
    )
    parser.add_argument(
        "result",
        type=Path,
        help="What `prestep validate published mlperf --json` printed.",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        nargs="+",
        default=[folder_of(name) / "rows.csv" for name in published_sets()],
        help="The rows that it is of.",
    )
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE, help=".svg or .png")
    options = parser.parse_args(arguments)
    try:
        compared = sources(options.result, options.rows)
        write_picture(compared, options.picture)
        files.write_text(options.output, page(compared, options.picture.name))
    except PrestepError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"wrote {options.output} and {options.picture}", file=sys.stderr)


if __name__ == "__main__":
    main()
