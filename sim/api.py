"""The Python interface: scenarios, predictions, comparisons, sweeps, replays; tables are DataFrames, values SI units.

>>> from prestep.sim import api
>>> result = api.simulate("mlp-ddp4", {"nvlink.bandwidth": "2x"})
>>> bool(result.step_time > 0)
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from prestep import topologies
from prestep.sim import exporters
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.assignments import Changes, text_of, texts_of
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.exchanges import report as collective_report
from prestep.sim.exporters import _run_files
from prestep.sim.predict import execute, plan, predict, reported
from prestep.sim.spec.jobs import refuse
from prestep.sim.spec.load import load_scenario, scenario_of
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import sweep as sweep_study
from prestep.sim.studies import tornado as tornado_study
from prestep.sim.studies.executors import executor_of
from prestep.sim.studies.grid import specs
from prestep.sim.studies.host_effect import completed
from prestep.sim.tools.catalog import find_scenario, names
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.bundled import place_of
from prestep.topologies.files.interchange import export_file

if TYPE_CHECKING:
    from typing import TypeAlias

    import networkx as nx

    Cluster: TypeAlias = str | Path | nx.Graph[Any] | Fabric
    Job: TypeAlias = str | Path | Mapping[str, Any]

__all__ = [
    "InputError",
    "Prediction",
    "PrestepError",
    "Scenario",
    "breakdown",
    "collective",
    "compare",
    "from_graph",
    "load",
    "load_cluster",
    "names",
    "save",
    "simulate",
    "spans",
    "sweep",
    "to_graph",
    "tornado",
]


def load(
    scenario: Job | None = None,
    changes: Changes | None = None,
    cluster: Cluster | None = None,
) -> Scenario:
    """A scenario: a file, a bundled one by its name (`names("scenarios")`), or its tables; none is the demonstration.

    `cluster` stands in place of the scenario's: a name, a file, or a NetworkX graph (`to_graph`).

    Examples
    --------
    >>> from prestep.sim import api
    >>> tables = {"cluster": {"name": "dgx-h100", "gpus": 1}, "model": {"kind": "mlp", "sizes": [64, 64]}}
    >>> api.load({**tables, "training": {"micro_batch": 8}}).training.micro_batch
    8

    Raises
    ------
    InputError
        With every mistake in it (`mistakes`).
    """
    placed = _placed(changes, cluster)
    if isinstance(scenario, Mapping):
        return scenario_of(scenario, "scenario", placed)
    path = find_scenario(None if scenario is None else str(scenario))
    return load_scenario(path, placed)


def _placed(changes: Changes | None, cluster: Cluster | None) -> tuple[str, ...]:
    """Changes as texts, the cluster before the others."""
    if cluster is None:
        return texts_of(changes)
    twice = [key for key in ("cluster.name", "cluster.file") if key in (changes or {})]
    if twice:
        raise PrestepError(f"cluster=... and {twice[0]} in changes: give one of them")
    return place_of(topologies.cluster_name(cluster)), *texts_of(changes)


def load_cluster(
    cluster: Cluster, hosts: int | None = None, changes: Changes | None = None
) -> Fabric:
    """A cluster by name, by file or of a NetworkX graph; `to_graph` makes one of it."""
    texts = {key: text_of(value) for key, value in (changes or {}).items()}
    return topologies.load_cluster(cluster, hosts, texts)


def to_graph(
    cluster: Cluster, hosts: int | None = None, changes: Changes | None = None
) -> nx.MultiDiGraph[str]:
    """A cluster as a `networkx.MultiDiGraph` to edit; docs/graphs.md has its attributes.

    >>> from prestep.sim import api
    >>> graph = api.to_graph("dgx-h100")
    >>> graph.remove_edges_from([("gpu0", "nvswitch0"), ("nvswitch0", "gpu0")])
    >>> float(api.collective(graph, min_bytes="1G", max_bytes="1G").busbw[0]) < 480e9
    True
    """
    return load_cluster(cluster, hosts, changes).to_graph()


def from_graph(graph: nx.Graph[Any]) -> Fabric:
    """The checked cluster of a NetworkX graph; other functions take the graph itself.

    Raises
    ------
    InputError
        With everything that is wrong with it, or not understood.
    """
    return load_cluster(graph)


def simulate(
    scenario: Scenario | Job | None = None,
    changes: Changes | None = None,
    prices: bool = False,
    cluster: Cluster | None = None,
) -> Prediction:
    """The predicted step; `prices` also says what every busy link is worth, and what the host decides.

    Changes and another cluster belong to a scenario's name or file: one that is loaded has its own.
    """
    if isinstance(scenario, Scenario) and (changes or cluster is not None):
        raise PrestepError(
            "simulate: changes or a cluster for a scenario that is loaded already: give them to load()"
        )
    loaded = (
        scenario if isinstance(scenario, Scenario) else load(scenario, changes, cluster)
    )
    refuse(loaded, "simulate; sim.studies.shared_cluster.predict takes several")
    if not prices:
        return predict(loaded)
    planned = plan(loaded)
    result = reported(planned, execute(planned), prices=True)
    return completed(loaded, planned, result)


def compare(
    scenario: Job | None, *variants: Changes, cluster: Cluster | None = None
) -> pd.DataFrame:
    """The scenario as it is (row "base") and with each of the changes; a row each, named by what it changes.

    Columns: `step_time` (s), `speedup` over the base, `mfu`, and the seconds of every share of the step.
    """
    results = {"base": simulate(scenario, cluster=cluster)}
    for changes in variants:
        results[", ".join(texts_of(changes))] = simulate(
            scenario, changes, cluster=cluster
        )
    base = results["base"].step_time
    rows = [
        {
            "step_time": r.step_time,
            "speedup": base / r.step_time,
            "mfu": r.mfu,
            **r.breakdown,
        }
        for r in results.values()
    ]
    return pd.DataFrame(rows, index=list(results)).fillna(
        {share: 0.0 for r in results.values() for share in r.breakdown}
    )


def tornado(
    scenario: Job | None,
    each: str | Sequence[str] = "all",
    factors: Sequence[float] = (0.5, 2.0),
    cluster: Cluster | None = None,
) -> pd.DataFrame:
    """Step times (s) with one element at a time at each factor: a row an element, the largest effect first."""
    kinds = each.split(",") if isinstance(each, str) else each
    table = tornado_study.tornado(load(scenario, cluster=cluster), kinds, factors)
    rows = [
        {c["factor"]: c["step_time"] for c in row["changes"]}
        for row in table["elements"]
    ]
    return pd.DataFrame(rows, index=[row["element"] for row in table["elements"]])


def sweep(
    scenario: str | Path | None,
    grid: Mapping[str, Sequence[object]],
    folder: str | Path,
    executor: str = "processes",
    jobs: int = 2,
    changes: Changes | None = None,
    cluster: Cluster | None = None,
) -> pd.DataFrame:
    """All combinations of the grid's values: a row a run; what `folder` has already is not run again (docs/sweeps.md).

    A graph is written into the folder, for the processes that run on it.
    """
    path = find_scenario(None if scenario is None else str(scenario))
    listed = {
        key: tuple(text_of(value) for value in values) for key, values in grid.items()
    }
    if cluster is not None and not isinstance(cluster, str | Path):
        cluster = _written(load_cluster(cluster), Path(folder))
    wanted = specs(path, listed, _placed(changes, cluster))
    pool = executor_of(executor, jobs)
    results = sweep_study.sweep(wanted, Path(folder), pool, jobs)
    assert results is not None  # only a part of a sweep has none
    return pd.read_parquet(results)


def _written(fabric: Fabric, folder: Path) -> Path:
    """A cluster as a file in a folder."""
    path = folder.absolute() / f"{fabric.name.replace('/', '-')}.json"
    folder.mkdir(parents=True, exist_ok=True)
    export_file(fabric, path)
    return path


def collective(
    cluster: Cluster, op: str = "all_reduce", ranks: int | None = None, **options: Any
) -> pd.DataFrame:
    """A collective over a range of sizes, as `prestep collective` prints it (s, bytes, bytes/s), on any cluster.

    `options` are those of the command: min_bytes, max_bytes, algo, proto, hosts, ...; those of a dispatch or combine
    are in `exchange`, a mapping. Sizes are numbers of bytes, or
    texts such as "1M". `time` is what nccl-tests would measure, `time_in_step` what a program's own call takes.

    >>> from prestep.sim import api
    >>> frame = api.collective("h200-host-4", min_bytes=2**20, max_bytes=2**20)
    >>> bool((frame.time <= frame.time_in_step).all())
    True
    """
    return pd.DataFrame(
        collective_report.collective(
            topologies.cluster_name(cluster), op, ranks=ranks, **options
        ).to_json()
    )


def spans(result: Prediction) -> pd.DataFrame:
    """What ran when: the columns of `prestep.sim.analysis.timeline.SPANS`, a row a span (s, bytes)."""
    timeline: Timeline | None = result.timeline
    if timeline is None:
        raise PrestepError("spans: the result has no timeline")
    return pd.DataFrame({name: timeline[name] for name in timeline.columns})


def breakdown(result: Prediction) -> pd.Series[float]:
    """Seconds of the step by share; they sum to its time."""
    return pd.Series(dict(result.breakdown), name="seconds")


def save(result: Prediction, path: str | Path) -> Path:
    """Writes a result: .html (report), .json or .json.gz (trace), .parquet, .md, by the ending."""
    scenario = result.details and result.details.request
    if exporters.name_for(path) != "html" or not isinstance(scenario, Scenario):
        return exporters.write(result, path)
    return _run_files.write_report(result, Path(path), scenario, ())
