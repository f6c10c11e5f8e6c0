"""How a `<gpu>-libraries.toml` is worded."""

from __future__ import annotations

from prestep.sim.costs.facts import Stack

HEAD = """\
# Written by lab/fit/library_steps.py; do not edit. Seconds, bytes. Grade: fitted on an H200 (products
# of steps); in fp8 by the GPU's tile model, shares on an H100 and an H200.
# Table: products.parquet

[libraries]
"""
LOAD = """
[sustained]  # time of products under long load over that of short runs
"""


def line(name: str, stack: Stack) -> str:
    """A line of a GPU's file."""
    values = ", ".join(f"{key} = {_toml(each)}" for key, each in vars(stack).items())
    return f"{name} = {{ {values} }}"


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"
