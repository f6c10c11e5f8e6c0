"""The command line: each command parses its options, calls one function, and prints.

stdout is data, stderr is talk. Exit codes: 0 good, 1 outside tolerance, 2 wrong input, 3 a mistake of prestep's own.
Everything but click is imported inside the commands, so that `prestep --help` is instant.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim import __version__, replay_command, run_command, sweep_command

if TYPE_CHECKING:
    from sim.result import Result
    from sim.sections import Scenario

EXIT_OUTSIDE, EXIT_INPUT = 1, 2

Command = Callable[..., Any]


def explained(command: Command) -> Command:
    """Errors that prestep can explain end the command with their text and exit code 2, without a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from sim.errors import PrestepError

        try:
            return command(*args, **kwargs)
        except PrestepError as error:
            click.echo(str(error), err=True)
            sys.exit(EXIT_INPUT)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:
            from sim import crash

            if not crash.wanted():
                raise
            click.echo(crash.told(error), err=True)
            sys.exit(crash.EXIT_CRASH)

    return run


def changes(command: Command) -> Command:
    """The option --set, any number of times."""
    text = (
        "Change a key (training.micro_batch=4) or the cluster (nvlink.bandwidth=2x, gpu[3].clock=0.8x, nvswitch=off). "
        "May be repeated."
    )
    return click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help=text)(command)


def as_json(command: Command) -> Command:
    """The option --json."""
    return click.option("--json", "json_", is_flag=True, help="JSON on stdout, in seconds and bytes.")(command)


def scaled(command: Command) -> Command:
    """The option --hosts."""
    text = "Hosts of the cluster, where its family scales; default: as its file says."
    return click.option("--hosts", type=click.IntRange(1), help=text)(command)


def echo_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def talk(text: str) -> None:
    click.echo(text, err=True)


def file_option(*names: str, text: str) -> Callable[[Command], Command]:
    return click.option(*names, type=click.Path(dir_okay=False, path_type=Path), help=text)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="prestep")
def main() -> None:
    """Predict how long a training step takes on a GPU cluster, and say why."""


def predicted(scenario: str | None, overrides: tuple[str, ...]) -> Result:
    from sim.catalog import find_scenario
    from sim.jobs import refuse
    from sim.spec import load_scenario

    loaded = load_scenario(find_scenario(scenario), overrides)
    refuse(loaded, "this; `prestep run` predicts several")
    from sim.predict import predict  # after the scenario is known to be good: its imports are the slow ones

    return predict(loaded, prices=True)


@main.command()
@click.argument("scenario", required=False)
@changes
@as_json
@file_option("--trace", text="Write a Chrome trace (.json or .json.gz) for Perfetto.")
@file_option("--timeline", text="Write the timeline as Parquet.")
@run_command.options
@click.option("--strict", is_flag=True, help="Fail when the prediction rests on a fallback.")
@explained
def run(
    scenario: str | None,
    overrides: tuple[str, ...],
    json_: bool,
    trace: Path | None,
    timeline: Path | None,
    strict: bool,
    report: Path | None,
    each: tuple[str, ...],
    trace_window: str,
    trace_ranks: str,
) -> None:
    """Predict one training step of SCENARIO: a file, or a bundled one (`prestep list scenarios`)."""
    from sim import exporters
    from sim.catalog import find_scenario
    from sim.spec import load_scenario

    part = run_command.check(trace, report, each, trace_window, trace_ranks)
    loaded = load_scenario(find_scenario(scenario), overrides)
    if loaded.jobs:
        _run_jobs(loaded, json_, trace or timeline or report, strict)
        return
    from sim.predict import predict  # after the scenario is known to be good: its imports are the slow ones

    result = predict(loaded, prices=True)
    if json_:
        click.echo(result.to_json())
    else:
        from sim.exporters import terminal

        click.echo(terminal.render(result))
    for exporter, path, options in (("chrome_trace", trace, part), ("parquet", timeline, {})):
        if path is not None:
            talk(f"wrote {exporters.write(result, path, exporter, **options)}")
    if report is not None:
        talk(f"wrote {run_command.write_report(result, report, loaded, each)}")
    if strict and result.fallbacks:
        talk(result.refusal)
        sys.exit(EXIT_OUTSIDE)


def _run_jobs(scenario: Scenario, json_: bool, file: Path | None, strict: bool) -> None:
    """`run` of several jobs on one cluster."""
    from sim.errors import InputError, Mistake
    from sim.exporters import terminal
    from sim.together import predict

    if file is not None:
        raise InputError(Mistake("command line", str(file), f"{len(scenario.jobs)} jobs", "one job for a trace"))
    together = predict(scenario)
    click.echo(together.to_json() if json_ else terminal.render_jobs(together))
    refused = [result.refusal for result in together.results.values() if result.fallbacks]
    if strict and refused:
        talk("\n".join(refused))
        sys.exit(EXIT_OUTSIDE)


@main.command()
@click.argument("scenario")
@changes
@click.option(
    "--each", multiple=True, metavar="WHAT", help="Try each link-kind, tier, latency, gpu, rank, host, link; all."
)
@click.option("--factors", default="0.5,2", show_default=True, help="What --each multiplies by.")
@file_option("--plot", text="Draw what --each found (.svg, .png; .html with plotly).")
@as_json
@explained
def whatif(
    scenario: str, overrides: tuple[str, ...], each: tuple[str, ...], factors: str, plot: Path | None, json_: bool
) -> None:
    """Predict SCENARIO as it is and with changes, side by side; or find out which element matters most."""
    from sim import whatif_command

    if each:
        table = whatif_command.each(scenario, overrides, each, factors, plot)
        echo_json(table) if json_ else click.echo(whatif_command.page(table))
        if plot is not None:
            talk(f"wrote {whatif_command.draw(table, plot)}")
        return
    compared = whatif_command.side_by_side(scenario, overrides, plot)
    echo_json(compared) if json_ else click.echo(whatif_command.page(compared))


@main.command()
@click.argument("sets", metavar="[SET]...", nargs=-1)
@click.option("--rows", type=click.Path(path_type=Path), help="Predict these instead, in the format of the set.")
@as_json
@file_option("--junit", text="Write JUnit XML.")
@file_option("--plot", text="Write a scatter plot (PNG).")
@file_option("--markdown", text="Write the report as Markdown.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Worker processes.")
@file_option("--known-misses", text="Exit 1 only for failed checks that this TOML table does not list, or that grew.")
@explained
def validate(
    sets: tuple[str, ...],
    rows: Path | None,
    json_: bool,
    jobs: int,
    known_misses: Path | None,
    **files: Path | None,
) -> None:
    """Compare predictions with the measured cases of SET (`prestep list sets`); exit 1 outside tolerance."""
    from validation import command

    reports = command.compare(sets, rows, jobs)
    if json_:
        echo_json(command.as_json(reports))
    else:
        click.echo(command.as_text(reports))
    command.write(reports, talk, **files)
    worse = command.worse(reports, known_misses)
    for check in worse if known_misses else ():
        talk(f"not among the known misses, or worse: {check.name}: {check.value:.4f} (limit {check.limit:.4f})")
    sys.exit(EXIT_OUTSIDE if worse else 0)


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--cluster", default="", metavar="NAME|FILE", help="Where the logs were made; `prestep list clusters`.")
@click.option("--op", default="", help="Operation of nccl-tests logs that do not say it.")
@click.option("--network", is_flag=True, help="Fit the network's facts to rows of several hosts: a cluster file.")
@click.option("--force", is_flag=True, help="Replace the file.")
@explained
def calibrate(logs: tuple[Path, ...], output: Path, cluster: str, op: str, network: bool, force: bool) -> None:
    """Fit NCCL's constants on a machine to LOGS: nccl-tests (text or JSON), JSON lines of collectives, or CSV."""
    from validation import command

    click.echo(command.calibrate(logs, output, cluster, op, force, network))


@main.command()
@click.option("--cluster", required=True, metavar="NAME|FILE", help="`prestep list clusters`.")
@scaled
@click.option("--op", default="all_reduce", show_default=True, help="Operation; init: making a communicator.")
@click.option("--backend", default=None, help="Who runs it: nccl (the default), gloo (CPU, TCP) or nvshmem (puts).")
@click.option("--ranks", type=click.IntRange(2), help="Ranks, one per GPU; default: all of the cluster.")
@click.option("--gpus", default="", metavar="LIST", help="GPUs by name or number instead: 0,2,4-7; the first is root.")
@click.option("--min-bytes", default="8", show_default=True, metavar="SIZE", help="Smallest size: 8, 1M, 4 MiB.")
@click.option("--max-bytes", default="4G", show_default=True, metavar="SIZE", help="Largest size.")
@click.option("--algo", help="Force the algorithm, as NCCL_ALGO.")
@click.option("--proto", help="Force the protocol, as NCCL_PROTO.")
@click.option("--channels", type=click.IntRange(1), help="Force the number of channels.")
@file_option("--nccl-constants", "constants", text="NCCL's constants, as `prestep calibrate` writes them.")
@click.option("--explain", is_flag=True, help="Say what bounds each size, and which rings and trees there are.")
@changes
@as_json
@explained
def collective(explain: bool, json_: bool, **choices: Any) -> None:
    """Predict a collective over a range of sizes, in the columns of nccl-tests."""
    from sim.collectives import report

    made = report.collective(explain=explain, **choices)
    if json_:
        echo_json(made.to_json())
    else:
        click.echo(made.render())


replay_command.add(main, explained, changes, as_json)
sweep_command.add(main, explained, changes)


@main.group()
def topology() -> None:
    """Look at a cluster: named (`prestep list clusters`) or in a file."""


@topology.command()
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@click.option(
    "--set", "overrides", metavar="SELECTOR=VALUE", multiple=True, help="Change it: nic[host3].bandwidth=0.5x."
)
@file_option("--picture", text="Draw the graph too (.png, .svg); several hosts folded by symmetry.")
@click.option("--rings", is_flag=True, help="The rings and trees of all GPUs instead, as NCCL's log prints them.")
@explained
def show(cluster: str, hosts: int | None, overrides: tuple[str, ...], picture: Path | None, rings: bool) -> None:
    """Print what the cluster is made of."""
    from sim.collectives import lines
    from sim.strict import split_override
    from topologies import load_cluster
    from topologies import show as drawing

    fabric = load_cluster(cluster, hosts, dict(map(split_override, overrides)), "--set")
    click.echo("\n".join(lines.told(fabric, fabric.gpus, trees=72)) if rings else drawing.render(fabric))
    if picture is not None:
        drawing.picture(fabric, picture)
        talk(f"wrote {picture}")


@topology.command()
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@explained
def check(cluster: str, hosts: int | None) -> None:
    """Check the cluster; exit 2 with every mistake."""
    from topologies.interchange import check_report

    click.echo(check_report(cluster, hosts))


@topology.command("export")
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@file_option("-o", "--output", text="File to write; default: the cluster's name, as .graphml.")
@click.option("--format", "format_", default="", help="graphml, json, infragraph; default: by the file's suffix.")
@explained
def export_topology(cluster: str, hosts: int | None, output: Path | None, format_: str) -> None:
    """Write the graph for other tools."""
    from topologies import load_cluster
    from topologies.interchange import export_file

    path = output or Path(f"{Path(cluster).stem}.graphml")
    for lost in export_file(load_cluster(cluster, hosts), path, format_):
        talk(f"not carried: {lost}")
    talk(f"wrote {path}")


@topology.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@file_option("-o", "--output", text="File to write (.json); default: the file's name with that suffix.")
@click.option("--format", "format_", default="", help="nccl_xml, nvidia_smi, slurm, ...; default: by the content.")
@explained
def import_topology(file: Path, output: Path | None, format_: str) -> None:
    """Read a cluster of another tool; the JSON it writes works wherever a cluster's name does."""
    from topologies.interchange import import_file

    fabric, path, notes = import_file(file, output, format_)
    for note in notes:
        talk(note)
    talk(f"wrote {path}: {len(fabric.hosts)} hosts, {len(fabric.gpus)} GPUs")


KINDS = ("clusters", "models", "collectives", "schedules", "topologies", "exporters", "routings", "scenarios", "sets")


@main.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("-l", "--long", "long_", is_flag=True, help="A line about each, where it has one.")
@explained
def list_(kind: str, long_: bool) -> None:
    """List the names that scenarios and commands take."""
    from sim.catalog import names, summaries

    found = names(kind)
    told = summaries(kind) if long_ else {}
    width = max((len(name) for name in found), default=0)
    for name in found:
        click.echo(f"{name:{width}}  {told[name]}" if told.get(name) else name)


@main.command()
@explained
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from sim.spec import json_schema

    echo_json(json_schema())


if __name__ == "__main__":
    main()
