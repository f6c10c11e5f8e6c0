"""Widths of collectives alone (`[alone.*]` of sim/costs/uncertainty.toml): nine in ten errors lie within 1.645 of them.

Rows that they may be taken from: held-out sizes of the set `collectives` (GPUs that were fitted), rows of
`collectives-leafspine` that constants were fitted to (shaped ports), and of the published table a third of the groups
(cluster, ranks, operation) that no constant was fitted to (GPUs that were not, NVLinks without a switch, racks,
networks). No row of a host on PCIe alone is left that no constant was fitted to: there fitted ones count.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.formats.leafspine import read_lines
from lab.formats.published_collectives import read_csv
from lab.sets import collectives
from prestep.sim.collectives.interval import (
    DIRECT,
    NETWORK,
    PARTS,
    PCIE,
    RACK,
    SHAPED,
    latency_share,
    place_of,
)
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.costs.spreads import NOMINAL, quantile
from prestep.validation.formats.collective_rows import IN_PLACE, Row, members
from prestep.validation.sets.predict_collective import (
    cluster_of,
    gpus_of,
    loadable,
    predict_row,
)

END = 0.2  # of the time: what has less of it is bound by bandwidth, what has more than the rest by latency
Sample = tuple[float, float]  # share of latency, |error|


def for_widths(row: Row) -> bool:
    """Whether a published row is of the third of groups that widths are taken from."""
    return zlib.crc32(f"{row.cluster or ''}|{row.ranks}|{row.op}".encode()) % 3 == 0


def alone_widths(published: Path | None) -> dict[str, tuple[Mapping[str, float], int]]:
    """Widths by place, and how many rows they are from."""
    found = {
        "fitted": list(_samples("collectives", None, "fitted", fitted=False)),
        SHAPED: list(_samples("collectives-leafspine", None, SHAPED, fitted=True)),
    }
    for place in ("guess", DIRECT, PCIE, RACK, NETWORK) if published else ():
        found[place] = list(
            _samples("published-collectives", published, place, fitted=place == PCIE)
        )
    return {place: (fit(samples), len(samples)) for place, samples in found.items()}


def _samples(
    name: str, rows: Path | None, place: str, fitted: bool
) -> Iterator[Sample]:
    chosen = collectives.load(name)
    configurations = chosen.fitted_configurations()
    paths = [chosen.folder / file for file in chosen.files] if rows is None else [rows]
    for path in paths:
        for row in read_csv(path) if rows else read_lines(path)[0]:
            if (
                row.skip
                or loadable(row)
                or chosen.taken(row, configurations) != fitted
                or (rows and not for_widths(row))
            ):
                continue
            fabric = cluster_of(row)
            op, ranks = members(row, gpus_of(row, fabric))
            plan = plan_collective(
                op,
                row.size,
                ranks,
                fabric,
                row.wanted,
                in_place=row.op.endswith(IN_PLACE),
            )
            if place_of(plan, fabric) == place:
                yield (
                    latency_share(plan, fabric),
                    abs(math.log(predict_row(row).time / row.time)),
                )


def fit(samples: Sequence[Sample]) -> Mapping[str, float]:
    """The widths of latency, of both and of bandwidth that hold nine in ten errors of either end and of the middle."""
    # What is nearly all bytes has a little latency too, whose error is another one: each part is that much smaller.
    whole = [(share, error / math.hypot(share, 1 - share)) for share, error in samples]
    ends = {
        "latency": [error for share, error in whole if share > 1 - END],
        "bandwidth": [error for share, error in whole if share < END],
    }
    widths = {part: _ninth(errors) / quantile() for part, errors in ends.items()}
    widths = {
        part: widths["bandwidth"] if math.isnan(width) else width
        for part, width in widths.items()
    }
    middle = [(s, e) for s, e in samples if END <= s <= 1 - END]
    # What of each error the two ends leave over, as a width of the middle.
    left = [_left(share, error, widths) for share, error in middle]
    return {
        part: (widths | {"between": _ninth(left) if left else 0.0})[part]
        for part in PARTS
    }


def _left(share: float, error: float, widths: Mapping[str, float]) -> float:
    ends = math.hypot(share * widths["latency"], (1 - share) * widths["bandwidth"])
    more = (error / quantile()) ** 2 - ends**2
    return math.sqrt(max(0.0, more)) / (4 * share * (1 - share))


def _ninth(values: Sequence[float]) -> float:
    """The smallest value that `NOMINAL` of them do not exceed; nan of none."""
    return sorted(values)[math.ceil(NOMINAL * len(values)) - 1] if values else math.nan
