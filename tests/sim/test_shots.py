"""All-reduces of inference engines against published times, and where NCCL runs in their place."""

from __future__ import annotations

import pytest

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster

MIB = 2.0**20
SIZES = (0.5, 1, 1.5, 2, 3, 4)
#: Microseconds at SIZES: vllm-project/vllm pull requests 24532 (4 GPUs, fitted) and 24111 (6 H100, not fitted).
PUBLISHED = {
    ("one_shot", 4): (10, 14, 19, 23, 30, 38),
    ("two_shot", 4): (17, 18, 25, 26, 35, 42),
    ("one_shot", 6): (13, 21, 30, 38, 53, 70),
    ("two_shot", 6): (15, 17, 20, 26, 29, 37),
}
#: MSCCL++ in CUDA graphs on 8 GPUs, KiB and microseconds: sgl-project/sglang pull request 22734, not fitted.
MSCCLPP = {2: 5.86, 8: 6.0, 32: 7.21, 128: 8.8}


def seconds(backend: str, gpus: int, size: float) -> float:
    """What an all-reduce of a DGX H100's first GPUs takes."""
    fabric = load_cluster("dgx-h100")
    nccl = Nccl(backend=backend)  # type: ignore[arg-type]
    plan = plan_collective("all_reduce", size, fabric.gpus[:gpus], fabric, nccl)
    assert (plan.algo, plan.proto) == ("shots", backend)
    return plan.duration(fabric.links.bandwidth)


@pytest.mark.parametrize("which", PUBLISHED)
def test_published_times_are_met(which: tuple[str, int]) -> None:
    """On the mean within 6 % where they were fitted, 20 % elsewhere: times are printed as whole microseconds."""
    backend, gpus = which
    errors = [
        abs(seconds(backend, gpus, mib * MIB) * 1e6 / time - 1)
        for mib, time in zip(SIZES, PUBLISHED[which], strict=True)
    ]
    assert sum(errors) / len(errors) < (0.06 if gpus == 4 else 0.2)


@pytest.mark.parametrize("kib", MSCCLPP)
def test_small_messages_take_what_mscclpp_takes(kib: int) -> None:
    assert seconds("one_shot", 8, kib * 1024) * 1e6 == pytest.approx(
        MSCCLPP[kib], rel=0.12
    )


def test_nccl_runs_what_the_kernels_cannot() -> None:
    """Across hosts, over the host's memory, and other operations."""
    two = load_cluster("dgx-h100-superpod", 2)
    wanted = Nccl(backend="one_shot")
    plan = plan_collective("all_reduce", MIB, two.gpus, two, wanted)
    assert plan.algo == "tree" and "several hosts" in plan.notes[-1]
    one = load_cluster("dgx-h100")
    off = Nccl(backend="two_shot", p2p_disable=True)
    assert "NVLink" in plan_collective("all_reduce", MIB, one.gpus, one, off).notes[-1]
    assert plan_collective("all_gather", MIB, one.gpus, one, wanted).algo == "ring"
