"""A recorded program wherever a scenario is taken: its cluster is ours to choose, its layout is its own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import api
from prestep.sim.costs import Gpu, gpu_files, load_gpu
from prestep.sim.costs.changed import Speed, changed
from prestep.sim.errors import InputError
from prestep.sim.explorer.answers import Explorer
from prestep.sim.graph.kernel import Kernel
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.grid import specs
from prestep.sim.studies.search import clusters
from prestep.topologies import cluster_names, several_hosts
from prestep.topologies.files.clusterfile import read
from prestep.workloads.capture import recording
from prestep.workloads.capture.lower import lower
from prestep.workloads.capture.recorder import device
from prestep.workloads.host_costs import host_costs
from prestep.workloads.traces.work import family
from tests.sample import together
from tests.workloads.test_capture_recording import (
    COMPUTE,
    all_reduce,
    tables,
    transfer,
)


def job(folder: Path, world: int = 1) -> Path:
    """A program that multiplies matrices, and reduces over all of its ranks."""
    path = folder / "job.capture"
    events = [*COMPUTE, all_reduce(1)] if world > 1 else COMPUTE
    recording.write(path, tables(events, world))
    return path


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: str | Path) -> str:
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_without_a_cluster_it_runs_on_its_own_gpus_and_says_so(tmp_path: Path) -> None:
    """The program was told of an H200, so a DGX H200 it is."""
    scenario = load_scenario(job(tmp_path))
    assert scenario.cluster.name == "dgx-h200"
    assert any("no cluster was named" in note for note in scenario.notes)
    assert any("no cluster was named" in w for w in predict(scenario).warnings)


def test_a_host_becomes_as_many_as_the_ranks_need(tmp_path: Path) -> None:
    """64 ranks on dgx-h100 run on eight hosts of its SuperPOD, which is said; changes of links are of these."""
    scenario = load_scenario(
        job(tmp_path, 64), ["cluster.name=dgx-h100", "spine.bandwidth=2x"]
    )
    assert (scenario.cluster.name, scenario.cluster.hosts) == ("dgx-h100-superpod", 8)
    (note,) = scenario.notes
    assert "64 ranks" in note and "8" in note
    assert len(predict(scenario).step_time_by_rank) == 64


def test_a_cluster_grows_to_the_ranks_and_never_shrinks(tmp_path: Path) -> None:
    """32 hosts stay where they have room; 320 ranks take 40 of them."""
    path = job(tmp_path, 64)
    assert load_scenario(path, ["cluster.name=rail-h100"]).cluster.hosts is None
    path = job(tmp_path, 320)
    assert load_scenario(path, ["cluster.name=rail-h100"]).cluster.hosts == 40


def test_hosts_that_were_counted_are_not_more(tmp_path: Path) -> None:
    """Who says 4 hosts is told that 64 ranks need more."""
    with pytest.raises(InputError, match="at most 32"):
        load_scenario(job(tmp_path, 64), ["cluster.name=rail-h100", "cluster.hosts=4"])


@together("name", [name for name in cluster_names() if several_hosts(name)])
def test_several_hosts_are_hosts_of_the_same_gpus(name: str) -> None:
    """The cluster that a host's file names has its GPU, and as many of them in a host."""
    one, several = read(name), read(several_hosts(name))
    assert several.gpu_model == one.gpu_model
    assert len(several.gpus) == len(several.hosts) * len(one.gpus)


@pytest.mark.parametrize(
    "change", ["training.micro_batch=4", "parallel.tp=2", "model.name=llama3-8b"]
)
def test_what_the_program_decides_cannot_be_set(tmp_path: Path, change: str) -> None:
    """Its batch, its layout and its model are changed in the program, which the message says."""
    path = job(tmp_path)
    assert "capture it again" in refusal("run", path, "--set", change)


def test_its_micro_batch_is_no_question(tmp_path: Path) -> None:
    """`--max-micro-batch` would change what the program does."""
    assert "micro batch" in refusal("run", job(tmp_path), "--max-micro-batch")


def test_a_gpu_stands_for_a_cluster_that_has_it(tmp_path: Path) -> None:
    """`gpu=h100` is the usual host of that GPU; one that nobody has is a mistake with a proposal."""
    path = job(tmp_path)
    assert load_scenario(path, ["gpu=h100"]).cluster.name == "dgx-h100"
    with pytest.raises(InputError, match='did you mean "h100"'):
        load_scenario(path, ["gpu=h10"])


def test_a_cluster_of_a_whatif_is_that_of_both_sides(tmp_path: Path) -> None:
    """With another change it is no change itself; alone it is compared with the default."""
    path = job(tmp_path, 8)
    both = ("--cluster", "dgx-h100", "--set", "gpu.clock=0.8x", "--json")
    table = json.loads(run("whatif", path, *both))
    alone = json.loads(run("run", path, "--cluster", "dgx-h100", "--json"))
    assert table["base"]["step_time"] == pytest.approx(alone["step_time"])
    table = json.loads(run("whatif", path, "--cluster", "dgx-h100", "--json"))
    assert table["base"]["step_time"] < table["changed"]["step_time"]


def test_a_sweep_is_done_again_for_another_recording(tmp_path: Path) -> None:
    """A run's key has the recording's content in it."""
    grid = {"gpu": ["h100"]}
    before = specs(job(tmp_path), grid)
    after = specs(job(tmp_path, 8), grid)
    assert before[0].key != after[0].key
    assert specs(job(tmp_path), grid) == before


def test_a_sweep_tries_gpus(tmp_path: Path) -> None:
    """Rows as `prestep run` would predict each."""
    rows = api.sweep(
        job(tmp_path), {"gpu": ["a100", "h200"]}, tmp_path / "out", "threads", 1
    )
    assert list(rows["cluster"]) == ["dgx-a100", "dgx-h200"]
    assert rows["step_time"].iloc[0] > rows["step_time"].iloc[1]


def test_a_search_ranks_clusters_by_time_or_by_price(tmp_path: Path) -> None:
    """The fastest first; the cheapest where GPUs have a price, those without one last."""
    path, over = job(tmp_path), "cluster.name=dgx-h100,dgx-h200,dgx-b200"
    found = json.loads(run("search", path, "--over", over, "--json"))["ranked"]
    times = [place["step_time"] for place in found]
    assert times == sorted(times) and len(times) == 3
    price = ("--price", "h100=1,h200=100")
    found = json.loads(run("search", path, "--over", over, *price, "--json"))["ranked"]
    assert [place["gpu"] for place in found] == ["h100", "h200", "b200"]
    assert "cost_per_thousand_steps" not in found[2]


def test_a_search_of_its_own_tries_every_gpu(tmp_path: Path) -> None:
    """Where no place is named, each model of GPU has one; a named one is the only one."""
    assert len(clusters.grid_with_places({}, ())["gpu"]) > 5
    assert "gpu" not in clusters.grid_with_places({}, ("cluster.name=dgx-h100",))
    assert "--trials" in refusal("search", job(tmp_path), "--trials", "3")


def test_the_explorer_has_sliders_of_the_cluster_alone(tmp_path: Path) -> None:
    """Links and GPUs; nothing of a layout."""
    explorer = Explorer(job(tmp_path, 8), ("cluster.name=dgx-h100",))
    keys = [knob.key for knob in explorer.knobs]
    assert "nvlink.bandwidth" in keys and "gpu.clock" in keys
    assert not any(key.startswith(("parallel", "training")) for key in keys)
    answer = explorer.answer({"nvlink.bandwidth": "0.5x"})
    assert answer["step_time"] > answer["base"]


def test_python_takes_it_as_the_command_line_does(tmp_path: Path) -> None:
    """`compare` has a base where no cluster is named."""
    frame = api.compare(job(tmp_path, 8), {"nvlink.bandwidth": "0.5x"})
    assert frame["step_time"].iloc[1] > frame["step_time"].iloc[0]


@pytest.mark.parametrize("attribute", ["flops", "clock"])
def test_measured_operations_follow_a_changed_gpu(attribute: str) -> None:
    """Half the arithmetic takes a large product of a program twice as long, though its time comes from a table."""
    gpu: Gpu = load_gpu("h200")
    kernel = Kernel(
        "aten mm", (8192, 8192, 8192), "bf16", "nt", 3 * 8192**2 * 2.0, 2.0 * 8192**3
    )
    slow = changed(gpu, Speed(**{attribute: 0.5}))
    assert slow.duration(kernel) == pytest.approx(2 * gpu.duration(kernel), rel=0.02)
    assert slow.evidence(kernel) == "guess"


def test_programs_are_told_the_compute_capability_of_their_gpu() -> None:
    """As NVIDIA's table has it: of the same generation, a B300 computes what a B200 cannot. Every bundled GPU has one."""
    assert all(device(name).capability >= (7, 0) for name in gpu_files.names())
    assert device("b200").capability == (10, 0)
    assert device("b300").capability == device("gb300").capability == (10, 3)


def trace(path: Path) -> Path:
    """A profiler trace of one step of two kernels."""
    name = "void at::native::vectorized_elementwise_kernel<{lambda(float)#1}>"
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#1",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 900,
        }
    ]
    for i, kernel in enumerate(("nvjet_tst_128x256", name)):
        launch = {
            "name": "cudaLaunchKernel",
            "cat": "cuda_runtime",
            "tid": 1,
            "ts": 10 + 10 * i,
            "dur": 5,
        }
        done = {
            "name": kernel,
            "cat": "kernel",
            "tid": 7,
            "ts": 100 + 400 * i,
            "dur": 300,
        }
        for event in (launch, done):
            args = {"correlation": i + 1, "device": 0, "stream": 7}
            events.append({"ph": "X", "pid": 1, **event, "args": args})
    table = {
        "traceEvents": events,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    }
    path.write_bytes(gzip.compress(json.dumps(table).encode()))
    return path


def test_a_recorded_run_stands_beside_its_program(tmp_path: Path) -> None:
    """Seconds of both by share and by family, on the cluster of the GPU that was recorded."""
    file = trace(tmp_path / "rank0.json.gz")
    text = run("replay", file, "--compare", job(tmp_path), "--json")
    table = json.loads(text)
    assert table["cluster"] == "dgx-h200"
    assert table["measured"]["families"]["gemm"] == pytest.approx(300e-6)
    assert table["measured"]["families"]["elementwise"] == pytest.approx(300e-6)
    families = table["predicted"]["families"]
    assert families["gemm"] == pytest.approx(sum(families.values()))
    page = run("replay", file, "--compare", job(tmp_path))
    assert "measured" in page and "predicted" in page and "gemm" in page
    assert "--free" in refusal("replay", file, "--compare", job(tmp_path), "--free")


def test_a_kernel_with_a_lambda_is_no_optimizer() -> None:
    """PyTorch names its elementwise kernels so; LAMB is one of the optimizers."""
    assert (
        family("vectorized_elementwise_kernel<4, {lambda(float)#1}>") == "elementwise"
    )
    assert family("lamb_stage1_kernel") == "optimizer"


def test_a_prediction_reads_its_recording_once(tmp_path: Path) -> None:
    """Reading, lowering and caveats ask for the same file, which is taken apart one time."""
    path = job(tmp_path, 8)
    before = recording._read.cache_info().misses
    predict(load_scenario(path))
    assert recording._read.cache_info().misses == before + 1


# -- times of operators ------------------------------------------------------------------------


def test_operators_take_as_long_as_the_scenario_says(tmp_path: Path) -> None:
    """Twenty calls of 5 ms are a step of 100 ms that rests on no guess; twice the time, twice the step."""
    path = job(tmp_path)
    base, one, two = (
        predict(load_scenario(path, changes))
        for changes in ([], [f"{MATMUL}=5ms"], [f"{MATMUL}=10ms"])
    )
    assert one.step_time == pytest.approx(20 * 5e-3, rel=0.02)
    assert two.step_time == pytest.approx(2 * one.step_time, rel=0.01)
    assert base.step_time < one.step_time
    assert not any("mm" in fallback.what for fallback in one.fallbacks)


MATMUL = "costs.operators.aten::mm"


def test_operators_that_a_program_does_not_call_have_no_time(tmp_path: Path) -> None:
    """The mistake names those that it calls; so has a model that nobody recorded none."""
    path = job(tmp_path)
    assert "aten::mm" in refusal("run", path, "--set", "costs.operators.my::op=1ms")
    assert "unit" in refusal("run", path, "--set", f"{MATMUL}=12 parsecs")
    assert "that `prestep capture` recorded" in refusal(
        "run", "llama1b-ddp4", "--set", f"{MATMUL}=1ms"
    )


@pytest.mark.parametrize(("second", "stages"), [(20, 1), (10, 2)])
def test_ranks_that_send_and_do_different_work_are_stages(
    tmp_path: Path, second: int, stages: int
) -> None:
    """Parts of a sequence do the same and wait for the slowest GPU, as in a scenario; stages for what they are sent."""

    def rank(own: int, kind: str, times: int) -> dict[str, object]:
        events = [*COMPUTE[:times], transfer(1, kind, 1 - own)]
        return {"rank": own, "represents": [own], "events": events, "alive": {}}

    ranks = [rank(0, "send", 20), rank(1, "recv", second)]
    path = tmp_path / "job.capture"
    recording.write(path, tables([], 2) | {"ranks": ranks})
    layout = lower(recording.read(path), host_costs("captured")).layout
    assert (layout.dp, layout.pp) == (2 // stages, stages)
