"""Where ranks are decides what a step takes; how axes are ordered decides who is a neighbour."""

from __future__ import annotations

import json
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.cli import main
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.wires import paths
from prestep.sim.errors import InputError
from prestep.sim.lowering import place_of
from prestep.sim.planning.plans import _merged
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.topologies import load_cluster
from prestep.workloads.job.layout import axis_order
from prestep.workloads.lowered import Layout, Place, Site
from prestep.workloads.megatron.lower import lower
from prestep.workloads.parallel.folding import Grid
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.torch import lower as lowering
from tests.executed import executed, of_lowered

SMALL = {
    "kind": "transformer",
    "hidden": 256,
    "layers": 4,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 512,
    "vocab": 1024,
}
TWO = {
    "cluster": {"name": "h200-leafspine-2x2"},
    "model": SMALL,
    "training": {"seq_len": 512, "micro_batch": 2},
}


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.permutations(["tp", "pp", "dp"]),
)
def test_every_place_of_the_grid_has_one_rank(
    dp: int, pp: int, tp: int, order: list[str]
) -> None:
    """Ranks and places are the same in number and each other's inverse, whatever the order of the axes."""
    layout = Layout(dp, pp, tp, tuple(order))
    places = [(d, p, t) for d in range(dp) for p in range(pp) for t in range(tp)]
    assert sorted(layout.rank(*place) for place in places) == list(range(layout.world))
    assert all(layout.where(layout.rank(*place)) == place for place in places)


def test_the_first_axis_is_on_neighbours() -> None:
    """tp-dp-pp: tensor-parallel ranks are neighbours, pipeline stages farthest apart."""
    layout = Layout(2, 2, 2, ("tp", "dp", "pp"))
    assert [layout.rank(0, 0, t) for t in range(2)] == [0, 1]
    assert [layout.rank(d, 0, 0) for d in range(2)] == [0, 2]
    assert [layout.rank(0, p, 0) for p in range(2)] == [0, 4]


@pytest.mark.parametrize(
    ("order", "framework", "axes"),
    [
        (None, "pytorch-eager", "tp cp ep pp dp"),
        (None, "megatron", "tp cp ep dp pp"),
        ("tp-cp-ep-dp-pp", "pytorch-eager", "tp cp ep dp pp"),
        ("dp-tp", "pytorch-eager", "dp tp cp ep pp"),
        ("DP-tp", "pytorch-eager", "dp tp cp ep pp"),
    ],
)
def test_order_of_axes(order: str | None, framework: str, axes: str) -> None:
    """As it is said; PyTorch's meshes have dp outermost, Megatron-LM pp; axes that were not named follow."""
    tables = TWO | {
        "training": {"framework": framework},
        "parallel": {"order": order} if order else {},
    }
    assert axis_order(parse_scenario(tables, "t")) == tuple(axes.split())


@pytest.mark.parametrize("order", ["tp-tp", "tp,dp", "tp-xp", "", "tp-dp"])
def test_a_wrong_order_is_told(order: str) -> None:
    """An axis twice, one that does not exist, or one with several ranks left out."""
    with pytest.raises(InputError, match=r"parallel\.order"):
        parse_scenario(
            TWO
            | {
                "parallel": {"order": order, "pp": 2, "tp": 2},
                "training": {"microbatches": 2},
            },
            "t",
        )


def test_experts_are_spread_over_neighbours_of_the_data_axis() -> None:
    """dp before ep is refused, with the reason."""
    with pytest.raises(InputError, match="ep before dp"):
        parse_scenario(TWO | {"parallel": {"dp": 2, "ep": 2, "order": "tp-dp-ep"}}, "t")


def test_tensor_parallel_ranks_belong_into_one_host() -> None:
    """Neighbours within a host are fast; the same axis across hosts costs much more, by order or by placement."""
    parallel, busy = (
        {"tp": 2, "dp": 2, "data_parallel": "ddp"},
        TWO | {"training": {"micro_batch": 64}},
    )
    near = predict(parse_scenario(busy | {"parallel": parallel}, "t")).step_time
    far = predict(
        parse_scenario(busy | {"parallel": parallel | {"order": "dp-tp"}}, "t")
    ).step_time
    by_rail = predict(
        parse_scenario(busy | {"parallel": parallel, "placement": {"by": "rail"}}, "t")
    ).step_time
    assert far > 1.5 * near and by_rail == pytest.approx(far, rel=1e-6)


@pytest.mark.parametrize(
    "order", ["-".join(order) for order in permutations(["tp", "dp"])]
)
def test_folding_holds_for_every_order(order: str) -> None:
    """All ranks simulated give what one rank of each kind gives."""
    parallel = {"tp": 2, "dp": 2, "data_parallel": "ddp", "order": order}
    folded = executed(parse_scenario(TWO | {"parallel": parallel}, "t"))
    slow = {"slow_rank": 3, "slow_factor": 1.0}
    unfolded = executed(
        parse_scenario(TWO | {"parallel": parallel, "faults": slow}, "t")
    )
    assert len(unfolded.run.end) == 4 > len(folded.run.end)
    assert unfolded.run.finished == pytest.approx(folded.run.finished, rel=0.02)


def test_of_copies_that_differ_the_slowest_counts() -> None:
    """One plan for all: bytes of each on its links, the longest latency, the lowest limit."""
    fabric = load_cluster("rail-h100", hosts=2)
    groups = fabric.gpus[:2], ("host0/gpu2", "host1/gpu2")
    near, far = (
        plan_collective("all_reduce", 2.0**20, group, fabric) for group in groups
    )
    for plans in ([near, far], [far, near]):
        both = _merged(plans)
        assert (
            both.latency == max(near.latency, far.latency)
            and near.latency != far.latency
        )
        assert both.rate_cap == min(near.rate_cap, far.rate_cap)
        assert both.usage.sum() == pytest.approx(near.usage.sum() + far.usage.sum())


def test_the_order_in_which_hosts_are_listed_is_the_order_of_the_ring() -> None:
    """A ring that crosses the spine at every hop takes longer than one that crosses it twice, if the spine is narrow."""
    tables = {
        "cluster": {"name": "h200-leafspine-4x1", "set": {"spine.bandwidth": "1 GB/s"}},
        "model": {"kind": "mlp", "sizes": [4096, 4096, 4096, 1]},
        "parallel": {"dp": 4},
    }
    together = predict(
        parse_scenario(tables | {"placement": {"by": "leaf"}}, "t")
    ).step_time
    scattered = predict(
        parse_scenario(tables | {"placement": {"by": "scattered"}}, "t")
    ).step_time
    listed = ["host0", "host2", "host1", "host3"]
    assert scattered > 1.5 * together
    assert (
        predict(
            parse_scenario(tables | {"placement": {"hosts": listed}}, "t")
        ).step_time
        == scattered
    )


def test_a_part_of_a_cluster_needs_no_gpus_key(tmp_path: Path) -> None:
    """Ranks on two of four hosts by list, by hostfile in the section or in [cluster], by name: all the same."""
    (tmp_path / "hosts").write_text("host1 slots=1\nhost3 slots=1\n", encoding="utf-8")
    path = tmp_path / "scenario.toml"
    path.write_text(
        '[cluster]\nname = "h200-leafspine-4x1"\n[model]\nkind = "mlp"\nsizes = [1024, 1024, 1]\n[parallel]\ndp = 2\n',
        encoding="utf-8",
    )
    ways = (
        'placement.hosts=["host1", "host3"]',
        "placement.hostfile=hosts",
        "cluster.hostfile=hosts",
        'placement.gpus=["host1/gpu0", "host3/gpu0"]',
    )
    runs = [executed(load_scenario(path, [way])) for way in ways]
    assert {run.gpus for run in runs} == {("host1/gpu0", "host3/gpu0")}
    assert len({run.run.finished for run in runs}) == 1
    for both in (
        ["cluster.hostfile=hosts", ways[0]],
        ["cluster.hostfile=hosts", ways[1]],
    ):
        with pytest.raises(InputError, match="hostfile"):
            load_scenario(path, both)


def test_routing_on_the_command_line() -> None:
    """--set routing=... changes the policy; another name is an error that lists them."""
    done = CliRunner().invoke(
        main, ["run", "mlp-ddp4", "--set", "routing=static", "--json"]
    )
    assert done.exit_code == 0 and json.loads(done.stdout)["step_time"] > 0
    wrong = CliRunner().invoke(main, ["run", "mlp-ddp4", "--set", "routing=statik"])
    assert (
        wrong.exit_code == 2
        and "adaptive, ecmp, rail, shortest, static" in wrong.stderr
    )
    assert "ecmp" in CliRunner().invoke(main, ["list", "routings"]).stdout.split()


ORDERS = ["-".join(order) for order in permutations(["tp", "cp", "ep", "dp", "pp"])]
MOE = SMALL | {"experts": 8, "experts_per_token": 2, "moe_ffn": 256}


def megatron(
    order: str | None,
    parallel: dict[str, int],
    model: dict[str, object] = SMALL,
    micro_batch: int = 1,
) -> Scenario:
    gpus = prod(parallel.get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
    return parse_scenario(
        {
            "cluster": {"name": "rail-h100", "hosts": -(-gpus // 8), "gpus": gpus},
            "model": model,
            "training": {
                "framework": "megatron",
                "seq_len": 512,
                "micro_batch": micro_batch,
                "microbatches": 2,
            },
            "parallel": parallel
            | {"sequence_parallel": parallel.get("tp", 1) > 1}
            | ({"order": order} if order else {}),
        },
        "t",
    )


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(ORDERS), st.data())
def test_groups_of_every_order_partition_the_ranks(
    order: str, data: st.DataObject
) -> None:
    """Every rank is in one group of each axis; on the innermost axis the members of a group are neighbours."""
    degrees = {
        axis: data.draw(st.sampled_from([1, 2, 3])) for axis in ("dp", "tp", "pp", "cp")
    }
    room = degrees["dp"] * degrees["cp"] * degrees["tp"]
    etp = data.draw(st.sampled_from(sorted({1, degrees["tp"]})))
    ep = data.draw(
        st.sampled_from([n for n in (1, 2, 3, 4, 6) if room % (n * etp) == 0])
    )
    grid = Grid(**degrees, order=tuple(order.split("-")), ep=ep, etp=etp)
    groups = Groups(grid, Place(grid.world, blocking=True))
    for stage in range(grid.pp):
        for axis in ("tp", "cp", "dp", "etp", "ep", "edp"):
            ranks = sorted(
                rank for group in groups.of(axis, stage).copies for rank in group
            )
            assert ranks == grid.stage(stage)
    assert sorted(
        rank for stage in range(grid.pp) for rank in grid.stage(stage)
    ) == list(range(grid.world))
    pipelines = {grid.pipeline(rank) for rank in range(grid.world)}
    assert sorted(rank for pipeline in pipelines for rank in pipeline) == list(
        range(grid.world)
    )
    inner = next(
        (axis for axis in grid.order if axis != "ep" and degrees[axis] > 1), "tp"
    )
    mine = (
        grid.pipeline(0)
        if inner == "pp"
        else groups.of(inner, 0).ranks[: degrees[inner]]
    )
    assert mine == tuple(range(degrees[inner]))
    assert sorted(d for team in grid.teams for d in team) == list(range(grid.dp))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(["gb200-nvl72", "h200-leafspine-2x2", "rail-h100"]), st.data())
def test_ranks_lie_in_the_nvlink_domains_of_their_gpus(
    name: str, data: st.DataObject
) -> None:
    """Wherever a placement puts ranks, a group lies in as many domains as NVLinks of its GPUs join."""
    fabric = (
        load_cluster(name, hosts=4)
        if name != "h200-leafspine-2x2"
        else load_cluster(name)
    )
    gpus = data.draw(st.permutations(fabric.gpus))[: data.draw(st.integers(2, 12))]
    group = sorted(data.draw(st.sets(st.sampled_from(range(len(gpus))), min_size=1)))
    domains = paths.domains(fabric)
    expected = len({domains[gpus[rank]] for rank in group})
    assert place_of(fabric, gpus).domains(group) == expected


@pytest.mark.parametrize("order", ["tp-cp-ep-pp-dp", "dp-tp-cp-ep-pp", "pp-tp-dp"])
def test_megatron_folds_in_every_order(order: str) -> None:
    """One replica of all that are alike gives the step time of all of them simulated."""
    s = megatron(order, {"dp": 4, "tp": 2, "pp": 2})
    one = executed(s)
    lowered = lower(s, one.model, Site(), apart=True)
    assert len(lowered.graph.programs) == 4 * len(one.lowered.graph.programs)
    apart = of_lowered(one, lowered)
    assert apart.run.finished == pytest.approx(one.run.finished, rel=1e-9)


def test_tensor_parallel_ranks_of_megatron_belong_into_one_host() -> None:
    """With data-parallel ranks innermost, as many as a host has GPUs, every layer is reduced over the network."""
    wide = SMALL | {"hidden": 2048, "ffn": 8192}  # the host is not what it waits for
    near, said, far = (
        predict(megatron(order, {"dp": 8, "tp": 2}, wide, micro_batch=16)).step_time
        for order in (None, "tp-cp-ep-dp-pp", "dp-tp-cp-ep-pp")
    )
    assert far > 1.2 * near and said == near


def test_megatron_refuses_an_order_that_would_cut_experts_apart() -> None:
    """With stages inside of the copies of experts, a pipeline would be another one in layers with experts."""
    with pytest.raises(InputError, match=r"parallel\.order.*pp last"):
        megatron("tp-cp-ep-pp-dp", {"dp": 4, "ep": 2, "pp": 2}, MOE)
    assert megatron("tp-cp-ep-dp-pp", {"dp": 4, "ep": 2, "pp": 2}, MOE)
    assert megatron("tp-cp-pp-ep-dp", {"dp": 4, "ep": 2, "pp": 2}, MOE)
    assert megatron("dp-ep-tp-pp", {"dp": 2, "ep": 2, "pp": 2}, MOE)


@pytest.mark.parametrize("by", ["scattered", "rail"])
@pytest.mark.parametrize(
    "parallel",
    [
        {"dp": 64, "data_parallel": "fsdp", "fsdp_shards": 16},
        {"dp": 32, "tp": 2, "data_parallel": "ddp"},
        {"dp": 16, "pp": 4, "data_parallel": "ddp"},
    ],
    ids=str,
)
def test_copies_meet_on_a_narrow_fabric_as_if_each_were_simulated(
    parallel: dict[str, Any], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas that are simulated once send as much over a spine of 4:1 as all of them, wherever they are placed.

    Copies on unlike links end one after the other, and are taken to end together: a two-thousandth of a step.
    """
    microbatches = {"microbatches": 4} if "pp" in parallel else {}
    job = parse_scenario(
        {
            "cluster": {
                "file": "examples/clusters/hall.toml",
                "gpus": 64,
                "host_factor": 0.01,
            },
            "placement": {"by": by},
            "model": SMALL | {"hidden": 4096, "ffn": 16384},
            "training": {"seq_len": 512, "micro_batch": 1, **microbatches},
            "parallel": parallel,
        },
        "t",
    )
    folded = predict(job).step_time
    monkeypatch.setattr(lowering, "_kinds", lambda *_: ())
    assert folded == pytest.approx(predict(job).step_time, rel=5e-4)
