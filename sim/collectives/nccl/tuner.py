"""NCCL's choice of algorithm, protocol and channels: the cost model of src/graph/tuning.cc.

The model selects and does not predict: its times are NCCL's own guesses. What the chosen plan takes comes
from the algorithm's `plan` with constants fitted to measurements. Tables: tuning.py; algorithms: registry.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from prestep.sim.collectives.algorithms import algorithms, nvls, pairwise, ring
from prestep.sim.collectives.assemble import call_of
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.nccl import rccl
from prestep.sim.collectives.nccl.search import search, unforced
from prestep.sim.collectives.nccl.tuning import Model
from prestep.sim.collectives.plan import OPS, PAIR_OPS, Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import network, paths, proxies, sharp, socket
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.collectives.nccl import plugins

# Since this release NCCL refuses what it cannot do instead of falling back to rings and trees.
STRICT = (2, 24)
# What the network's switches can do.
REDUCED = ("all_reduce", "all_gather", "reduce_scatter")

Estimates = dict[tuple[str, str], tuple[float, float]]


class Candidate(NamedTuple):
    """One row of NCCL's table: seconds and bytes/s as NCCL believes them; `time` decides."""

    algo: str
    proto: str
    latency: float
    bandwidth: float
    time: float


class Compared(NamedTuple):
    """What NCCL compares for an operation of any size, as far as the settings leave it a choice.

    Attributes
    ----------
    usable, estimates : dict
        Microseconds and GB/s by algorithm and protocol, before they are corrected for a size: of all that can run, and
        of what the settings leave.
    notes : tuple of str
        On what was asked for in vain, and on what the real machine would probably choose.
    """

    model: Model
    usable: Estimates
    estimates: Estimates
    notes: tuple[str, ...]


def model_of(group: Group, fabric: Any, settings: Nccl) -> Model:
    """What the cost model knows of a communicator, its channels included."""
    return paths.once(
        fabric,
        ("model", group, unforced(settings)),
        lambda: _model(group, fabric, settings),
    )


def _model(group: Group, fabric: Any, settings: Nccl) -> Model:
    graph = search(group, fabric.gpu_model, settings, fabric)
    release = settings.release
    return Model(group, graph, generation_of(fabric.gpu_model).at(release), release)


def table(
    op: str, ranks: Sequence[str], fabric: Any, nccl: Nccl | None = None
) -> Estimates:
    """NCCL's tuning table of an operation, as its log prints it: microseconds and GB/s by algorithm and protocol.

    Algorithms and protocols that cannot run there are left out.
    """
    settings = nccl or Nccl()
    return _estimates(op, group_of(fabric, ranks, settings), fabric, settings)


def _estimates(op: str, group: Group, fabric: Any, settings: Nccl) -> Estimates:
    """`table` of a group, remembered: it does not depend on the size."""
    key = ("estimates", op, group, unforced(settings), settings.proto == "LL128")
    return paths.once(fabric, key, lambda: _estimated(op, group, fabric, settings))


def _estimated(op: str, group: Group, fabric: Any, settings: Nccl) -> Estimates:
    """`_estimates`, asked of every algorithm that can run there, in NCCL's order."""
    model = model_of(group, fabric, settings)
    return {
        (name, proto): module.estimate(op, proto, model)
        for name, module in algorithms().items()
        if op in module.OPS and obstacle(name, op, group, fabric, settings) is None
        for proto in module.PROTOS
        # LL128 needs 128-byte stores all the way, which NCCL trusts only near GPUs and NICs; forcing it skips the test.
        if proto != "LL128" or model.graph.ll128 or settings.proto == "LL128"
    }


def obstacle(
    algo: str, op: str, group: Group, fabric: Any, settings: Nccl
) -> str | None:
    """Why an algorithm cannot run an operation there; None: it can."""
    runs_on = getattr(algorithms()[algo], "runs_on", None)
    reason: str | None = runs_on and runs_on(op, group, fabric, settings)
    return reason


def candidates(
    op: str, size: float, ranks: Sequence[str], fabric: Any, nccl: Nccl | None = None
) -> list[Candidate]:
    """Everything NCCL compares for this operation, best first; empty for messages between pairs."""
    settings = nccl or Nccl()
    group = group_of(fabric, ranks, settings)
    if op in PAIR_OPS or group.n == 1:
        return []
    usable = _usable(op, group, fabric, settings)
    every = Compared(model_of(group, fabric, settings), usable, usable, ())
    return _ranked(op, size, every, settings)


def _usable(op: str, group: Group, fabric: Any, settings: Nccl) -> Estimates:
    """Estimates with a bandwidth; without one the model has no opinion, and NCCL leaves it out."""
    estimates = _estimates(op, group, fabric, settings)
    return {which: each for which, each in estimates.items() if each[1] > 0}


def _ranked(
    op: str, size: float, compared: Compared, settings: Nccl
) -> list[Candidate]:
    """What is compared for one size, best first."""
    estimates, model = compared.estimates, compared.model
    rows = [_row(op, size, *which, *each, model) for which, each in estimates.items()]
    # Stable: NCCL's order decides ties.
    rows.sort(key=lambda row: row.time)
    if not settings.tuner:
        return rows
    # A plug-in sets the cost of what it chooses to zero, and NCCL takes the least.
    able = {*compared.usable}
    named = plugins.chosen(settings.tuner, op, size, model.group, able)
    return sorted(rows, key=lambda row: row[:2] != named)


def _row(
    op: str,
    size: float,
    algo: str,
    proto: str,
    latency: float,
    bandwidth: float,
    model: Model,
) -> Candidate:
    """A row of the table, corrected for the size; `latency` in microseconds, `bandwidth` in GB/s."""
    module = algorithms()[algo]
    if hasattr(module, "corrected"):
        slower, narrower = module.corrected(op, size, proto, model)
        latency, bandwidth = latency * slower, bandwidth * narrower
    time = latency * 1e-6 + size / (bandwidth * 1e9) if bandwidth > 0 else math.inf
    return Candidate(algo, proto, latency * 1e-6, bandwidth * 1e9, time)


def choose(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    in_place: bool = False,
) -> Plan:
    """The plan NCCL would run.

    Raises
    ------
    InputError
        For an unknown operation, a size that is no size, too few ranks, or a forced algorithm or protocol that
        cannot run here (before NCCL 2.24: it is ignored, with a note).
    """
    settings = nccl or Nccl()
    group = group_of(fabric, ranks, settings)
    check(op, size, group.n)
    if op in PAIR_OPS:
        messages = pairwise.plan(call_of(op, size, ranks, fabric, settings))
        return _carried(messages, group, fabric, settings)
    if group.n == 1:
        return ring.plan(call_of(op, size, ranks, fabric, settings, channels=1))
    return _chosen(op, size, ranks, fabric, settings, group, in_place)


def _chosen(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    settings: Nccl,
    group: Group,
    in_place: bool,
) -> Plan:
    """The plan of the best candidate."""
    key = ("compared", op, group, settings)
    compared = paths.once(fabric, key, lambda: _compared(op, group, fabric, settings))
    best = _ranked(op, size, compared, settings)[0]
    channels = channels_of(best.algo, compared.model)
    call = call_of(
        op,
        size,
        ranks,
        fabric,
        settings,
        best.proto,
        channels,
        in_place=in_place,
        group=group,
    )
    plan = _carried(algorithms()[best.algo].plan(call), group, fabric, settings)
    notes = compared.notes
    return replace(plan, notes=(*plan.notes, *notes)) if notes else plan


def channels_of(algo: str, model: Model) -> int:
    """Channels of an algorithm: those of all collectives, or its own."""
    name = getattr(algorithms()[algo], "CHANNELS", "channels")
    channels: int = getattr(model.graph, name)
    return channels


def _carried(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Plan:
    """The plan on this network: over TCP sockets, through shaped ports, or no faster than its proxies post."""
    if socket.used(group, fabric, settings):
        return socket.over(plan, group, fabric, settings)
    return network.shaped(proxies.bounded(plan, group, fabric, settings), fabric)


def _compared(op: str, group: Group, fabric: Any, settings: Nccl) -> Compared:
    """What the settings leave, and notes on what they asked for in vain."""
    usable = _usable(op, group, fabric, settings)
    algo, notes = settings.algo, []
    if algo is not None and op not in algorithms()[algo].OPS:
        notes.append(f"{op} has no {algo}: it runs on the ring")
        algo = "ring"
    protos = [which for which in usable if settings.proto in (None, which[1])]
    kept = [which for which in protos if algo in (None, which[0])]
    if not kept:
        notes.append(_ignored(op, algo, usable, group, fabric, settings))
        kept = [which for which in protos if which[0] in ("ring", "tree")]
    left = {which: usable[which] for which in kept or usable}
    notes += _notes(op, group, fabric, settings)
    return Compared(model_of(group, fabric, settings), usable, left, tuple(notes))


def _ignored(
    op: str,
    algo: str | None,
    usable: Estimates,
    group: Group,
    fabric: Any,
    settings: Nccl,
) -> str:
    """A note on a forced algorithm or protocol that cannot run: old releases ignore it, new ones refuse."""
    key, value, why = "algo", algo, None
    if algo:
        why = obstacle(algo, op, group, fabric, settings)
        if why is None and not any(name == algo for name, _ in usable):
            why = f"NCCL's model gives {algo} no bandwidth here"
    if why is None:
        key, value = "proto", settings.proto
        why = f"{algo or op} has no {settings.proto}"
    if settings.release >= STRICT:
        hint = "NCCL refuses it too, since 2.24"
        expected = f"what can run on {fabric.name}: {why}"
        raise InputError.of("nccl", key, str(value), expected, hint)
    return f"{value} was asked for and ignored: {why}"


def _notes(op: str, group: Group, fabric: Any, settings: Nccl) -> tuple[str, ...]:
    """What was asked for in vain, and what would probably be chosen on the real machine and is not what was planned."""
    idle = group.nodes > 1 and op in REDUCED and sharp.without(fabric, settings)
    silent = _without_multicast(op, group, fabric, settings)
    modelled = rccl.caveat(fabric.gpu_model)
    return tuple(note for note in (idle, silent, modelled) if note)


def _without_multicast(
    op: str, group: Group, fabric: Any, settings: Nccl
) -> str | None:
    """A note where switches would probably add up on the real machine, and the file does not say that they do."""
    silent = (
        settings.nvls is None
        and fabric.cluster_facts.nvlink_sharp is None
        and settings.algo is None
    )
    if op == "all_reduce" and silent and group.n > 4:
        able = nvls.missing(group, fabric, replace(settings, nvls=True)) is None
        if able:
            why = f"the cluster file of {fabric.name} does not say that its switches do it; [nccl] nvls = true says so"
            return f"without NVLink SHARP: {why}"
    return None


def check(op: str, size: float, ranks: int, ops: Sequence[str] = OPS) -> None:
    """Raises what is wrong with an operation, its size or the number of its ranks."""
    where, mistakes = "collective", []
    if op not in ops:
        mistakes.append(unknown(where, "op", op, ops))
    if not size >= 0 or math.isinf(size):
        expected = "a finite number of bytes that is not negative"
        mistakes.append(Mistake(where, "size", str(size), expected))
    if op in PAIR_OPS and op != "all_to_all" and ranks < 2:
        expected = f"at least two for {op}"
        mistakes.append(Mistake(where, "ranks", f"{ranks} ranks", expected))
    if mistakes:
        raise InputError(mistakes)
