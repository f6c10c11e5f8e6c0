"""Workloads of other simulators on a network alone: collectives, flows, rates, clusters to build."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from lab.bench import hashed, networks
from lab.bench.case import NAN, Case, Counted
from lab.bench.collectives import (
    BARE,
    Operation,
    Wire,
    activity,
    exchange,
    halving_doubling,
    plan_of,
    play,
    ring,
)
from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.fair_share import Incidence, rates
from prestep.topologies.fabric import Fabric

SIZE = 256 * 2.0**20
MIB = 2.0**20
# SimAI: 3 us of sending per message (AS_SEND_LAT of its README's commands), packets of 9000 B with 48 B of Ethernet,
# IP, UDP and its own headers (ns-3 point-to-point, 14 + 20 + 8 + 6), switches that store and forward.
SIMAI = Wire(start=3e-6, packet=9048.0, header=9048 / 9000)


def alone(fabric: Fabric, plans: Mapping[str, Plan], messages: int) -> Counted:
    """Collectives that begin at once, and the messages that a peer plays for them."""
    run = play(fabric, [[Operation(0, name)] for name in plans], plans)
    return run.finished, {"messages": messages, "events": run.events}


def one_ring(fabric: Fabric, wire: Wire = BARE) -> Counted:
    """An all-reduce around all GPUs."""
    gpus = fabric.positions(fabric.gpus)
    plan = activity(fabric, SIZE, ring(gpus[None, :]), wire)
    return alone(fabric, {"ring": plan}, 2 * (len(gpus) - 1) * len(gpus))


def ring_of_cables() -> Counted:
    """G1: a ring of 512."""
    return one_ring(networks.astra_ring(512))


def ring_on_a_switch() -> Counted:
    """G2: a ring of 4,096 on a switch, which takes in whole messages as ASTRA-sim's congestion-aware network does."""
    return one_ring(networks.switch(4096), Wire(packet=SIZE / 4096))


def hierarchy(ranks: int, chunks: int = 4) -> Counted:
    """G3: rings of eight, halving and doubling over the hosts, four chunks.

    Both dimensions work at once on different chunks: each is scattered inside its host, reduced between hosts, and
    gathered inside again.
    """
    fabric = networks.astra_hierarchy(ranks)
    hosts = fabric.positions(fabric.gpus).reshape(-1, 8)
    part, inner, outer = SIZE / chunks, ring(hosts, passes=1), halving_doubling(hosts.T)
    plans = {
        "inside": activity(fabric, part, inner),
        "between": activity(fabric, part / 8, outer),
    }
    scattered = [Operation(0, "inside") for _ in range(chunks)]
    reduced = [Operation(1, "between", (chunk,)) for chunk in range(chunks)]
    gathered = [Operation(0, "inside", (chunks + chunk,)) for chunk in range(chunks)]
    run = play(fabric, [[*scattered, *reduced, *gathered]], plans)
    steps = 2 * sum(step.times for step in inner) + sum(step.times for step in outer)
    return run.finished, {"messages": chunks * ranks * steps, "events": run.events}


def all_to_all(ranks: int) -> Counted:
    """G4: every rank sends 1 / n of 256 MiB to every other, all at once: the fullest link decides."""
    fabric = networks.switch(ranks)
    return alone(fabric, {"exchange": exchange(fabric, SIZE)}, ranks * (ranks - 1))


def rail_groups(gpus: int, size: float) -> Counted:
    """G8: an all-reduce in each of eight rails at once."""
    fabric = networks.rails(gpus)
    rails = fabric.positions(fabric.gpus).reshape(-1, 8).T
    plans = {
        f"rail {at}": activity(fabric, size, ring(rail[None, :]), SIMAI)
        for at, rail in enumerate(rails)
    }
    return alone(fabric, plans, 2 * (rails.shape[1] - 1) * gpus)


def permutation(seed: int = 0) -> Counted:
    """G9: 1,024 flows of 2 MB, each to a host of its own, on paths drawn by hash."""
    fabric = networks.three_tiers()
    links = fabric.links
    flows = _permuted(fabric.gpus, seed)
    plans = {}
    for at, (rows, _) in enumerate(hashed.paths(fabric, flows, seed)):
        usage = np.bincount(rows, minlength=len(links.bandwidth))
        plans[f"flow {at}"] = plan_of(2e6, usage, float(links.latency[rows].sum()))
    run = play(fabric, [[Operation(0, name)] for name in plans], plans)
    alone = np.array([plan.duration(links.bandwidth) for plan in plans.values()])
    slowdowns = np.array([end[0, 0] for end in run.end]) / alone
    counts = {"flows": len(flows), "solves": run.solves}
    return run.finished, counts | _quantiles(slowdowns)


def _permuted(gpus: Sequence[str], seed: int) -> list[tuple[str, str, int]]:
    """A flow from each GPU to one of its own, by chance."""
    order = np.random.default_rng(seed).permutation(len(gpus)).tolist()
    return [(gpus[a], gpus[b], 0) for a, b in enumerate(order) if a != b]


def _quantiles(slowdowns: np.ndarray) -> dict[str, float]:
    """How much slower flows were than alone."""
    return {
        "median slowdown": float(np.median(slowdowns)),
        "p90 slowdown": float(np.quantile(slowdowns, 0.9)),
        "worst slowdown": float(slowdowns.max()),
    }


def fair_rates(gpus: int) -> Counted:
    """G10a: max-min rates of one random flow per GPU over three tiers; what was counted has the solution alone."""
    fabric = networks.plain(gpus)
    paths = networks.drawn_in_plain(fabric, np.random.default_rng(1))
    incidence = Incidence.of(paths, [np.ones(len(way)) for way in paths])
    start = time.perf_counter()
    rates(incidence, np.full(len(paths), np.inf), fabric.links.bandwidth)
    return NAN, {
        "flows": len(paths),
        "solution ms": 1e3 * (time.perf_counter() - start),
    }


def built(gpus: int) -> Counted:
    """G10b, the first half: a three-tier cluster is built and checked."""
    start = time.perf_counter()
    fabric = networks.plain(gpus)
    return NAN, {"links": len(fabric.links), "build s": time.perf_counter() - start}


CASES = {
    "G1": Case(
        "ring all-reduce, 512 ranks",
        ring_of_cables,
        "ASTRA-sim aware 0.77 s, 101 MB",
        10.740208e-3,
        1.0,
        150,
    ),
    "G2": Case(
        "ring, 4,096 on a switch",
        ring_on_a_switch,
        "ASTRA-sim aware 96.7 s, 5,452 MB",
        18.136765e-3,
        1.0,
        300,
    ),
    "G3-4096": Case(
        "hierarchical, 4,096",
        lambda: hierarchy(4096),
        "ASTRA-sim 5.6 s, 775 MB",
        1.019994e-3,
        1.0,
        300,
    ),
    "G3-16384": Case(
        "hierarchical, 16,384",
        lambda: hierarchy(16384),
        "ASTRA-sim 59.4 s, 11,032 MB",
        1.029004e-3,
        3.0,
        1000,
    ),
    "G4-512": Case(
        "all-to-all, 512",
        lambda: all_to_all(512),
        "ASTRA-sim aware 12.9 s, 443 MB",
        625.617e-6,
        1.0,
        300,
    ),
    "G4-4096": Case(
        "all-to-all, 4,096",
        lambda: all_to_all(4096),
        "ASTRA-sim > 100 s, 12,382 MB, stopped",
        NAN,
        10.0,
        2000,
    ),
    "G8-128": Case(
        "8 rail groups, 128 GPUs, 16 MiB",
        lambda: rail_groups(128, 16 * MIB),
        "SimAI ns-3 4.9 s, 3,137 MB",
        2716.95e-6,
        0.5,
        200,
    ),
    "G8-512": Case(
        "8 rail groups, 512 GPUs, 16 MiB",
        lambda: rail_groups(512, 16 * MIB),
        "SimAI ns-3 26.1 s, 5,223 MB",
        3396.20e-6,
        1.0,
        200,
    ),
    "G8-128-large": Case(
        "8 rail groups, 128 GPUs, 128 MiB",
        lambda: rail_groups(128, 128 * MIB),
        "SimAI ns-3 21.2 s, 3,137 MB",
        20528.85e-6,
        0.5,
        200,
    ),
    "G9": Case(
        "permutation of 1,024 flows",
        permutation,
        "htsim RoCE 7.95 s, 85 MB",
        1147.7e-6,
        0.5,
        150,
    ),
    "G10a-10k": Case(
        "rates of 10,000 flows",
        lambda: fair_rates(10_000),
        "(goal: 5 ms)",
        NAN,
        1.0,
        300,
    ),
    "G10a-100k": Case(
        "rates of 100,000 flows",
        lambda: fair_rates(100_000),
        "(goal: 120 ms)",
        NAN,
        10.0,
        900,
    ),
    "G10b-16k": Case(
        "build 16,384", lambda: built(16_384), "(goal: 0.5 s)", NAN, 0.9, 100
    ),
    "G10b-100k": Case(
        "build 100,000", lambda: built(100_000), "(goal: 3 s)", NAN, 3.4, 600
    ),
}
