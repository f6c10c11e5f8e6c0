"""What `prestep storage` does."""

from __future__ import annotations

from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import echo_json
from prestep.sim.errors import InputError, Mistake
from prestep.sim.storage import curve, systems
from prestep.sim.storage.curve import Transfer, Way
from prestep.topologies import load_cluster


def storage(
    system: str,
    threads: int,
    cluster: str | None,
    transfer: Transfer,
    gpus: int | None,
    json_: bool,
) -> None:
    chosen = systems.load_system(system, "command line", "SYSTEM")
    way = _way(chosen, cluster, transfer, gpus)
    if json_:
        echo_json(curve.table_of(chosen, threads, way))
    else:
        show_page(curve.render(chosen, threads, way, transfer))


def _way(
    system: systems.System, cluster: str | None, transfer: Transfer, gpus: int | None
) -> Way | None:
    """The way on a cluster, if one is named."""
    if cluster is not None:
        return curve.way_of(system, load_cluster(cluster), transfer, gpus or 0)
    if transfer != "cpu_only" or gpus is not None:
        expected = "a cluster, whose GPUs take part"
        mistake = Mistake("command line", "--cluster", "nothing", expected)
        raise InputError(mistake)
    return None
