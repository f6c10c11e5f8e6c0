"""Laws of documents in packed samples, against samples that are packed from drawn lengths."""

from __future__ import annotations

import random

import pytest

from prestep.workloads.packing import most, pieces, weighted

LONGEST, SCALE, DRAWN = 1024, 200.0, 200_000


@pytest.fixture(scope="module")
def lengths() -> list[float]:
    """Exponential lengths, of which those of more than a sample are left out."""
    random.seed(7)
    drawn = (random.expovariate(1 / SCALE) for _ in range(DRAWN))
    return [length for length in drawn if length <= LONGEST]


def test_attention_works_on_squares_of_lengths(lengths: list[float]) -> None:
    """Its work for a token is the sum of squares over the sum."""
    mean = sum(lengths) / len(lengths)
    expected = sum(length**2 for length in lengths) / sum(lengths)
    assert weighted(mean, LONGEST) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [(1, 2.0), (512, 1024 * 2 / 3), (1023, 1023.0), (1024, 1024.0), (2000, 1024.0)],
    ids=["exponential", "uniform", "nearly whole", "whole", "longer than a sample"],
)
def test_distributions_that_are_known(mean: float, expected: float) -> None:
    """Integrals by hand: exponential, uniform (a third over a half), and all of one length."""
    assert weighted(mean, LONGEST) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("together", [1, 8, 32])
def test_the_sample_with_most_documents(lengths: list[float], together: int) -> None:
    """Samples cut from one stream: of so many, the mean count of the one that holds most."""
    counts, inside, filled = list[int](), 0, 0.0
    for length in lengths:
        inside, filled = inside + 1, filled + length
        if filled >= LONGEST:
            counts.append(inside)
            inside, filled = 0, filled - LONGEST
    largest = [max(counts[i : i + together]) for i in range(0, len(counts), together)]
    mean = sum(lengths) / len(lengths)
    expected = sum(largest) / len(largest)
    assert most(mean, LONGEST, together) == pytest.approx(expected, rel=0.07)


@pytest.mark.parametrize("mean", [20, 100, 250, 500, 700, 1023])
def test_pieces_cost_attention_what_documents_do(mean: float) -> None:
    count, length = pieces(4, LONGEST, mean)
    expected = 4 * LONGEST * weighted(mean, LONGEST)
    assert count * length**2 == pytest.approx(expected, rel=0.02)
