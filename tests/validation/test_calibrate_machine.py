"""What a machine measured becomes a cluster that predicts it; hostile and foreign files become located mistakes."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.costs import load_gpu
from prestep.sim.costs.measured import gpu_of
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.graph.kernel import Kernel, named
from prestep.topologies import load_cluster
from prestep.validation.fit import bootstrap, machine_host, machine_rows, machine_steps
from prestep.validation.fit.calibrate_machine import known_gpu
from prestep.validation.fit.kernel_rows import OVERHEAD
from prestep.validation.fit.machine_gpu import held_out
from prestep.validation.fit.measurement import opened
from prestep.validation.formats.kineto_kernels import Call
from prestep.validation.formats.rows import Row
from tests.sample import together
from tests.sim.test_measured_gpu import FACTS

SLOWER, HOST = 1.2, 1.7
MANIFEST = {
    "format": "prestep-measured",
    "version": 1,
    "made": "2026-01-02T03:04:05+00:00",
    "world": 4,
    "nodes": 1,
    "gpus": [
        {"name": "NVIDIA H200", "sms": 132, "memory": 150_109_880_320, "l2": 62_914_560}
    ]
    * 4,
    "rehearsal": False,
}
HOST_CASES = [
    {
        "id": f"{model}-{mode}",
        "model": model,
        "mode": mode,
        "mbs": 1,
        "seq": 128,
        "warmup": 6,
    }
    for model in ("h4", "h16")
    for mode in ("single", "ddp")
]


def packed(path: Path, manifest: dict[str, Any] | None = None, **members: Any) -> Path:
    """A measurement with these rows (lists) or texts, by name of member with __ for a slash and _. for a dot."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(
            "manifest.json", json.dumps(MANIFEST if manifest is None else manifest)
        )
        for name, content in members.items():
            text = (
                "".join(json.dumps(row) + "\n" for row in content)
                if isinstance(content, list)
                else content
            )
            file.writestr(name if "." in name else f"{name}.jsonl", text)
    return path


@lru_cache(maxsize=1)
def rows() -> dict[str, list[dict[str, Any]]]:
    """A machine whose products take 1.2 times the H200's, whose host takes 1.7 times, with known links."""
    gpu, micro = load_gpu("h200"), []
    for m in (512, 1024, 2048, 4096, 8192):
        for n, k in (
            (1024, 1024),
            (4096, 4096),
            (8192, 2048),
            (2048, 8192),
            (14336, 4096),
        ):
            time = SLOWER * gpu.duration(Kernel("aten mm", (m, n, k), layout="nt"))
            micro.append(
                {
                    "kind": "gemm",
                    "dtype": "bfloat16",
                    "layout": "nt",
                    "m": m,
                    "n": n,
                    "k": k,
                    "s": time,
                }
            )
    for elements in (2**20, 2**22, 2**24, 2**26):
        size = 4.0 * elements  # bf16, read and written
        time = SLOWER * gpu.duration(Kernel("aten gelu", (elements,), bytes=size))
        about = {"op": "gelu", "elements": elements, "bytes_moved": size}
        micro.append({"kind": "memory", **about, "s": time + OVERHEAD})
    for mode, rate in (
        ("p2p_write", 360e9),
        ("h2d_pinned", 50e9),
        ("d2h_pinned", 52e9),
    ):
        micro += [
            {"kind": "copy", "mode": mode, "bytes": 2**k, "s": 5e-6 + 2**k / rate}
            for k in range(12, 31, 2)
        ]
    training = []
    for case in HOST_CASES:
        row = Row(str(case["id"]), "here", case, 4)
        time = HOST * machine_steps.Step(row, False, {"name": "h200-host-4"}).host
        training.append(
            {
                "id": case["id"],
                "label": "default",
                "world": 4,
                "case": case,
                "step_s_by_rank": {"0": [time] * 5},
            }
        )
    storage = [
        {
            "kind": "storage",
            "filesystem": "ext4",
            "bytes": 2**30,
            "write_s": 0.5,
            "sync_s": 0.5,
            "read_warm_s": 0.1,
            "read_cold_s": 0.5,
            "cold_is_cold": True,
        }
    ]
    return {"micro": micro, "training": training, "storage": storage}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.main, ["calibrate", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("machine")
    result = run(packed(folder / "m.zip", **rows()), "-o", folder / "mine.toml")
    assert result.exit_code == 0, result.output
    return folder / "mine.toml", result.output


def test_a_machine_is_found_again(made: tuple[Path, str]) -> None:
    """Kernels, host factor and links of the cluster that is written are the machine's, each with grade and source."""
    fabric = load_cluster(str(made[0]))
    shape = (3072, 4096, 4096)
    product = Kernel("aten mm", shape, layout="nt")
    for kernel in (product, Kernel("aten gelu", (2**23,), bytes=2.0**25)):
        mine, known = gpu_of(fabric), load_gpu("h200")
        ratio = mine.duration(kernel) / known.duration(kernel)
        assert ratio == pytest.approx(SLOWER, rel=0.03)
        in_steps = mine.in_step(kernel) / known.in_step(kernel)
        assert in_steps == pytest.approx(SLOWER, rel=0.03)
    assert fabric.facts["host_factor"].value == pytest.approx(HOST, rel=0.01)
    assert fabric.facts["nvlink.bandwidth"].value == pytest.approx(
        360e9 / 18, rel=0.001
    )
    assert fabric.facts["pcie.upstream"].value == pytest.approx(52e9, rel=0.001)
    assert fabric.facts["nvme.bandwidth"].value == pytest.approx(2**30, rel=0.001)
    assert fabric.facts["nvme.upstream"].evidence == "measured"
    assert "interval" in fabric.facts["host_factor"].source


def test_what_was_not_measured_is_the_known_gpus(made: tuple[Path, str]) -> None:
    """Kinds without rows keep the base's times."""
    kernel = named("attention_fwd", (1, 32, 8, 2048, 64))
    mine = gpu_of(load_cluster(str(made[0])))
    assert mine.duration(kernel) == pytest.approx(
        load_gpu("h200").duration(kernel), rel=1e-3
    )
    assert mine.name == "h200"


def test_errors_of_held_out_rows_are_told(made: tuple[Path, str]) -> None:
    """The summary has the errors of fitted and held-out rows beside those of the known GPU, and what was written."""
    line = next(line for line in made[1].splitlines() if line.startswith("gemm"))
    base, _, held = (
        float(cell) for cell in (cell.split("%")[0] for cell in line.split()[2::2])
    )
    assert base == pytest.approx(100 * (1 - 1 / SLOWER), abs=1) and held < 3
    assert (
        "held out" in made[1]
        and "wrote mine.toml, mine-gpu.toml, mine-gpu.parquet" in made[1]
    )


def test_the_cluster_runs_a_step(made: tuple[Path, str], tmp_path: Path) -> None:
    """The file works as `file` of a scenario's cluster, and slower products make a longer step."""
    steps = []
    for cluster in (f'file = "{made[0]}"', 'name = "h200-host-4"'):
        scenario = tmp_path / "s.toml"
        scenario.write_text(
            f'[cluster]\n{cluster}\n[model]\nname = "llama3-1b-plain"\n[training]\nmicro_batch = 2\nseq_len = 2048\n'
            '[parallel]\ndp = 4\ndata_parallel = "ddp"\n'
        )
        result = CliRunner().invoke(cli.main, ["run", str(scenario), "--json"])
        assert result.exit_code == 0, result.output
        steps.append(json.loads(result.stdout)["step_time"])
    assert 1.05 < steps[0] / steps[1] < SLOWER


def test_nothing_is_replaced_without_being_told(made: tuple[Path, str]) -> None:
    """A second time all files in the way are named, and --force replaces them."""
    again = run(made[0].parent / "m.zip", "-o", made[0])
    assert again.exit_code == 2
    assert all(
        f"{made[0].stem}{end}" in again.output
        for end in (".toml", "-gpu.toml", "-gpu.parquet")
    )
    assert run(made[0].parent / "m.zip", "-o", made[0], "--force").exit_code == 0


def test_a_third_is_held_out() -> None:
    """Of every table a third of the rows, never the first."""
    from prestep.sim.costs.tables import Row as Kernels

    listed = [
        Kernels(Kernel("aten add", (2**k,), bytes=6.0 * 2**k), 1e-5, 0.01, 1, "")
        for k in range(12)
    ]
    assert held_out(listed) == [k % 3 == 2 for k in range(12)]


@together(
    ("change", "word"),
    [
        ({"format": "other"}, "format"),
        ({"version": 9}, "version"),
        ({"rehearsal": True}, "a rehearsal"),
        ({"world": "4"}, "world"),
        ({"gpus": [{"name": "Voodoo 2"}]}, "--cluster"),
        ({"gpus": []}, "no GPU"),
        ({"version": 0}, "measure again"),
        ({"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA L4"}]}, "of one kind"),
    ],
)
def test_a_foreign_measurement_is_refused(
    tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    """Another format or version, a rehearsal and GPUs that nobody knows end with exit code 2 and what to do."""
    result = run(
        packed(tmp_path / "m.zip", MANIFEST | change, **rows()),
        "-o",
        tmp_path / "x.toml",
    )
    assert result.exit_code == 2 and word in result.output
    assert not list(tmp_path.glob("x*"))


@pytest.mark.parametrize(
    "name",
    [
        "../evil.jsonl",
        "/etc/x.jsonl",
        "traces/../../x",
        "run.py",
        "traces/a/b",
        "MICRO.jsonl",
    ],
)
def test_no_member_chooses_where_it_goes(tmp_path: Path, name: str) -> None:
    """Members with other names than the command's own are refused; nothing is unpacked."""
    with (
        pytest.raises(InputError) as error,
        opened(packed(tmp_path / "m.zip", **{name: "x"})),
    ):
        pass
    assert "only what `prestep measure` writes" in str(error.value)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """A member that unpacks to far more than it is packed to is no measurement."""
    with (
        pytest.raises(InputError),
        opened(packed(tmp_path / "m.zip", **{"micro.jsonl": " " * 100_000_000})),
    ):
        pass


def test_a_damaged_file_is_a_mistake_and_never_a_traceback(tmp_path: Path) -> None:
    """Bytes changed anywhere end with an explanation, or change nothing."""
    whole = packed(tmp_path / "m.zip", micro=rows()["micro"][:20]).read_bytes()
    drawn = random.Random(5)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(drawn.choice((1, 4, 40))):
            data[drawn.randrange(4, len(data))] = drawn.randrange(256)
        (tmp_path / "d.zip").write_bytes(
            data[: drawn.choice((len(data), drawn.randrange(len(data))))]
        )
        try:
            with opened(tmp_path / "d.zip") as measured:
                measured.rows("micro")
        except PrestepError as error:
            assert str(error)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        '{"kind": "gemm", "dtype": "int3", "s": 1}',
        '{"kind": "gemm", "s": 1}',
        '{"kind": "copy", "mode": "p2p_write", "bytes": "many", "s": 1}',
    ],
)
def test_a_wrong_row_is_a_mistake(tmp_path: Path, line: str) -> None:
    """A row that is none of the command's ends with exit code 2 and the file's name."""
    result = run(
        packed(tmp_path / "m.zip", **{"micro.jsonl": line}), "-o", tmp_path / "x.toml"
    )
    assert result.exit_code == 2 and "micro.jsonl" in result.output, result.output


def test_names_of_drivers_are_known() -> None:
    """GPUs are found by the names that drivers give them; another one is not taken for any."""
    named = {
        "NVIDIA H200": "h200",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA B200": "b200",
        "NVIDIA A100-SXM4-40GB": "a100-40gb",
        "NVIDIA GB200": "gb200",
        "Tesla V100-SXM2-16GB": "v100",
        "AMD Instinct MI300X": "mi300x",
        "AMD Instinct MI250X": "",
    }
    assert {name: known_gpu(name) for name in named} == named


def test_intervals_cover_and_narrow() -> None:
    """A bootstrap interval holds the middle, is the same each time, and is narrower with more rows."""
    few, many = (
        bootstrap.estimate(np.random.default_rng(1).normal(5, 1, n).tolist())
        for n in (10, 1000)
    )
    assert few.low <= few.value <= few.high and many.low < 5.1 and many.high > 4.9
    assert many.high - many.low < few.high - few.low
    assert bootstrap.of_ratios([0.5, 2.0, 1.0]).value == pytest.approx(1.0)


def test_the_host_of_no_rows_stays_unknown() -> None:
    """Without steps nothing is said of the host."""
    assert machine_host.fit([]) is None


@given(
    st.lists(st.floats(0.5, 4.0), min_size=2, max_size=9),
    st.lists(st.floats(0.5, 4.0), max_size=5),
)
def test_steps_of_the_gpu_only_bound_the_host(
    factors: list[float], bounds: list[float]
) -> None:
    """Bounds never make a host slower, far ones say nothing, and without any it is the geometric mean."""
    alone, _ = machine_host.middle(factors, [])
    assert alone == pytest.approx(float(np.exp(np.mean(np.log(factors)))), rel=0.01)
    assert machine_host.middle(factors, bounds)[0] <= alone * 1.01
    far = machine_host.middle(factors, [1e3 for _ in bounds])[0]
    assert far == pytest.approx(alone, rel=0.01)


@given(st.floats(0.95, 1.05), st.floats(1.0, 1.06))
def test_a_trace_says_how_kernels_compare_and_steps_how_fast_they_are(
    level: float, profiled: float
) -> None:
    """However much longer kernels take while they are traced, their sum over the known GPU's is that of the steps."""
    gpu = load_gpu("h200")
    kernels = [Kernel("aten mm", (m, 4096, 4096), layout="nt") for m in (512, 4096)]
    shapes = (1.1, 0.97)
    calls = [
        Call(kernel, profiled * ratio * gpu.duration(kernel), False, 1, 0.0)
        for kernel, ratio in zip(kernels, shapes, strict=True)
    ]
    done = machine_rows.at_level({"t": calls}, gpu, level)[0]["t"]
    total = sum(call.duration for call in done)
    assert total == pytest.approx(level * sum(map(gpu.duration, kernels)))
    assert done[0].duration / done[1].duration == pytest.approx(
        calls[0].duration / calls[1].duration
    )
    assert list(machine_rows.at_level({"t": calls}, gpu, None)[0]["t"]) == calls


@pytest.mark.slow
@pytest.mark.night  # a minute and a half of fits; test_a_machine_is_found_again is the law by day
def test_what_real_gpus_recorded_calibrates(tmp_path: Path) -> None:
    """The shipped measurement: better on held-out kernels than the known GPU, its steps within 4 % on average."""
    home, shipped = Path(cli.__file__).parent, "examples/measured/h200x4.zip"
    page = (home / "docs" / "measure.md").read_text(encoding="utf-8")
    assert f"\nprestep calibrate {shipped} -o mine.toml\n" in page
    result = run(home / shipped, "-o", tmp_path / "mine.toml")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    products = next(line for line in lines if line.startswith("gemm")).split()
    assert float(products[6].rstrip("%")) < float(products[2].rstrip("%"))
    steps = next(line for line in lines if line.startswith("mean |error|")).split()
    assert float(steps[3].rstrip("%")) < 4 and float(steps[3].rstrip("%")) < float(
        steps[4].rstrip("%")
    )
    rate = (
        load_cluster(str(tmp_path / "mine.toml")).facts["nvlink.bandwidth"].value * 18
    )
    assert rate == pytest.approx(
        397.2e9, rel=0.01
    )  # what the bundled cluster has from another start of this machine


def test_a_measurement_that_was_cut_off_is_told(tmp_path: Path) -> None:
    """Any part of a file, from its beginning, is a mistake with what to do."""
    whole = packed(tmp_path / "m.zip", **rows()).read_bytes()
    for share in (0.1, 0.5, 0.99):
        path = tmp_path / "part.zip"
        path.write_bytes(whole[: int(share * len(whole))])
        result = run(path, "-o", tmp_path / "x.toml")
        assert result.exit_code == 2 and "copy it again" in result.output


def test_a_trace_that_was_cut_off_is_told(tmp_path: Path) -> None:
    """Inside a whole zip file too, with its name; nothing is written."""
    path = packed(tmp_path / "m.zip", **rows())
    with zipfile.ZipFile(path, "a") as file:
        name = "traces/1b.default.rank0.pt.trace.json.gz"
        file.writestr(name, gzip.compress(b'{"traceEvents": []}' * 99)[:40])
    result = run(path, "-o", tmp_path / "x.toml")
    assert result.exit_code == 2 and "a Kineto trace" in result.output
    assert not list(tmp_path.glob("x*"))


def test_a_gpu_that_prestep_does_not_have_is_calibrated_over_its_facts(
    tmp_path: Path,
) -> None:
    """Facts in a file, a cluster like the machine, and its measurement: a cluster with the measured kernels."""
    facts = tmp_path / "new.toml"
    facts.write_text(FACTS)
    manifest = MANIFEST | {"gpus": [{"name": "Instinct MI300X"}] * 4}
    path = packed(tmp_path / "m.zip", manifest, **rows())
    asked = path, "-o", tmp_path / "x.toml", "--cluster", "dgx-h100"
    assert run(*asked, "--gpu-file", facts).exit_code == 0
    kernel = Kernel("aten mm", (2048, 4096, 4096), layout="nt")
    gpu = gpu_of(load_cluster(str(tmp_path / "x.toml")))
    expected = SLOWER * load_gpu("h200").duration(kernel)
    assert gpu.duration(kernel) == pytest.approx(expected, rel=0.05)
    facts.write_text("sms = 3\n")
    wrong = run(*asked, "--force", "--gpu-file", facts)
    assert wrong.exit_code == 2 and "memory" in wrong.output


def test_a_host_measured_without_gpus_is_a_cluster(tmp_path: Path) -> None:
    """Steps on the CPU alone say the host's factor: the mean over its cores, with an interval."""
    times = [1.5 * machine_host.DISPATCH_STEP, 2.5 * machine_host.DISPATCH_STEP]
    host = [{"kind": "dispatch", "core": i, "s": s} for i, s in enumerate(times)]
    path = packed(tmp_path / "m.zip", MANIFEST | {"gpus": []}, host=host)
    result = run(path, "-o", tmp_path / "x.toml", "--cluster", "dgx-h100")
    assert result.exit_code == 0, result.output
    facts = load_cluster(str(tmp_path / "x.toml")).facts
    assert facts["host_factor"].value == pytest.approx(2.0)
    assert facts["host_spread"].value == pytest.approx(machine_host.DISPATCH_SPREAD)
    assert "--set cluster.host_factor=2" in result.output


def test_a_hosts_spread_is_that_of_its_steps(tmp_path: Path) -> None:
    """Steps that scatter about the factor widen the intervals of steps by as much, however many they are."""
    scattered = [
        {**row, "step_s_by_rank": {"0": [scale * row["step_s_by_rank"]["0"][0]] * 5}}
        for row, scale in zip(rows()["training"], (0.8, 1.25, 0.8, 1.25), strict=True)
    ]
    path = packed(tmp_path / "m.zip", **rows() | {"training": scattered})
    assert run(path, "-o", tmp_path / "x.toml").exit_code == 0
    facts = load_cluster(str(tmp_path / "x.toml")).facts
    logs = [np.log(scale) for scale in (0.8, 1.25, 0.8, 1.25)]
    assert facts["host_spread"].value == pytest.approx(np.std(logs, ddof=1), rel=0.02)
