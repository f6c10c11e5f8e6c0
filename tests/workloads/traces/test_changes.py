"""What `--set` does to a replay: GPUs as well as links, and nothing where nothing is asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from prestep.sim.replay.outcome import Outcome
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.report import as_json
from prestep.topologies.edit.overrides import GPU_ATTRIBUTES
from prestep.workloads.traces import changes
from prestep.workloads.traces.work import family
from tests.workloads.traces import synthetic


def played(folder: Path, *asked: str, cluster: str = "") -> Outcome:
    return replay_files([folder], None, cluster, asked)


def times(outcome: Outcome) -> list[float]:
    """Seconds of every step of every rank, on both clocks."""
    return [t for s in outcome.steps for t in (s.simulated_host, s.simulated_gpu)]


def test_attributes_of_gpus_are_those_of_a_cluster() -> None:
    """What a replay takes for a change of GPUs is what a cluster takes for one."""
    assert changes.GPU_ATTRIBUTES == GPU_ATTRIBUTES


@pytest.mark.parametrize("change", ["gpu.clock", "gpu.flops", "gpu[2].flops"])
def test_slower_gpus_take_longer(tmp_path: Path, change: str) -> None:
    """Half the arithmetic of all GPUs, or of one that others wait for, doubles matrix products.

    Those beside communication grow by a little less: what it slowed them by is there for less of their time.
    """
    synthetic.save(tmp_path)
    base, slow = played(tmp_path), played(tmp_path, f"{change}=0.5x")
    products = synthetic.LAYERS * synthetic.LAYER * 1e-6
    assert 0.8 * products < slow.step_time - base.step_time <= products


def test_a_gpu_that_was_not_recorded_is_waited_for(tmp_path: Path) -> None:
    """A slow GPU of a rank without a trace slows the step as that of a recorded rank does."""
    synthetic.save(tmp_path, only=(0,))
    one, other = (played(tmp_path, f"gpu[{i}].flops=0.5x").step_time for i in (0, 3))
    assert other == pytest.approx(one, rel=1e-9)
    assert other > 1.5 * played(tmp_path).step_time


def test_memory_does_not_bound_products(tmp_path: Path) -> None:
    """Half the HBM bandwidth lengthens the optimizer, and no matrix product."""
    synthetic.save(tmp_path)
    base = played(tmp_path).step_time
    slow = played(tmp_path, "gpu.hbm_bandwidth=0.5x").step_time
    assert slow - base == pytest.approx(300e-6, rel=0.1)


@pytest.mark.parametrize("cluster", ["", "dgx-a100", "h200-leafspine-4x1"])
@pytest.mark.parametrize("change", ["nvlink.bandwidth=1x", "gpu.clock=100 %"])
def test_what_changes_nothing_leaves_every_step(
    tmp_path: Path, cluster: str, change: str
) -> None:
    """A factor of one is the identity, on the recorded cluster and on any other."""
    synthetic.save(tmp_path, late=400.0)
    before = played(tmp_path, cluster=cluster)
    if cluster == "h200-leafspine-4x1":
        change = change.replace("nvlink", "spine")
    assert times(played(tmp_path, change, cluster=cluster)) == times(before)


@pytest.mark.parametrize("cluster", ["dgx-a100", "h200-leafspine-4x1"])
def test_a_change_of_nearly_nothing_is_nearly_nothing(
    tmp_path: Path, cluster: str
) -> None:
    """No step jumps because some link is asked to change: only what changes counts."""
    synthetic.save(tmp_path)
    before = times(played(tmp_path, cluster=cluster))
    link = "nvlink" if cluster == "dgx-a100" else "spine"
    after = times(played(tmp_path, f"{link}.bandwidth=1.0000001x", cluster=cluster))
    assert after == pytest.approx(before, rel=1e-6)


def test_changes_of_nothing_are_checked(tmp_path: Path) -> None:
    """A selector that matches nothing is an error also where communication stays as recorded."""
    from prestep.sim.errors import InputError

    synthetic.save(tmp_path, world=1)
    wrong = "nvlonk.bandwidth=1x", "gpuu.clock=1x", "gpu[9].clock=0.5x"
    for change in (*wrong, "gpu.power_limit=500W"):
        with pytest.raises(InputError):
            played(tmp_path, change)


@pytest.mark.parametrize(
    "closure", ["{lambda()#3}", "{lambda(float)#1}::operator()", "Lambda<int>"]
)
def test_a_lambda_of_c_is_no_optimizer(closure: str) -> None:
    """Closures of C++ in a kernel's name say nothing of its family; LAMB's kernels are the optimizer's."""
    assert family(f"direct_copy_kernel_cuda(at::TensorIterator&)::{closure}") == "copy"
    assert family("void lamb_stage1_kernel<float>") == "optimizer"


def with_names(folder: Path, old: str, new: str) -> None:
    """Renames a kernel in all traces of a folder, and takes what is said of collectives out."""
    for path in folder.glob("*.gz"):
        table = json.loads(gzip.decompress(path.read_bytes()))
        for event in table["traceEvents"]:
            event["name"] = event["name"].replace(old, new)
            event["args"].pop("Collective name", None)
        path.write_bytes(gzip.compress(json.dumps(table).encode()))


def test_communication_has_one_meaning(tmp_path: Path) -> None:
    """A kernel of communication that no collective names is communication in families, shares and overlap alike."""
    synthetic.save(tmp_path)
    with_names(tmp_path, "ncclDevKernel_AllReduce", "multimem_all_reduce_kernel")
    found = as_json(played(tmp_path))
    shares = found["overlap"]["simulated"]["all"]
    assert found["families"]["communication"] == pytest.approx(shares["total"])
    assert found["breakdown"]["simulated"]["exposed communication"] == pytest.approx(
        shares["exposed"]
    )
    slow = as_json(played(tmp_path, "gpu.hbm_bandwidth=0.5x"))
    assert slow["families"]["communication"] == pytest.approx(shares["total"])


def test_groups_of_all_ranks_are_doubted(tmp_path: Path) -> None:
    """More ranks of a run whose groups are all ranks: said to hold for data parallelism alone."""
    synthetic.save(tmp_path)
    notes = played(tmp_path, "parallel.dp=8").notes
    assert any("taken for data parallelism" in note for note in notes)
