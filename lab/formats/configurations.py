"""What rows ran: equal for two that ran the same thing on the same machine, so that one run again is no less fitted."""

from __future__ import annotations

import json
from typing import Any

from prestep.validation.formats import collective_rows, rows
from prestep.validation.formats.rows import BOOKKEEPING


def of_step(row: rows.Row) -> str:
    """Text that two rows of training steps share if they ran the same thing."""
    case = {key: value for key, value in row.case.items() if key not in BOOKKEEPING}
    # Ranks of `single` know nothing of each other, unless they share experts.
    alone = case.get("mode") == "single" and case.get("ep", 1) == 1
    parts = [case, 1 if alone else row.world, row.label, dict(row.env)]
    return json.dumps(parts, sort_keys=True)


def of_collective(row: collective_rows.Row) -> tuple[Any, ...]:
    """Equal for two rows of collectives that ran the same thing."""
    place = row.cluster, row.hosts, row.per_host
    return (row.op, row.ranks, row.size, row.wanted, *place)
