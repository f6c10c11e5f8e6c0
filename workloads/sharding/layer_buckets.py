"""Buckets of a chunk: what Megatron reduces, and gathers, in one operation.

Parameters fill buckets from the chunk's end (core/distributed/param_and_grad_buffer.py): one closes with the parameter
that brings it to its size. Those kept in 8 bits have a buffer of their own; all others are then put to its last bucket,
the one of the chunk's first layers (partition_buckets): embedding and head are reduced when everything else has been,
and gathered before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prestep.workloads.megatron.rank import Rank, Weights
from prestep.workloads.megatron.units import Unit
from prestep.workloads.sharding.buckets import BucketPolicy, cut

# Units whose parameters may be kept in 8 bits.
QUANTIZED = ("layer", "further")
NOTHING = Weights()

Part = tuple[Unit, int]  # a unit, and how often it runs


@dataclass(frozen=True)
class Bucket:
    """Parameters that are reduced together, and the bytes in which they are gathered."""

    reduced: Weights = NOTHING
    gathered: Weights = NOTHING

    def __add__(self, other: Bucket) -> Bucket:
        reduced = self.reduced + other.reduced
        return Bucket(reduced, self.gathered + other.gathered)


@dataclass(frozen=True)
class Stretch:
    """Repetitions of a unit that run on end.

    Attributes
    ----------
    unit, times
        What runs, and how often.
    needs
        The bucket without which its forward pass does not begin.
    later
        Of one run with parameters in several buckets: operations of its forward pass, and the bucket that each needs.
    ahead
        The last bucket that has set off when it begins, one beyond its own.
    completes
        Buckets whose gradients are all there after its backward pass, in the order in which they are.
    within
        As many operations of the backward pass, of the last run, as bring the gradients of each.
    """

    unit: Unit
    times: int
    needs: int
    ahead: int
    completes: tuple[int, ...] = ()
    later: tuple[tuple[int, int], ...] = ()
    within: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bucketed:
    """A chunk by its buckets, both in the order of the forward pass."""

    buckets: tuple[Bucket, ...]
    stretches: tuple[Stretch, ...]


def total(rank: Rank, parts: Sequence[Part]) -> Bucket:
    """All parameters of some units."""
    everything = Bucket()
    for unit, times in parts:
        weights = rank.weights(unit, times)
        everything += Bucket(weights, _bytes(rank, unit, weights))
    return everything


def bucketed(rank: Rank, parts: Sequence[Part], policy: BucketPolicy) -> Bucketed:
    """A chunk in the buckets of a policy."""
    runs = list(_runs(parts))
    apart = {unit.name for unit, _ in runs if _apart(rank, unit)}
    if len(apart) == len({unit.name for unit, _ in runs}):
        apart = set()
    buckets, owners = _filled(rank, runs, apart, policy)
    return Bucketed(tuple(buckets), tuple(_stretches(runs, owners, len(buckets))))


def _runs(parts: Sequence[Part]) -> Iterator[tuple[Unit, bool]]:
    """Every run of every unit, and whether it brings parameters (multi-token prediction uses the head again)."""
    for unit, times in parts:
        for n in range(times):
            yield unit, n == 0 or unit.name != "head"


def _filled(
    rank: Rank,
    runs: Sequence[tuple[Unit, bool]],
    apart: set[str],
    policy: BucketPolicy,
) -> tuple[list[Bucket], list[list[int]]]:
    """Buckets in the order of the forward pass, and those of each run's parameters, from its first one on."""
    owners: list[list[int]] = [[] for _ in runs]
    pieces = [
        ((at, weights), float(weights.total))
        for at, (unit, brings) in reversed(list(enumerate(runs)))
        if brings and unit.name not in apart
        for weights in reversed(list(_pieces(rank, unit)))
    ]
    buckets = []
    for number, (members, _) in enumerate(cut(policy, pieces)):
        bucket = Bucket()
        for at, weights in members:
            bucket += Bucket(weights, _bytes(rank, runs[at][0], weights))
            owners[at].append(number)
        buckets.append(bucket)
    buckets = buckets or [Bucket()]
    for unit, brings in runs:
        if brings and unit.name in apart:
            buckets[-1] += total(rank, [(unit, 1)])
    last = len(buckets) - 1
    return buckets[::-1], [[last - n for n in reversed(held)] or [0] for held in owners]


def _pieces(rank: Rank, unit: Unit) -> Iterator[Weights]:
    """The parameters of a unit in the order of its forward pass; all together where experts are among them."""
    weights = rank.weights(unit, 1)
    if weights.experts:
        yield weights
        return
    yield from (Weights(n, 0) for n in unit.parameters.values())


def _stretches(
    runs: Sequence[tuple[Unit, bool]], owners: Sequence[Sequence[int]], count: int
) -> Iterator[Stretch]:
    """Runs on end as far as nothing is waited for, or complete, between them."""
    seen: set[int] = set()
    open_: Stretch | None = None
    for (unit, _), held in zip(runs, owners, strict=True):
        # The run that has a bucket's first parameter is the last one, backward, to bring a gradient.
        completes, within = _completions(unit, held, sorted(set(held) - seen))
        seen.update(held)
        (_, needs), *later = _demands(unit, held)
        alone = completes or later or (open_ and open_.later)
        if open_ and open_.unit is unit and open_.needs == needs and not alone:
            open_ = replace(open_, times=open_.times + 1)
            continue
        if open_:
            yield open_
        ahead = min(max(held) + 1, count)
        open_ = Stretch(unit, 1, needs, ahead, completes, tuple(later), within)
    if open_:
        yield open_


def _demands(unit: Unit, held: Sequence[int]) -> list[tuple[int, int]]:
    """Operations of a run's forward pass at which it comes to parameters of a later bucket, and that bucket."""
    demands = [(0, held[0])]
    if len(held) != len(unit.parameters):  # experts lie in one bucket
        return demands
    names = zip(unit.parameters, held, strict=True)
    for operation, bucket in sorted((unit.forward.at.get(n, 0), at) for n, at in names):
        before, needed = demands[-1]
        if bucket > needed:
            if operation == before:
                demands.pop()
            demands.append((operation, bucket))
    return demands


def _completions(
    unit: Unit, held: Sequence[int], new: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Buckets that a run completes, and the operations of its backward pass up to the last gradient of each."""
    # Experts lie in one bucket; of scans and indexers nothing marks where a gradient is there: all are at the end.
    marked = unit.parameters.keys() <= unit.backward.at.keys()
    if len(held) != len(unit.parameters) or not marked:
        return tuple(reversed(new)), ()
    places = [*zip(unit.parameters, held, strict=True)]
    ends = [
        (max(unit.backward.at[p] for p, n in places if n == bucket), bucket)
        for bucket in new
    ]
    return tuple(n for _, n in sorted(ends)), tuple(end for end, _ in sorted(ends))


def _apart(rank: Rank, unit: Unit) -> bool:
    """Whether a unit's parameters are in another buffer than those in 8 bits."""
    return rank.o.fp8_param_gather and unit.name not in QUANTIZED


def _bytes(rank: Rank, unit: Unit, weights: Weights) -> Weights:
    """Layers are gathered in 8 bits where asked, else in 16.

    MXFP8 in 16 as well: blocks along rows cannot be made of those along columns, so that every rank casts what it has
    gathered (``reuse_grad_buf_for_mxfp8_param_ag`` of finish_param_sync).
    """
    narrow = rank.o.fp8_param_gather and rank.o.fp8_scaling != "mx"
    return weights * (1 if narrow and unit.name in QUANTIZED else 2)
