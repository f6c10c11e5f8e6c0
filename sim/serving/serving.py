"""Disaggregated inference: prefill workers make KV caches, send them over the cluster, and decode workers go on.

    prefill   layers of one GEMM each with all active weights (its measured efficiency), attention at the same rate
    transfer  every prefill GPU sends its share to the decode GPUs that take it over: one flow per request
    decode    weights and KV cache of the batch read once a token, at the bandwidth of the tier that the cache lies in

With `overlap` a cache is on its way while it is made: it begins after the first layer and is no faster than the
prefill. Collectives of tensor parallelism take their time on an idle network; scheduling costs nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sim.collectives.planner import plan_collective
from sim.costs import Gpu
from sim.costs.measured import gpu_of
from sim.engine.storage import Leg, Request, Served, serve
from sim.errors import InputError, Mistake
from sim.graph.kernel import Kernel
from sim.graph.usage import by_link
from sim.predict import load_fabric
from sim.spec.sections import Scenario
from sim.units import format_bandwidth, format_bytes, format_duration
from topologies.fabric import Fabric
from workloads.models.counts import active_parameters, attention_flops, total_parameters
from workloads.models.model import ModelSpec, load_model

WEIGHT = 2.0  # bytes
BUSIEST = 8  # links that are listed
KV = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Pools:
    """A scenario's pools: the GPUs of every prefill and every decode worker."""

    scenario: Scenario
    fabric: Fabric
    model: ModelSpec
    gpu: Gpu
    prefill: tuple[tuple[str, ...], ...]
    decode: tuple[tuple[str, ...], ...]

    @property
    def cache(self) -> float:
        """Bytes of the KV cache of a prompt."""
        return self.per_token * self.scenario.inference.prompt

    @property
    def per_token(self) -> float:
        m = self.model
        width = (
            m.kv_lora_rank + m.rope_head_dim
            if m.latent
            else 2 * m.kv_heads * m.head_dim
        )
        return m.layers * width * KV[self.scenario.inference.kv_dtype]


def pools_of(scenario: Scenario) -> Pools:
    """The pools on the scenario's cluster.

    Raises
    ------
    InputError
        With everything that does not fit.
    """

    i, where, found = scenario.inference, scenario.where, list[Mistake]()
    model, fabric = load_model(scenario.model, where), load_fabric(scenario)
    if model.kind != "transformer":
        found.append(
            Mistake(
                where,
                "inference",
                f"a {model.kind}",
                "a transformer, which has a KV cache",
            )
        )
    for name in ("prefill", "decode"):
        gpus, tp = getattr(i, f"{name}_gpus"), getattr(i, f"{name}_tp")
        if gpus is None:
            found.append(
                Mistake(where, f"inference.{name}_gpus", "nothing", "a number of GPUs")
            )
        elif gpus % tp:
            found.append(
                Mistake(
                    where,
                    f"inference.{name}_tp",
                    str(tp),
                    f"a divisor of {name}_gpus = {gpus}",
                )
            )
    need = (i.prefill_gpus or 0) + (i.decode_gpus or 0)
    if need > len(fabric.gpus):
        found.append(
            Mistake(
                where,
                "inference.decode_gpus",
                f"{need} GPUs in all",
                f"at most {len(fabric.gpus)}",
            )
        )
    if found:
        raise InputError(found)
    gpus, first = fabric.gpus, i.prefill_gpus or 0

    def workers(start: int, end: int, tp: int) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(gpus[at : at + tp]) for at in range(start, end, tp))

    made = Pools(
        scenario,
        fabric,
        model,
        gpu_of(fabric),
        workers(0, first, i.prefill_tp),
        workers(first, need, i.decode_tp),
    )
    _check_room(made)
    return made


def _check_room(p: Pools) -> None:
    """Weights, and the caches of a batch where they lie in HBM, fit a decode worker."""
    i, room = p.scenario.inference, p.gpu.memory * p.scenario.inference.decode_tp
    weights = total_parameters(p.model) * WEIGHT
    caches = (
        i.decode_batch * (i.prompt + i.output) * p.per_token if i.tier == "hbm" else 0.0
    )
    if weights + caches > room:
        found = (
            f"{format_bytes(weights)} of weights and {format_bytes(caches)} of KV cache"
        )
        hint = 'a smaller decode_batch, more decode_tp, or tier = "cpu"'
        expected = f"at most {format_bytes(room)}, the memory of a decode worker"
        raise InputError(
            Mistake(p.scenario.where, "inference.decode_batch", found, expected, hint)
        )


def prefill_time(p: Pools) -> float:
    """Seconds of a prompt on one prefill worker."""
    i, m = p.scenario.inference, p.model
    tp, tokens = i.prefill_tp, i.prompt
    width = max(1, round(active_parameters(m) / m.layers / m.hidden / tp))
    gemm = p.gpu.duration(Kernel("gemm", (tokens, width, m.hidden), layout="nt"))
    rate = 2.0 * tokens * width * m.hidden / gemm
    attention = attention_flops(m, tokens) * tokens / tp / rate
    return m.layers * (gemm + 2 * reduce_time(p, tokens, p.prefill[0])) + attention


def token_time(p: Pools, worker: tuple[str, ...]) -> float:
    """Seconds of one token of a full batch on a decode worker."""
    i, m = p.scenario.inference, p.model
    weights = min(total_parameters(m), active_parameters(m) * i.decode_batch) * WEIGHT
    caches = i.decode_batch * (i.prompt + i.output / 2) * p.per_token
    tp, hbm = len(worker), p.gpu.bandwidth
    read = caches / tp / hbm if i.tier == "hbm" else caches / _tier_rate(p, worker)
    return (
        weights / tp / hbm
        + read
        + 2 * m.layers * reduce_time(p, i.decode_batch, worker)
    )


def reduce_time(p: Pools, tokens: int, worker: tuple[str, ...]) -> float:
    """Seconds of one all-reduce of activations among a worker's GPUs."""
    if len(worker) < 2:
        return 0.0
    plan = plan_collective(
        "all_reduce",
        tokens * p.model.hidden * WEIGHT,
        worker,
        p.fabric,
        p.scenario.nccl,
    )
    return plan.duration(p.fabric.links.bandwidth)


def _rate(p: Pools, rows: np.ndarray, usage: np.ndarray) -> float:
    return (
        float(np.min(p.fabric.links.bandwidth[rows] / usage)) if len(rows) else math.inf
    )


def _tier_rate(p: Pools, worker: tuple[str, ...]) -> float:
    """Bytes/s at which a worker's GPUs read their caches from the tier, all at once."""
    kind = "memory" if p.scenario.inference.tier == "cpu" else "nvme"
    parts = [p.fabric.spread(p.fabric.nearest(gpu, kind), gpu) for gpu in worker]
    return _rate(p, *_added(parts))


def _added(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Usage of links added up; each part carries an equal share of the bytes."""
    return by_link([(rows, usage / len(parts)) for rows, usage in parts])


def legs_of(
    p: Pools, source: tuple[str, ...], target: tuple[str, ...]
) -> tuple[str, tuple[Leg, ...]]:
    """The way that was taken, and the legs of a cache from a prefill worker to a decode worker.

    Raises
    ------
    InputError
        If there is no such way between them.
    """
    many = max(len(source), len(target))
    pairs = [
        (source[k * len(source) // many], target[k * len(target) // many])
        for k in range(many)
    ]
    fabric, path = p.fabric, p.scenario.inference.path
    ways = [fabric.spread(a, b) for a, b in pairs]
    kinds = {str(fabric.links.kind[row]) for rows, _ in ways for row in rows}
    nvlink = bool(kinds) and all(
        kind.startswith(("nvlink", "nvswitch", "c2c")) for kind in kinds
    )
    if path == "nvlink" and not nvlink:
        raise _no_way(
            p, f"links of {', '.join(sorted(kinds))}", "GPUs that NVLink connects"
        )
    if path == "auto":
        path = "nvlink" if nvlink else "rdma"
    if path == "nvlink":
        return path, (
            Leg("nvlink", p.cache, links=_added(ways)[0], usage=_added(ways)[1]),
        )
    if path == "rdma":
        return path, (
            _leg(
                "rdma",
                p,
                [
                    _chain(
                        fabric, a, fabric.nearest(a, "nic"), fabric.nearest(b, "nic"), b
                    )
                    for a, b in pairs
                ],
            ),
        )
    kind = "memory" if path == "host" else "nvme"
    down = [(a, fabric.nearest(a, kind)) for a, _ in pairs]
    up = [(fabric.nearest(b, kind), b) for _, b in pairs]
    between = [(x, y) for (_, x), (y, _) in zip(down, up, strict=True) if x != y]
    if path == "nvme" and any(
        fabric.host_of(x) != fabric.host_of(y) for x, y in between
    ):
        raise _no_way(
            p, "pools on different hosts", "pools on one host, whose disks both reach"
        )
    legs = [_leg(f"to {kind}", p, [fabric.spread(a, b) for a, b in down])]
    if path == "host" and between:
        legs.append(_leg("between hosts", p, [fabric.spread(a, b) for a, b in between]))
    return path, (*legs, _leg(f"from {kind}", p, [fabric.spread(a, b) for a, b in up]))


def _no_way(p: Pools, found: str, expected: str) -> InputError:
    return InputError(
        Mistake(
            p.scenario.where,
            "inference.path",
            f"{p.scenario.inference.path}: {found}",
            expected,
        )
    )


def _leg(name: str, p: Pools, parts: list[tuple[np.ndarray, np.ndarray]]) -> Leg:
    links, usage = _added(parts)
    return Leg(name, p.cache, links=links, usage=usage)


def _chain(fabric: Fabric, *nodes: str) -> tuple[np.ndarray, np.ndarray]:
    """Links from node to node in turn."""
    ways = [fabric.spread(a, b) for a, b in pairwise(nodes) if a != b]
    return np.concatenate([rows for rows, _ in ways]), np.concatenate(
        [usage for _, usage in ways]
    )


def predict(scenario: Scenario) -> dict[str, Any]:
    """Times of requests (s), the load of links, and what they are made of.

    `time_to_first_token`: from its arrival to a request's first token, whose parts are `parts`: the queue, the prefill,
    what of the transfer was not hidden behind it, waiting for a place in a batch, and the first step of decoding.

    Raises
    ------
    InputError
        If pools do not fit the cluster, the model its GPUs, or no such way is between them.
    """
    pools, inference = pools_of(scenario), scenario.inference
    prefill = prefill_time(pools)
    tokens = [token_time(pools, worker) for worker in pools.decode]
    requests, paths = _requests(pools, prefill, tokens)
    bandwidth = pools.fabric.links.bandwidth
    served, carried = serve(requests, inference.decode_batch, bandwidth)
    end = max(one.last for one in served)
    pairs = list(zip(served, requests, strict=True))
    alone = _transfer_alone(pools)
    return {
        "time_to_first_token": _spread([one.first - r.arrival for one, r in pairs]),
        "parts": _parts(pairs),
        "time_per_output_token": statistics.fmean(tokens),
        "prefill_time": prefill,
        "transfer_alone": alone,
        "kv_bytes": pools.cache,
        "paths": paths,
        "tier": inference.tier,
        "requests": inference.requests,
        "seconds": end,
        "requests_per_second": inference.requests / end,
        "tokens_per_second": inference.requests * inference.output / end,
        "links": _busiest(pools.fabric, carried, end),
        "evidence": {
            "prefill": "guess",
            "transfer": "datasheet",
            "decode": "datasheet",
        },
        "model": pools.model.name,
        "cluster": pools.fabric.name,
        "gpu": pools.gpu.name,
        "transfer_bandwidth": pools.cache / alone,
    }


def _requests(
    pools: Pools, prefill: float, tokens: Sequence[float]
) -> tuple[list[Request], list[str]]:
    """The requests in the order of their arrival, workers taken in turn; and the paths of their caches."""
    inference = pools.scenario.inference
    requests, paths = [], set()
    for number in range(inference.requests):
        source, target = number % len(pools.prefill), number % len(pools.decode)
        path, legs = legs_of(pools, pools.prefill[source], pools.decode[target])
        paths.add(path)
        first_layer = None
        if inference.overlap:
            # the cache leaves layer by layer, no faster than it is made
            first_layer = prefill / pools.model.layers
            legs = (replace(legs[0], cap=pools.cache / prefill), *legs[1:])
        request = Request(
            number / inference.rate,
            source,
            prefill,
            legs,
            first_layer,
            target,
            tokens[target],
            (inference.output - 1) * tokens[target],
        )
        requests.append(request)
    return requests, sorted(paths)


def _parts(pairs: Sequence[tuple[Served, Request]]) -> dict[str, float]:
    """Mean seconds of what a first token waits for."""
    parts = {
        "queue": [one.begun - request.arrival for one, request in pairs],
        "prefill": [one.prefilled - one.begun for one, _ in pairs],
        "transfer": [one.sent - one.prefilled for one, _ in pairs],
        "place": [one.placed - one.sent for one, _ in pairs],
        "first_step": [one.first - one.placed for one, _ in pairs],
    }
    return {name: statistics.fmean(seconds) for name, seconds in parts.items()}


def _transfer_alone(pools: Pools) -> float:
    """Seconds of a cache from the first prefill worker to the first decode worker, with the network to itself."""
    _, legs = legs_of(pools, pools.prefill[0], pools.decode[0])
    rates = [min(leg.cap, _rate(pools, leg.links, leg.usage)) for leg in legs]
    return sum(leg.size / rate for leg, rate in zip(legs, rates, strict=True))


def _busiest(fabric: Fabric, carried: np.ndarray, end: float) -> list[dict[str, Any]]:
    """The links that were used most until `end` (s)."""
    used = carried / (fabric.links.bandwidth * end)
    # rounded, so that links of equal load stand in the fabric's order
    rows = sorted(
        np.flatnonzero(carried).tolist(),
        key=lambda row: (-round(float(used[row]), 12), row),
    )
    return [
        {
            "name": fabric.links.name(row),
            "kind": str(fabric.links.kind[row]),
            "bytes": float(carried[row]),
            "utilisation": float(used[row]),
        }
        for row in rows[:BUSIEST]
    ]


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = (float(np.percentile(values, share)) for share in (0, 50, 99))
    return {"mean": statistics.fmean(values), "min": low, "median": middle, "p99": high}


def render(made: dict[str, Any]) -> str:
    """The page for people."""
    first, parts = made["time_to_first_token"], made["parts"]
    lines = [
        f"{made['model']} on {made['cluster']}: {made['requests']} requests, prefill and decode apart",
        "",
        f"  time to first token    {format_duration(first['mean'])} (median {format_duration(first['median'])}, "
        f"99 % {format_duration(first['p99'])})",
        *(f"    {name:20} {format_duration(time)}" for name, time in parts.items()),
        f"  time per output token  {format_duration(made['time_per_output_token'])} (KV cache in {made['tier']})",
        f"  KV cache of a prompt   {format_bytes(made['kv_bytes'])} by {', '.join(made['paths'])}, alone "
        f"{format_duration(made['transfer_alone'])} ({format_bandwidth(made['transfer_bandwidth'])})",
        f"  throughput             {made['requests_per_second']:.3g} requests/s, "
        f"{made['tokens_per_second']:.0f} tokens/s",
        "",
        "  busiest links",
        *(
            f"    {one['name']:30} {100 * one['utilisation']:5.1f} %  {format_bytes(one['bytes'])}"
            for one in made["links"]
        ),
        "",
        "  rests on: "
        + ", ".join(f"{what} {grade}" for what, grade in made["evidence"].items()),
    ]
    return "\n".join(lines)
