"""The algorithms: every module of this package that says what it runs on. A new file is a new algorithm.

Such a module defines

* ``OPS``: the operations it does; ``PROTOS``: its protocols;
* ``plan(call)``: the `Plan` of a `prestep.sim.collectives.assemble.Call`;
* ``estimate(op, proto, model)``: microseconds and GB/s in NCCL's table (`prestep.sim.collectives.nccl.tuning`);
* ``ROWS``: its rows in the tables behind that (`prestep.sim.collectives.nccl.tuning.Rows`), steps between hosts
included;
* ``CONSTANTS``: how fast it runs by protocol (`prestep.sim.collectives.constants.Pace`), where no file of
  sim/costs/hardware has a table of its name;
* ``ORDER``: its place in NCCL's list of algorithms, which decides ties;
* optionally ``runs_on(op, group, fabric, settings)``: why it cannot run there, or None;
  ``corrected(op, size, proto, model)``: factors on both for one size; ``CHANNELS``: the attribute of
  `prestep.sim.collectives.nccl.search.Graph` that counts its channels; ``CONNECTIONS``: over how many of a
  channel a GPU receives;
  ``traffic(plan, group, fabric, settings)``: what TCP sockets have to move
  (`prestep.sim.collectives.wires.proxies.Traffic`).

Modules without ``estimate`` (pairwise) have no choice to make.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

from prestep.sim import plugins


@lru_cache(maxsize=1)
def algorithms() -> dict[str, ModuleType]:
    """Name -> module of the algorithms that NCCL chooses among, in NCCL's order."""
    modules = plugins.providers(__name__, "estimate")
    loaded = {name: plugins.load(__name__, name) for name in modules}
    return dict(sorted(loaded.items(), key=lambda item: (item[1].ORDER, item[0])))
