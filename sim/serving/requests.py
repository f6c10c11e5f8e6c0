"""Requests for tokens as SimPy processes: prefill workers, KV caches on their way over links, decode workers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from prestep.sim.engine.clock import Clock
from prestep.sim.engine.fluid import Network
from prestep.sim.engine.storage import Leg, flow


@dataclass(frozen=True, eq=False)
class Sending:
    """A cache on its way to one worker: `early` beside the prefill, then `legs`, one after the other."""

    legs: tuple[Leg, ...]
    early: Leg | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """A request for tokens: it takes its turn at a prefill worker, sends its KV cache, and decodes.

    Attributes
    ----------
    arrival, prefill : float
        When it comes, and seconds of work at the worker `queue`.
    loads : tuple of Leg
        What the prefill worker reads first, one after the other.
    sends : tuple of Sending
        The cache on its way to one worker or several, all at once.
    first_layer : float
        Seconds of prefill after which the first bytes of a cache are there.
    first, decode : float
        Seconds to the first token after the cache is there, and to the last, at the worker `slots`.
    """

    arrival: float
    queue: int
    prefill: float
    sends: tuple[Sending, ...]
    slots: int
    first: float
    decode: float
    loads: tuple[Leg, ...] = ()
    first_layer: float = 0.0


@dataclass
class Served:
    """When a request had its turn, had loaded what was there, ended its prefill, had sent its cache, had a place, its
    first and its last token, s."""

    begun: float = 0.0
    loaded: float = 0.0
    prefilled: float = 0.0
    sent: float = 0.0
    placed: float = 0.0
    first: float = 0.0
    last: float = 0.0


def serve(
    requests: Sequence[Request], at_once: int, bandwidth: np.ndarray
) -> tuple[list[Served], np.ndarray]:
    """Plays all requests: prefill workers do one at a time, decode workers `at_once`; bytes share the links.

    Returns
    -------
    list of Served, np.ndarray
        Times of every request, and bytes that every link carried.
    """
    env = Clock()
    network = Network(env, bandwidth)
    queues = {r.queue: simpy.Resource(env, 1) for r in requests}
    slots = {r.slots: simpy.Resource(env, at_once) for r in requests}
    found = [Served() for _ in requests]
    for request, times in zip(requests, found, strict=True):
        env.process(
            _request(
                env,
                network,
                request,
                queues[request.queue],
                slots[request.slots],
                times,
            )
        )
    env.run()
    return found, network.carried


def _request(
    env: simpy.Environment,
    network: Network,
    r: Request,
    queue: simpy.Resource,
    slots: simpy.Resource,
    times: Served,
) -> Generator[Any, Any, None]:
    yield env.timeout(r.arrival)
    with queue.request() as turn:
        yield turn
        times.begun = float(env.now)
        yield from flow(env, network, r.loads, [])
        times.loaded = float(env.now)
        sent = _sent(env, network, r)
        yield env.timeout(r.prefill)
        times.prefilled = float(env.now)
    yield sent
    times.sent = float(env.now)
    with slots.request() as place:
        yield place
        times.placed = float(env.now)
        yield env.timeout(r.first)
        times.first = float(env.now)
        yield env.timeout(r.decode)
        times.last = float(env.now)


def _sent(env: simpy.Environment, network: Network, r: Request) -> simpy.Event:
    """When all workers have the cache, the prefill of which begins now."""
    made = [env.timeout(r.prefill) for _ in r.sends]
    pairs = zip(r.sends, made, strict=True)
    return env.all_of(
        [env.process(_send(env, network, r, way, done)) for way, done in pairs]
    )


def _send(
    env: simpy.Environment,
    network: Network,
    r: Request,
    sending: Sending,
    prefilled: simpy.Event,
) -> Generator[Any, Any, None]:
    """A cache: what leaves beside the prefill, from its first layer on; then, once that is sent and made, the rest."""
    if sending.early is not None:
        yield env.timeout(r.first_layer)
        yield from flow(env, network, (sending.early,), [])
    yield prefilled
    yield from flow(env, network, sending.legs, [])
