"""Constants of the machine that a fabric stands for: its GPU's, or those of a file that `prestep calibrate` wrote.

A cluster file names such a file with the key `nccl`, relative to itself; `prestep collective --nccl-constants` says it
for one command. What the file leaves out is the GPU's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.collectives import constants
from prestep.sim.collectives.constants import OVERLAP, PLAIN, Constants, schema_over
from prestep.sim.collectives.plan import Plan, changed

EXPECTED = "constants of NCCL (TOML), as `prestep calibrate LOGS -o FILE` writes them"


def of(fabric: Any) -> Constants:
    """The constants with which collectives on `fabric` are predicted.

    Raises
    ------
    InputError
        With every mistake in the fabric's own file.
    """
    return (
        load_file(fabric.constants, fabric.gpu_model)
        if fabric.constants
        else constants.load(fabric.gpu_model)
    )


@lru_cache(maxsize=16)
def load_file(path: str, gpu: str) -> Constants:
    """The tables of a file laid over those of `gpu`, number by number."""
    before = constants.load(gpu)
    tables = schema.read(Path(path), schema_over(before.tables), EXPECTED)
    merged = {**before.tables}
    for name, table in tables.items():
        merged[name] = laid_over(name, merged.get(name, {}), table)
    # A file of overlap alone says nothing of collectives by themselves.
    evidence = "fitted" if set(tables) - {OVERLAP} else before.evidence
    return constants.build(merged, gpu, evidence)


def as_tested(plan: Plan, fabric: Any) -> Plan:
    """The plan as nccl-tests times it: its calls follow one another in one stream.

    Between NCCL's stream and the program's, of torch.distributed, each call waits for the other stream twice.
    """
    streams = of(fabric).streams
    if not streams:
        return plan
    return changed(plan, latency=max(0.0, plan.latency - streams))


def laid_over(
    name: str, before: Mapping[str, Any], table: Mapping[str, Any]
) -> dict[str, Any]:
    """One table of a file over the GPU's: by its numbers, or by those of its rows."""
    if name in PLAIN:
        return {**before, **table}
    rows = {key: _row(before.get(key, {}), row) for key, row in table.items()}
    return {**before, **rows}


def _row(before: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The file's numbers over the GPU's; what the GPU's rest on does not hold for them."""
    return {key: value for key, value in before.items() if key != "evidence"} | {**row}
