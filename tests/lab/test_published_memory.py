"""Memory that torchtitan's own benchmarks printed beside throughput: what PyTorch's allocator had reserved."""

from __future__ import annotations

import re

import pytest

from lab import CASES
from lab.sets.published import read, run_of
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import parse_scenario

GIB = 2.0**30
ROWS = {row["id"]: row for row in read(CASES / "published" / "rows.csv")}
#: Runs without tensor parallelism by the error that is left: eager, compiled, in float8, whole layers again, over cp.
LEFT = {
    "titan-0001": 0.03,
    "titan-0002": 0.03,
    "titan-0003": 0.03,
    "titan-0007": 0.08,
    "titan-0009": 0.08,
    "titan-0031": 0.03,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_torchtitan_reserves_what_it_printed(name: str) -> None:
    """Of its own compiled blocks and FSDP2, with the loss on logits in fp32; nothing was fitted to memory."""
    row = ROWS[name]
    printed = re.search(r"([\d.]+) GiB", row["notes"])
    assert printed is not None
    scenario = parse_scenario(run_of(row).scenario, name)
    memory = lowered_on(scenario, load_fabric(scenario)).memory
    held = max(account.reserved for account in memory.values()) / GIB
    assert held == pytest.approx(float(printed[1]), rel=LEFT[name])


@pytest.mark.parametrize(("cp", "shards"), [(1, 2), (4, None)])
def test_ranks_that_share_a_sequence_share_parameters(
    cp: int, shards: int | None
) -> None:
    """torchtitan's degree of shards leaves out cp, over which it shards too: 2 x 4 of eight replicas are all."""
    row = ROWS["titan-0009"] | {"cp": str(cp), "dp": str(8 // cp)}
    parallel = run_of(row | {"global_batch": "8"}).scenario["parallel"]
    assert parallel.get("fsdp_shards") == shards
