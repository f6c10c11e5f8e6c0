"""Every task of docs/extending.md, done by its own words: its files are a distribution that is installed, and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab import CASES
from tests import in_turn
from tests.distribution import EXAMPLE, install
from tests.sample import sample

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PACKAGES = ("prestep", "sim", "topologies", "workloads", "validation")
BLOCK = re.compile(
    r"[Aa]ll of\s`examples/plugins/prestep_acme/(\w+\.py)`.*?```python\n(.*?)```",
    re.DOTALL,
)
Prestep = Callable[..., str]
EXAMPLES = dict(BLOCK.findall(PAGE))
PROJECT = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program, and beside it the distribution that the page shows, file by file."""
    place = tmp_path_factory.mktemp("house")
    # What is compiled comes along, for a file and its link are of the same time; what is being written does not.
    ignored = shutil.ignore_patterns("*.pyc.*")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, place / package, copy_function=os.link, ignore=ignored
        )
    shutil.copy(ROOT / "cli.py", place / "cli.py")
    assert len(EXAMPLES) == 3
    shown = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)[0]
    assert set(shown.splitlines()) <= set(PROJECT.splitlines())
    written = tmp_path_factory.mktemp("acme")
    package = shutil.copytree(EXAMPLE / "prestep_acme", written / "prestep_acme")
    for name, code in EXAMPLES.items():
        (package / name).write_text(code, encoding="utf-8")
    (package / "libtorch.toml").write_text(block("A framework"), encoding="utf-8")
    install(PROJECT, written, place)
    return place


@pytest.fixture(scope="module")
def prestep(house: Path) -> Iterator[Prestep]:
    """The extended program: what it prints to a command line."""
    with in_turn.commands(
        sys.executable, house / "printed", house, surroundings(house)
    ) as commands:
        yield commands.run


def surroundings(house: Path) -> dict[str, str]:
    """The environment in which Python imports the copy, and keeps what it compiles."""
    environment = {**os.environ, "PYTHONPATH": str(house)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def python(house: Path, code: str) -> None:
    """Runs code that imports the extended program."""
    words = [sys.executable, "-c", code]
    run = subprocess.run(
        words, cwd=house, env=surroundings(house), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def gathered(prestep: Prestep, *words: str) -> list[dict[str, Any]]:
    """Rows of an all-gather over a few sizes."""
    sizes = ("--op", "all_gather", "--min-bytes", "1K", "--max-bytes", "64K")
    rows: list[dict[str, Any]] = json.loads(
        prestep("collective", "--json", *sizes, *words)
    )
    return rows


PLACES = ["h200-host-4", "dgx-h100", "rail-h100 --hosts 2", "rail-h100 --hosts 4"]


@pytest.mark.parametrize("place", sample(PLACES, 3))
def test_an_algorithm_is_chosen_where_its_estimate_is_best(
    prestep: Prestep, place: str
) -> None:
    """One file: NCCL's choice takes it on one host and on many, among all others, and calls its time a guess."""
    rows = gathered(prestep, "--explain", "--cluster", *place.split())
    assert {row["algo"] for row in rows} == {"doubling"} and {
        row["evidence"] for row in rows
    } == {"guess"}
    for row in rows:
        assert {"ring", "doubling"} <= {
            candidate["algo"] for candidate in row["candidates"]
        }


def test_an_algorithm_is_forced_by_its_name(prestep: Prestep) -> None:
    """The name of its file is a value of [nccl] algo, for a step over many hosts too."""
    said = (
        "cluster.name=rail-h100",
        "cluster.hosts=2",
        "model.layers=2",
        "parallel.dp=16",
        "training.global_batch=16",
    )
    scenario = ["llama8b-fsdp4", "--json", *(f"--set={key}" for key in said)]
    forced = (["run", *scenario, f"--set=nccl.algo={a}"] for a in ("ring", "doubling"))
    names = prestep("list", "algorithms")
    steps = [prestep(*line) for line in forced]
    assert "doubling" in names.split()
    ring, doubling = (json.loads(text)["step_time"] for text in steps)
    assert ring != doubling


def test_an_algorithms_constants_are_replaced_by_a_file(
    prestep: Prestep, tmp_path: Path
) -> None:
    """A table of its name in a file of constants counts instead of what its module guesses."""
    (tmp_path / "slow.toml").write_text("[doubling.Simple]\nstart = 1e-3\n")
    own = gathered(prestep, "--cluster", "h200-host-4")
    slow = gathered(
        prestep,
        "--cluster",
        "h200-host-4",
        "--nccl-constants",
        str(tmp_path / "slow.toml"),
    )
    for before, after in zip(own, slow, strict=True):
        assert after["time"] == pytest.approx(before["time"] + 1e-3 - 8e-6)


def test_an_algorithm_runs_over_sockets(prestep: Prestep) -> None:
    """Hosts that reach each other by TCP have it as well: without `traffic` a note says what is missing."""
    rows = gathered(
        prestep,
        "--cluster",
        "rail-h100",
        "--hosts",
        "2",
        "--set",
        "nccl.net=socket",
        "--algo",
        "doubling",
    )
    assert any("sockets" in note for row in rows for note in row["notes"])


def block(section: str) -> str:
    """The first TOML of a section of the page."""
    match = re.search(rf"## {section}\n.*?```toml\n(.*?)```", PAGE, re.DOTALL)
    assert match
    return match[1]


def changed(path: Path, text: str) -> None:
    """Another text in place of a file that the copy shares with the program."""
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


PLACED = [
    ("cluster.name=h200-host-4", "parallel.dp=4"),
    ("cluster.name=rail-h100", "cluster.hosts=2", "parallel.dp=16"),
]
SMALL = ("model.layers=2", "training.global_batch=32")


def listed_and_steps(
    prestep: Prestep, kind: str, *steps: Sequence[str]
) -> tuple[list[str], list[float]]:
    """What there is of a kind, and the steps of the bundled scenario with some keys."""
    lines = (
        ["run", "llama1b-ddp4", "--json", *(f"--set={key}" for key in (*SMALL, *keys))]
        for keys in steps
    )
    made = [json.loads(prestep(*line))["step_time"] for line in lines]
    return prestep("list", kind).split(), made


@pytest.mark.parametrize("keys", PLACED)
def test_a_framework_is_a_module_and_a_table(
    prestep: Prestep, keys: tuple[str, ...]
) -> None:
    """Two files: a step runs on one host and on many, with host costs of its own."""
    slow = (*keys, "cluster.host_factor=20")  # so slow that it decides
    names, (plain, own) = listed_and_steps(
        prestep, "frameworks", slow, (*slow, "training.framework=libtorch")
    )
    assert "libtorch" in names
    assert 0 < own < plain


@pytest.mark.parametrize(
    "keys", ["training.precision=fp8", "parallel.data_parallel=fsdp"]
)
def test_a_framework_refuses_what_it_does_not_say(prestep: Prestep, keys: str) -> None:
    """Values that its module does not name are refused with the key."""
    words = ["--set=training.framework=libtorch", f"--set={keys}"]
    with pytest.raises(AssertionError, match=keys.partition("=")[0]):
        prestep("run", "llama1b-ddp4", *words)


def test_a_precision_is_a_row(prestep: Prestep, house: Path) -> None:
    """One table more: every framework that quantizes takes it."""
    rows = ROOT / "workloads" / "precisions.toml"
    text = rows.read_text(encoding="utf-8") + "\n" + block("A precision")
    changed(house / "workloads" / "precisions.toml", text)
    blackwell = ("cluster.name=dgx-b200", "cluster.gpus=4")  # an H200 has no such units
    asked = (
        (*PLACED[0], *blackwell, f"training.framework={framework}", precision)
        for framework in ("pytorch-eager", "megatron")
        for precision in ("training.precision=mxfp8", "training.precision=bf16")
    )
    names, times = listed_and_steps(prestep, "precisions", *asked)
    assert "mxfp8" in names
    for eight, wide in (times[:2], times[2:]):
        assert 0 < eight != wide


def test_an_optimizer_is_a_row(prestep: Prestep, house: Path) -> None:
    """One table more: more iterations take longer, in every framework that makes matrices orthogonal."""
    rows = ROOT / "workloads" / "optimizers.toml"
    text = rows.read_text(encoding="utf-8") + "\n" + block("An optimizer")
    changed(house / "workloads" / "optimizers.toml", text)
    asked = (
        (
            *PLACED[0],
            f"training.framework={framework}",
            f"training.optimizer={name}",
        )
        for framework in ("pytorch-eager", "megatron")
        for name in ("adamw", "muon", "muon-8")
    )
    names, times = listed_and_steps(prestep, "optimizers", *asked)
    assert "muon-8" in names
    for adamw, muon, eight in (times[:3], times[3:]):
        assert adamw < muon < eight


@pytest.mark.parametrize("framework", sample(["pytorch-eager", "megatron"]))
@pytest.mark.parametrize(
    "keys",
    [
        "cluster.name=h200-host-4 parallel.dp=2",
        "cluster.name=rail-h100 cluster.hosts=2 parallel.dp=8",
    ],
)
def test_a_schedule_runs_on_one_host_and_on_many(
    prestep: Prestep, keys: str, framework: str
) -> None:
    """One file: its name is a value of parallel.schedule, under every framework, and Megatron shards its stages too."""
    sharding = "fsdp" if framework == "megatron" else "ddp"
    said = [
        *keys.split(),
        f"training.framework={framework}",
        "training.microbatches=4",
        "model.layers=4",
    ]
    said += [
        "parallel.schedule=gpipe-lifo",
        "parallel.pp=2",
        f"parallel.data_parallel={sharding}",
    ]
    assert "gpipe-lifo" in prestep("list", "schedules").split()
    run = prestep(
        "run", "llama8b-pp4-1f1b", "--json", *(f"--set={key}" for key in said)
    )
    assert json.loads(run)["breakdown"]["bubble"] > 0


@pytest.mark.parametrize("hosts", sample([4, 1]))
def test_a_topology_family_is_one_file(
    prestep: Prestep, tmp_path: Path, hosts: int
) -> None:
    """A cluster file names it; a step and a collective run on one host of it and on many."""
    file = tmp_path / "ring.toml"
    file.write_text('family = "ring_of_hosts"\n')
    assert "ring_of_hosts" in prestep("list", "topologies").split()
    rows = gathered(prestep, "--cluster", str(file), "--hosts", str(hosts))
    assert len(rows) == 7 and all(row["time"] > 0 for row in rows)
    scenario = tmp_path / "step.toml"
    cluster = f'[cluster]\nfile = "{file}"\nhosts = {hosts}\n'
    scenario.write_text(
        f'{cluster}[model]\nname = "llama3.2-1b"\nlayers = 2\n[parallel]\ndp = {8 * hosts}\n'
    )
    assert json.loads(prestep("run", str(scenario), "--json"))["step_time"] > 0


def test_a_cluster_a_model_and_a_scenario_are_one_file_each(
    prestep: Prestep, house: Path
) -> None:
    """Copied where the page says, each is found by its name, and a step runs with all of them."""
    model = re.search(r"## A model\s+```toml\n(.*?)```", PAGE, re.DOTALL)
    assert model
    (house / "workloads" / "models" / "toy-model.toml").write_text(model[1])
    cluster = 'extends = "h200-host-4"\n'
    (house / "topologies" / "clusters" / "toy-cluster.toml").write_text(cluster)
    scenario = '[cluster]\nname = "toy-cluster"\n[model]\nname = "toy-model"\nlayers = 2\n[parallel]\ndp = 4\n'
    (house / "workloads" / "scenarios" / "toy-scenario.toml").write_text(scenario)
    for kind in ("models", "scenarios", "clusters"):
        assert f"toy-{kind.removesuffix('s')}" in prestep("list", kind).split()
    assert json.loads(prestep("run", "toy-scenario", "--json"))["step_time"] > 0


def test_a_trace_format_is_one_file(prestep: Prestep, tmp_path: Path) -> None:
    """A recording of that format is replayed: its step takes as long as it says."""
    head = "kind,stream,name,start_us,duration_us,launch"
    rows = [
        head,
        "step,1,first,0,100,-1",
        "launch,1,launch,0,4,1",
        "kernel,7,gemm,8,50,1",
    ]
    (tmp_path / "rank0.log0").write_text(
        "\n".join([*rows, "step,1,second,100,100,-1", ""])
    )
    made = json.loads(prestep("replay", str(tmp_path), "--json"))
    assert made["simulated_step_time"]["0"]["first"] == pytest.approx(100e-6)


def test_an_exporter_is_one_file(house: Path) -> None:
    """`write` answers to its suffix, from Python as the page says."""
    code = (
        "from prestep.sim.exporters import write; from prestep.sim.predict import predict; from prestep.sim.spec.load import load_scenario;"
        "write(predict(load_scenario('workloads/scenarios/mlp-ddp4.toml')), 'shares.csv')"
    )
    python(house, code)
    assert (house / "shares.csv").read_text().startswith("share,seconds")


PLACES_OF_A_GPU = ['extends = "h200-host-4"', 'extends = "rail-h100"']


@pytest.mark.parametrize("place", sample(PLACES_OF_A_GPU))
def test_a_gpu_is_one_file(
    prestep: Prestep, house: Path, tmp_path: Path, place: str
) -> None:
    """The datasheet of another GPU under a new name: steps and collectives on a host of it, and on many."""
    hardware = house / "sim" / "costs" / "hardware"
    (hardware / "toy-gpu.toml").write_text((hardware / "h100.toml").read_text())
    (tmp_path / "toys.toml").write_text(f'{place}\ngpu = "toy-gpu"\n')
    scenario = tmp_path / "step.toml"
    ranks, hosts = (16, "hosts = 2\n") if "rail" in place else (4, "")
    model = '[model]\nname = "llama3.2-1b"\nlayers = 2\n'
    scenario.write_text(
        f'[cluster]\nfile = "{tmp_path / "toys.toml"}"\n{hosts}{model}[parallel]\ndp = {ranks}\n'
    )
    made = json.loads(prestep("run", str(scenario), "--json"))
    assert made["step_time"] > 0 and made["evidence"]["guess"] > 0


@pytest.mark.parametrize("hosts", sample([4, 1]))
def test_a_routing_policy_is_one_file(
    prestep: Prestep, house: Path, hosts: int
) -> None:
    """Its name is a value of cluster.routing, on one host and on many."""
    policies = house / "topologies" / "policies"
    (policies / "toy.py").write_text((policies / "shortest.py").read_text())
    assert "toy" in prestep("list", "routings").split()
    said = (
        "cluster.name=rail-h100",
        f"cluster.hosts={hosts}",
        "cluster.routing=toy",
        "model.layers=2",
    )
    said += (f"parallel.dp={8 * hosts}", f"training.global_batch={8 * hosts}")
    words = [f"--set={key}" for key in said]
    made = json.loads(prestep("run", "llama8b-fsdp4", "--json", *words))
    assert made["step_time"] > 0


def test_a_storage_system_is_one_file(prestep: Prestep, house: Path) -> None:
    """Its name is where checkpoints go."""
    folder = house / "sim" / "costs" / "storage"
    (folder / "toy-storage.toml").write_text((folder / "weka.toml").read_text())
    assert "toy-storage" in prestep("list", "storage").split()
    said = (
        "checkpoint.every=1000",
        "checkpoint.storage=toy-storage",
        "checkpoint.mode=sharded",
    )
    words = [f"--set={key}" for key in said]
    made = json.loads(prestep("run", "llama1b-ddp4", "--json", *words))
    assert made["step_time"] > 0


TOY_IMPORTER = '''"""A toy's format: "toy NAME HOSTS"."""

from pathlib import Path

from prestep.topologies import load_cluster


def sniff(text):
    """Whether the file is of this format."""
    return text.startswith("toy ")


def read(path):
    """The named cluster with so many hosts."""
    _, name, hosts = Path(path).read_text().split()
    return load_cluster(name, int(hosts))
'''


def test_a_clusters_format_is_one_file(
    prestep: Prestep, house: Path, tmp_path: Path
) -> None:
    """A file of that format is recognised by its content, and what is written of it is a cluster."""
    folder = house / "topologies" / "files" / "importers"
    (folder / "toy_format.py").write_text(TOY_IMPORTER, encoding="utf-8")
    (tmp_path / "mine.txt").write_text("toy rail-h100 2\n")
    made = tmp_path / "mine.json"
    prestep("topology", "import", str(tmp_path / "mine.txt"), "-o", str(made))
    named = gathered(prestep, "--cluster", "rail-h100", "--hosts", "2")
    read = gathered(prestep, "--cluster", str(made))
    assert [row["time"] for row in read] == [row["time"] for row in named]


TOY_PROBE = '''"""How long nothing takes."""

TITLE, NEEDS, WEIGHT = "nothing at all", "host", 1.0


def measure(session):
    """One row."""
    session.emit("toy", kind="toy", s=0.5)
'''


def test_a_probe_is_one_file(prestep: Prestep, house: Path, tmp_path: Path) -> None:
    """It is listed, can be asked for by its name, and its rows are in the file."""
    folder = house / "validation" / "measure" / "probes"
    (folder / "toy_probe.py").write_text(TOY_PROBE, encoding="utf-8")
    name = "toy_probe"
    assert name in prestep("list", "probes").split()
    made = tmp_path / "mine.zip"
    prestep("measure", "-o", str(made), "--minutes", "0.1", "--only", name)
    with zipfile.ZipFile(made) as file:
        [row] = map(json.loads, file.read("toy.jsonl").decode().splitlines())
    assert (row["kind"], row["s"]) == ("toy", 0.5)


def test_a_validation_set_is_one_file_and_its_rows(
    prestep: Prestep, house: Path
) -> None:
    """With a title and rows, jobs or steps that were measured, it is listed and judged."""
    folder = house / "validation" / "cases" / "toy-set"
    folder.mkdir(parents=True)
    with (CASES / "h200" / "train_4gpu.jsonl").open(encoding="utf-8") as rows:
        first = next(rows)
    (folder / "train_8gpu.jsonl").write_text(first, encoding="utf-8")
    (folder / "steps.csv").write_text("llama1b-ddp4,82 ms\n", encoding="utf-8")
    (folder / "set.toml").write_text(block("A validation set"), encoding="utf-8")
    assert "toy-set" in prestep("list", "sets").split()
    report = json.loads(prestep("validate", "toy-set", "--json"))
    named = [case["id"] for case in report["cases"]]
    assert named == ["llama1b-ddp4", json.loads(first)["id"]]
    assert report["title"] == "Training steps on 8 H100" and report["checks"]
