"""What ranks keep in the memory of their hosts, and hosts that are too small for it."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import terminal
from prestep.sim.predict import plan, predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario

MODEL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "ffn": 4096,
    "vocab": 8192,
}


def job(
    framework: str, way: str, dp: int = 4, rounds: int = 1, **other: Any
) -> Scenario:
    cluster = {"name": "dgx-h100", "gpus": dp, **other.pop("cluster", {})}
    parallel = {"dp": dp, "data_parallel": way, "offload": "optimizer"}
    return parse_scenario(
        {
            "cluster": cluster,
            "model": MODEL,
            "training": {
                "framework": framework,
                "seq_len": 1024,
                "micro_batch": 1,
                "grad_accumulation": rounds,
            },
            "parallel": parallel | other.pop("parallel", {}),
            **other,
        },
        "test",
    )


def kept(result: Prediction) -> float:
    """Bytes on all hosts."""
    return sum(sum(owners.values()) for owners in result.on_host.values())


@pytest.mark.parametrize(
    ("framework", "way"),
    [
        ("deepspeed-eager", "zero1"),
        ("deepspeed-eager", "zero2"),
        ("deepspeed", "zero1"),
        ("megatron", "zero1"),
    ],
)
@pytest.mark.parametrize("dp", [2, 8])
def test_the_optimizer_is_there_once(framework: str, way: str, dp: int) -> None:
    """Weights, gradients and two moments in fp32 for every parameter, on whichever rank."""
    s = job(framework, way, dp)
    whole = 16.0 * plan(s).lowered.parameters
    assert kept(predict(s)) == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize(
    ("framework", "each"), [("deepspeed-eager", 2), ("deepspeed", 4)]
)
def test_stage_3_has_sums_there_beside_it(framework: str, each: int) -> None:
    """16 bytes of every parameter, and those of one in which gradients add up."""
    for rounds in (1, 2):
        s = job(framework, "zero3", rounds=rounds)
        whole = (16.0 + each) * plan(s).lowered.parameters
        assert kept(predict(s)) == pytest.approx(whole, rel=1e-3)


def test_sums_of_microbatches_are_there_too() -> None:
    """In 16 bits, where DeepSpeed adds them up."""
    one, two = (predict(job("deepspeed-eager", "zero2", rounds=n)) for n in (1, 2))
    parameters = plan(job("deepspeed-eager", "zero2")).lowered.parameters
    assert kept(two) - kept(one) == pytest.approx(2.0 * parameters, rel=1e-3)


def test_a_fraction_takes_its_share() -> None:
    """Megatron's hybrid optimizer leaves the rest on the GPU."""

    def held(fraction: float) -> float:
        own = {"offload_fraction": fraction}
        return kept(predict(job("megatron", "zero1", parallel=own)))

    assert held(0.25) == pytest.approx(held(1.0) / 4, rel=1e-3)


@pytest.mark.parametrize(("master", "each"), [(True, 16.0), (False, 8.0)])
def test_fsdp_keeps_all_states_there(master: bool, each: float) -> None:
    """Parameters, gradients and two moments, in the type that they are stored in."""
    s = job(
        "pytorch-eager",
        "fsdp",
        parallel={"offload": "parameters"},
        pytorch={"master_weights": master},
    )
    parameters = plan(s).lowered.parameters
    assert kept(predict(s)) == pytest.approx(each * parameters, rel=1e-3)


def test_nothing_is_there_without_offloading() -> None:
    result = predict(job("megatron", "zero1", parallel={"offload": "none"}))
    assert not result.on_host and result.host_verdict is None


def test_a_host_that_is_too_small_is_said_with_bytes() -> None:
    """All of its ranks share it: what one rank has fits, what eight have does not."""
    alone = predict(job("deepspeed-eager", "zero1", 8))
    needed = kept(alone)
    assert alone.out_of_memory is not None and alone.out_of_memory.fits
    small = {"host_memory": f"{needed / 2:.0f} B"}
    result = predict(job("deepspeed-eager", "zero1", 8, cluster=small))
    verdict = result.out_of_memory
    assert verdict is not None and not verdict.fits
    assert verdict.host is not None and verdict.largest_owner == "optimizer"
    assert verdict.needed == pytest.approx(needed)
    assert verdict.capacity == pytest.approx(needed / 2, rel=1e-6)
    page = terminal.render(result)
    assert "Does not fit" in page and f"host {verdict.host}" in page
    assert result.to_dict()["out_of_memory"]["host"] == verdict.host


def test_hosts_have_a_memory_each() -> None:
    """Sixteen ranks on two hosts: each keeps half."""
    whole = {"name": "dgx-h100-superpod", "hosts": 2}
    result = predict(job("deepspeed-eager", "zero1", 16, cluster=whole))
    halves = [sum(owners.values()) for owners in result.kept_on_hosts.values()]
    assert len(halves) == 2 and halves[0] == pytest.approx(halves[1], rel=1e-6)
    assert result.host_verdict is not None and result.host_verdict.fits
    assert "in the memory of host" in " ".join(terminal.render(result).split())


def test_a_host_of_which_nobody_said_how_large_it_is_is_asked_about() -> None:
    two = {"name": "h200-host-4"}
    result = predict(job("deepspeed-eager", "zero1", 2, cluster=two))
    assert result.host_capacity is None
    assert result.out_of_memory is not None and result.out_of_memory.fits
    assert "cluster.host_memory says" in " ".join(terminal.render(result).split())
