"""What a release of PyTorch changes in a step: named mechanisms and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.predict import step_time
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.schedules.runtime import STREAM, Batch, Recv, Send

RELEASES = ("2.7", "2.11", "2.13")


def seconds(release: str, **training: Any) -> float:
    """A step of four interleaved stages of a rank on a ring of `pp` ranks."""
    pp = training.pop("pp", 4)
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": pp},
        "model": {"name": "llama3-8b", "layers": 16, "vocab": 1024},
        "training": {
            "seq_len": 4096,
            "micro_batch": 1,
            "microbatches": 8,
            "recompute": "full",
        }
        | training,
        "parallel": {"pp": pp, "vpp": 2, "schedule": "interleaved"},
        "pytorch": {"version": release},
    }
    return step_time(parse_scenario(tables, "test"))


def test_megatrons_steps_do_not_depend_on_the_release() -> None:
    """Megatron-LM brings its own schedules, transfers and kernels."""
    assert len({seconds(release, framework="megatron") for release in RELEASES}) == 1


@pytest.mark.parametrize("framework", ["automodel", "pytorch-eager"])
def test_transfers_of_two_neighbours_wait_for_each_other_until_2_13(
    framework: str,
) -> None:
    """Between two ranks there is one neighbour, so nothing else that a transfer could wait for."""
    assert seconds("2.13", framework=framework) < 0.97 * seconds(
        "2.11", framework=framework
    )
    alone = [seconds(r, framework=framework, pp=2) for r in ("2.11", "2.13")]
    assert alone[0] == pytest.approx(alone[1], rel=0.005)


def test_only_what_sends_and_receives_at_once_is_coalesced() -> None:
    """``_batch_p2p`` of PyTorch 2.13; both ends of a transfer take the communicator of the same pair."""
    send, receive = Send("F", 1, 0, 2), Recv("B", 1, 0, 2)
    assert Batch(0, (send,)).stream(1, by_pair=True) == f"{STREAM} 1:2"
    assert Batch(0, (Recv("F", 2, 0, 1),)).stream(2, by_pair=True) == f"{STREAM} 1:2"
    assert Batch(0, (send, receive)).stream(1, by_pair=True) == STREAM
    assert Batch(0, (send,)).stream(1, by_pair=False) == STREAM
