"""Laws of Transformer Engine's user buffers: what products beside exchanges compute, leave free, and wait for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain, Comm, OpGraph
from prestep.sim.predict import predict
from prestep.workloads.exchanges.tensor import SCATTERS, gathered_product
from prestep.workloads.megatron import linear
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape
from tests.executed import executed
from tests.sim.graphs import US, Op, all_reduce, graph
from tests.sim.test_engine import run, times
from tests.workloads.test_megatron import scenario

LAYOUT = {"tp": 4, "sequence_parallel": True}
# Links without latency that carry everything at once.
FREE = {"nvlink.bandwidth": "10000x", "nvlink.latency": "0.0001x"}


def layered(precision: str = "bf16", free: bool = False, **megatron: Any) -> Any:
    cluster = {
        "name": "dgx-h100",
        "gpus": 4,
        "set": FREE if free else {},
        "host_factor": 0.01,
    }
    wide = {"hidden": 4096, "heads": 32, "ffn": 16384}
    training = {"precision": precision, "seq_len": 2048, "global_batch": 1}
    return scenario(LAYOUT, training, megatron, cluster, **wide)


def graphs(precision: str, **megatron: Any) -> list[OpGraph]:
    """Of the layers, each once."""
    kernels = executed(layered(precision, **megatron)).lowered.graph.kernels
    return [k.graph for k in kernels if isinstance(k, Chain) and not k.tail]


def flops(made: list[OpGraph]) -> float:
    """Of all products, as often as they are launched."""
    launched = (
        g.kernels[at] for g in made for p in g.programs for at in p.payload[p.kind == 0]
    )
    return float(sum(k.flops for k in launched if k.is_product))


def bytes_of(made: list[OpGraph], op: str) -> float:
    return sum(c.size for g in made for c in g.comms if c.op == op and c.axis == "tp")


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_parts_are_the_whole(precision: str) -> None:
    """However products are cut, they compute as much, and exchanges move as many bytes."""
    whole, cut = (
        graphs(precision, tp_comm_overlap=overlap) for overlap in (False, True)
    )
    assert flops(cut) == pytest.approx(flops(whole), rel=1e-12)
    for op in ("all_gather", "reduce_scatter"):
        assert bytes_of(cut, op) == pytest.approx(bytes_of(whole, op), rel=1e-12)


def test_products_leave_sms_free() -> None:
    """A pipeline's products leave its SMs from the first part on; a ring's leave one; gathers' products leave none."""
    for precision, quantized in (("bf16", False), ("fp8", True)):
        made = graphs(precision, tp_comm_overlap=True)
        left = {k.reserved for g in made for k in g.kernels if isinstance(k, Kernel)}
        assert left == {0, *(SCATTERS[part][quantized].sms for part in ("proj", "fc2"))}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rows_that_are_gathered_are_multiplied_on_three_streams(ranks: int) -> None:
    """A product for each stream and one for the rows that come last; together they have all rows."""
    sizes = list[int]()
    rows = 512 * ranks
    members = tuple(range(ranks))
    group = Group("tp", members, (members,), ranks)
    t = Tape(0, Shared(), defaultdict(float))
    gathered_product(t, group, 2.0 * rows, rows, lambda part, _: sizes.append(part))
    assert sum(sizes) == rows
    assert len(sizes) == min(ranks, 4)
    assert sizes[-1] == rows // ranks


def copied(made: Comm) -> Comm:
    return replace(made, copied=True)


def test_copies_wait_for_no_sm() -> None:
    """An exchange by copy engines begins beside a kernel; a kernel of NCCL's begins when that one ends."""
    for comm, begins in ((all_reduce(), 12.0), (copied(all_reduce()), 2.0)):
        ops = [[Op("compute", 10.0), Op("nccl", comms=(0,))] for _ in range(2)]
        done = run(graph(ops, [comm]), idle=frozenset(), channels=4)
        assert times(done)[1][0] == pytest.approx(begins), US


def test_overlap_pays() -> None:
    """Beside products exchanges cost less than before them."""
    plain, beside = (
        predict(layered(tp_comm_overlap=on)).step_time for on in (False, True)
    )
    assert beside < plain


def test_sms_that_are_left_free_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that leave more SMs to others take longer, also where links cost nothing."""

    def leaving(sms: int) -> float:
        how = {
            part: tuple(replace(one, sms=sms) for one in ways)
            for part, ways in SCATTERS.items()
        }
        monkeypatch.setattr(linear, "SCATTERS", how)
        return predict(layered(free=True, tp_comm_overlap=True)).step_time

    none, some, many = (leaving(sms) for sms in (0, 16, 32))
    assert none < some < many
