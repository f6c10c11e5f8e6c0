"""What a host and a framework do to a checkpoint, apart from links and disks: `sim/costs/checkpoint.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.units import parse_bandwidth, parse_bytes, parse_duration

#: Numbers of hosts and frameworks that save and load, and how each of them is read; a share is a number.
FILE = Path(__file__).parents[1] / "costs" / "checkpoint.toml"
#: Python time of torch.distributed.checkpoint for each tensor, and for each tensor and writer.
PYTHON = ("plan_tensor", "plan_writer", "item", "result_tensor", "result_writer")
_PARSE = {
    **dict.fromkeys(
        ("copy", "fresh", "serialise", "load", "writeback", "pin"), parse_bandwidth
    ),
    **dict.fromkeys(("expire", "plan", "context", *PYTHON), parse_duration),
    "memory": parse_bytes,
}
_KEYS: dict[str, schema.Schema] = {
    **{key: schema.sourced(schema.Written(parse)) for key, parse in _PARSE.items()},
    "dirty_share": schema.sourced(schema.Number(above=True, high=1.0)),
}
SCHEMA = schema.Table(_KEYS, _KEYS)


@cache
def table() -> dict[str, Any]:
    """The numbers of `FILE` in SI units, with grades and sources."""
    return {
        key: (_host_value(key, entry["value"]), entry["evidence"], entry["source"])
        for key, entry in schema.read(FILE, SCHEMA).items()
    }


def _host_value(key: str, value: Any) -> float:
    parse = _PARSE.get(key)
    return parse(value, FILE.name, key) if parse else float(value)


def constants() -> dict[str, float]:
    """The same in SI units, by key."""
    return {name: float(entry[0]) for name, entry in table().items()}
