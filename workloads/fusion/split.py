"""Reductions that Inductor makes in several kernels, since one would leave SMs idle: further ones add partial results.

Source: torch/_inductor, ir.py, Reduction.num_splits, and choices.py, InductorChoices.reduction_split_factor (PyTorch
2.13, on Hopper); codegen/simd.py, _codegen_mix_order_reduction, for sums of rows that are made along with others.
"""

from __future__ import annotations

from math import ceil, isqrt

from prestep.workloads.operators.row_sums import MULTIPROCESSORS, RESIDENT, WARP

THREADS = 8 * WARP  # of a block
FEWEST, MOST = WARP, 512  # elements that a thread reduces
SHORT = 8192  # elements of one result that one block reduces, where they are neighbours (524,288 from Blackwell on)
VALUES, WIDTH = 4, 128  # rows that a thread reads at once, columns of a block


def partials(
    results: int, reduced: int, across: bool, multiprocessors: int = MULTIPROCESSORS
) -> list[int]:
    """Partial results that each further kernel of a reduction adds up; none where one kernel does it all.

    ``reduced`` are elements of each result, ``across`` says that neighbours in memory belong to different results.

    Examples
    --------
    A bias's gradient over 4,096 tokens takes two kernels, over the 34 of a tiny picture one, as does a row's statistic:

    >>> partials(4096, 4096, across=True), partials(64, 34, across=True)
    ([131072], [])
    >>> partials(34, 64, across=False)
    []
    """
    parts = split_factor(results, reduced, across, multiprocessors)
    if parts <= 1:
        return []
    first = partials(results * parts, ceil(reduced / parts), across, multiprocessors)
    return [*first, results * parts]


def split_factor(
    results: int, reduced: int, across: bool, multiprocessors: int = MULTIPROCESSORS
) -> int:
    """Parts into which the elements of each result are divided; 1 where results alone keep all SMs busy."""
    total = results * reduced
    resident = multiprocessors * RESIDENT
    if results > 1 and (reduced <= FEWEST or results >= multiprocessors * 2 * WARP):
        return 1
    if across and results > 1:
        columns = ceil(results / WIDTH)
        each = VALUES * ceil(resident // THREADS / columns)
        few, width, slack = total < FEWEST * resident, VALUES, 20
    else:
        if results >= 2 * multiprocessors or reduced <= SHORT:
            return 1
        each = THREADS * ceil(resident // (2 * THREADS) / results)
        few, width, slack = total <= FEWEST * resident, THREADS, 30
    if few:
        size = FEWEST
    elif total < MOST * resident:
        wanted = ceil(reduced / each)
        even = _even(reduced, wanted)
        size = max(even, FEWEST) if abs(even - wanted) < slack else wanted
    else:
        even = _even(reduced, MOST)
        size = even if abs(even - MOST) < 50 else MOST
    return ceil(reduced / (width * size))


def _even(reduced: int, wanted: int) -> int:
    """The divisor nearest to a number."""
    small = [n for n in range(1, isqrt(reduced) + 1) if reduced % n == 0]
    return min(
        sorted({*small, *(reduced // n for n in small)}), key=lambda n: abs(n - wanted)
    )


def partials_both_ways(
    results: int, reduced: int, multiprocessors: int = MULTIPROCESSORS
) -> int:
    """Partial results of a sum of rows in a kernel that also reduces each row: a block sums 16 to 128 rows."""
    share = max(1, reduced // (8 * multiprocessors))
    rows = min(128, max(16, 1 << share.bit_length() - 1))
    return results * ceil(reduced / rows)
