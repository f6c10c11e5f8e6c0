"""Disaggregated inference: prefill workers make KV caches, send them over the cluster, and decode workers go on.

    prefill   the forward pass of the model's blocks, by the kernels of training (`prestep.sim.serving.prefill`)
    load      what is there of a prompt's KV cache (`reuse`) comes from memory or storage and is not prefilled
    transfer  every prefill GPU sends its share to the decode GPUs that take it over: one flow per request and copy
    decode    weights and KV cache of the batch read once a token, at the bandwidth of the tier that the cache lies in

With `overlap` a cache is on its way while it is made, layer by layer; the last layer is there when the prefill ends, so
a first token waits for that layer's transfer. Collectives of tensor parallelism take their time on an idle network;
scheduling costs nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from prestep.sim.analysis.step_times import check_duration
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.engine.storage import Leg
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.serving import prefill
from prestep.sim.serving.pools import WEIGHT, Pools, pools_of
from prestep.sim.serving.requests import Request, Served, serve
from prestep.sim.serving.section import Inference
from prestep.sim.serving.transfer import added, legs_of, loads_of, sending
from prestep.sim.spec.sections import Scenario
from prestep.sim.units import count, format_bandwidth, format_bytes, format_duration
from prestep.workloads.models.counts import active_parameters, total_parameters

BUSIEST = 8  # links that are listed
_EVIDENCE = {"prefill": "guess", "transfer": "datasheet", "decode": "datasheet"}


def prefill_time(p: Pools) -> float:
    """Seconds of a prompt on one prefill worker; what is reused of it is only read, by a token or more."""
    tokens = prefill.new_tokens(p.inference)
    exchanged = 2 * p.model.layers * reduce_time(p, tokens, p.prefill[0])
    return prefill.compute_time(p) + exchanged


def token_time(p: Pools, worker: tuple[str, ...]) -> float:
    """Seconds of one token of a full batch on a decode worker."""
    i, m = p.inference, p.model
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
    return _reduce(p, tokens, worker).duration(p.fabric.links.bandwidth)


def _reduce(p: Pools, tokens: int, worker: tuple[str, ...]) -> Plan:
    """An all-reduce of the activations of some tokens, as NCCL would run it."""
    size = tokens * p.model.hidden * WEIGHT
    return plan_collective("all_reduce", size, worker, p.fabric, p.scenario.nccl)


def _reduces(p: Pools) -> dict[str, str]:
    """What NCCL chooses for the all-reduces of both pools ("ring LL128"); only of workers that have any.

    With faster links it may choose what takes longer: its tuner's estimates are not what they take.
    """
    asked = {
        "prefill": (prefill.new_tokens(p.inference), p.prefill[0]),
        "decode": (p.inference.decode_batch, p.decode[0]),
    }
    plans = {
        pool: _reduce(p, tokens, worker)
        for pool, (tokens, worker) in asked.items()
        if len(worker) > 1
    }
    return {pool: f"{plan.algo} {plan.proto}".strip() for pool, plan in plans.items()}


def _rate(p: Pools, rows: np.ndarray, usage: np.ndarray) -> float:
    return float(np.min(p.bandwidth[rows] / usage)) if len(rows) else math.inf


def _tier_rate(p: Pools, worker: tuple[str, ...]) -> float:
    """Bytes/s at which a worker's GPUs read their caches from the tier, all at once."""
    kind = "memory" if p.inference.tier == "cpu" else "nvme"
    parts = [p.fabric.spread(p.fabric.nearest(gpu, kind), gpu) for gpu in worker]
    return _rate(p, *added(parts))


SCHEMA = schemas_beside(__file__)["schema"]


def predict(scenario: Scenario) -> dict[str, Any]:
    """Times of requests (s), the load of links, and what they are made of.

    `time_to_first_token`: from its arrival to a request's first token, whose parts are `parts`: the queue, what is
    loaded of its cache, the prefill, what of the transfer was not hidden behind it, waiting for a place in a batch, and
    the first step of decoding.

    Raises
    ------
    InputError
        If pools do not fit the cluster, the model its GPUs, or no such way is between them.
    """
    pools, inference = pools_of(scenario), scenario.section("inference")
    alone_time = prefill_time(pools)
    tokens = [token_time(pools, worker) for worker in pools.decode]
    requests, paths = _requests(pools, alone_time, tokens)
    served, carried = serve(requests, inference.decode_batch, pools.bandwidth)
    end = max(one.last for one in served)
    check_duration(end, scenario.where, "model, inference", "serving")
    pairs = list(zip(served, requests, strict=True))
    alone = _transfer_alone(pools)
    return {
        "time_to_first_token": _spread([one.first - r.arrival for one, r in pairs]),
        "parts": _parts(pairs),
        "time_per_output_token": statistics.fmean(tokens),
        "prefill_time": alone_time,
        "transfer_alone": alone,
        "kv_bytes": pools.cache,
        "paths": paths,
        "tier": inference.tier,
        **_throughput(inference, end),
        "links": _busiest(pools, carried, end),
        "all_reduces": _reduces(pools),
        "evidence": dict(_EVIDENCE),
        **_names(pools),
        "transfer_bandwidth": pools.cache / alone,
    }


def _names(pools: Pools) -> dict[str, str]:
    return {
        "model": pools.model.name,
        "cluster": pools.fabric.name,
        "gpu": pools.gpu.name,
    }


def _throughput(inference: Inference, end: float) -> dict[str, Any]:
    """Requests and tokens a second, over all `end` seconds."""
    return {
        "requests": inference.requests,
        "seconds": end,
        "requests_per_second": inference.requests / end,
        "tokens_per_second": inference.requests * inference.output / end,
    }


def _requests(
    pools: Pools, seconds: float, tokens: Sequence[float]
) -> tuple[list[Request], list[str]]:
    """The requests in the order of their arrival, workers taken in turn; and the paths of their caches."""
    inference = pools.inference
    requests, paths = [], set()
    for number in range(inference.requests):
        source, target = number % len(pools.prefill), number % len(pools.decode)
        ways = _ways(pools, source, target)
        paths |= {path for path, _ in ways}
        request = Request(
            number / inference.rate,
            source,
            seconds,
            tuple(sending(pools, legs, seconds) for _, legs in ways),
            target,
            tokens[target],
            (inference.output - 1) * tokens[target],
            loads_of(pools, pools.prefill[source]),
            seconds / pools.model.layers,
        )
        requests.append(request)
    return requests, sorted(paths)


def _ways(pools: Pools, source: int, target: int) -> list[tuple[str, tuple[Leg, ...]]]:
    """Paths and legs of a cache from a prefill worker to a decode worker, and of its copies to those after it."""
    targets = range(target, target + pools.inference.copies)
    workers = [pools.decode[at % len(pools.decode)] for at in targets]
    return [legs_of(pools, pools.prefill[source], worker) for worker in workers]


def _parts(pairs: Sequence[tuple[Served, Request]]) -> dict[str, float]:
    """Mean seconds of what a first token waits for."""
    parts = {
        "queue": [one.begun - request.arrival for one, request in pairs],
        "load": [one.loaded - one.begun for one, _ in pairs],
        "prefill": [one.prefilled - one.loaded for one, _ in pairs],
        "transfer": [one.sent - one.prefilled for one, _ in pairs],
        "place": [one.placed - one.sent for one, _ in pairs],
        "first_step": [one.first - one.placed for one, _ in pairs],
    }
    return {name: statistics.fmean(seconds) for name, seconds in parts.items()}


def _transfer_alone(pools: Pools) -> float:
    """Seconds of a cache from the first prefill worker to the first decode worker, with the network to itself."""
    _, legs = legs_of(pools, pools.prefill[0], pools.decode[0])
    rates = [min(leg.cap, _rate(pools, leg.links, leg.usage)) for leg in legs]
    pairs = zip(legs, rates, strict=True)
    return sum(leg.latency + leg.size / rate for leg, rate in pairs)


def _busiest(pools: Pools, carried: np.ndarray, end: float) -> list[dict[str, Any]]:
    """The links of the cluster that were used most until `end` (s)."""
    fabric = pools.fabric
    carried = carried[: len(fabric.links)]
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


def render(prediction: dict[str, Any]) -> str:
    """The page for people."""
    parts = prediction["parts"].items()
    links = prediction["links"]
    grades = prediction["evidence"].items()
    lines = [
        *_heading(prediction),
        *(
            f"    {name.replace('_', ' '):20} {format_duration(time)}"
            for name, time in parts
            if time
        ),
        *_rates(prediction),
        "",
        "  busiest links",
        *(
            f"    {one['name']:30} {100 * one['utilisation']:5.1f} %  {format_bytes(one['bytes'])}"
            for one in links
        ),
        "",
        f"  rests on: {', '.join(f'{name} {grade}' for name, grade in grades)}",
    ]
    return "\n".join(lines)


def _heading(prediction: dict[str, Any]) -> Iterator[str]:
    """The answer, what was asked, and the time to the first token."""
    model, cluster = prediction["model"], prediction["cluster"]
    first = format_duration(prediction["time_to_first_token"]["mean"])
    token = format_duration(prediction["time_per_output_token"])
    yield f"The first token comes after {first}, then one every {token}."
    yield f"{model} on {cluster}: {prediction['requests']} requests, prefill and decode apart"
    yield ""
    times = prediction["time_to_first_token"]
    mean, median, p99 = (
        format_duration(times[name]) for name in ("mean", "median", "p99")
    )
    yield f"  time to first token    {mean} (median {median}, 99 % {p99})"


def _rates(prediction: dict[str, Any]) -> Iterator[str]:
    """What a token takes, a cache on its way, and all requests together."""
    token = format_duration(prediction["time_per_output_token"])
    yield f"  time per output token  {token} (KV cache in {prediction['tier']})"
    size, paths = format_bytes(prediction["kv_bytes"]), ", ".join(prediction["paths"])
    alone = format_duration(prediction["transfer_alone"])
    bandwidth = format_bandwidth(prediction["transfer_bandwidth"])
    yield f"  KV cache of a prompt   {size} by {paths}, alone {alone} ({bandwidth})"
    requests = f"{prediction['requests_per_second']:.3g} requests/s"
    tokens = f"{count(prediction['tokens_per_second'])} tokens/s"
    yield f"  throughput             {requests}, {tokens}"
    if chosen := prediction["all_reduces"].items():
        told = ", ".join(f"{by} in {pool}" for pool, by in chosen)
        yield f"  all-reduces            {told}"
