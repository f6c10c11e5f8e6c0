"""What docs/ and examples/ say agrees with the code; tests/test_examples.py and test_readme.py run what they show."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.commands import _shared
from prestep.sim.costs import interference, load_gpu
from prestep.sim.engine import streams
from prestep.sim.exchanges import table
from prestep.sim.graph.opgraph import OpGraph
from prestep.sim.planning import planned
from prestep.sim.schema import Named
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import SECTIONS
from prestep.sim.studies.whatif import compare
from prestep.sim.tools.catalog import find_scenario, names
from prestep.sim.units import format_duration
from prestep.topologies import load_cluster
from prestep.workloads import optimizer, precision
from prestep.workloads.host_costs import SCHEMA as FRAMEWORK
from prestep.workloads.host_costs import host_costs, kernel_gap
from prestep.workloads.models.model import load_model
from prestep.workloads.sharding import ddp
from prestep.workloads.torch import rank_step
from tests import pages
from tests.sample import together
from tests.sim.synthetic import EXPECTED, result

ROOT = Path(cli.__file__).parent
WRITTEN = [page for page in pages.PAGES if ROOT / "docs" in page.parents]
PAGES = [ROOT / "README.md", *WRITTEN, ROOT / "examples" / "README.md"]
EXAMPLES = ROOT / "examples"
SCENARIOS = ROOT / "docs" / "scenarios.md"
NOTES = ROOT / "lab" / "notes" / "models.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRETRAIN = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --seq-length 4096 "
    "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 4 --bf16\n"
)
REST = {"cluster": {"name": "h200-host-4"}, "model": {"name": "llama3-8b"}}
PACKAGES = ("sim", "topologies", "workloads", "validation", "tests", "examples", "docs")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def part(page: Path, heading: str) -> str:
    """What a page says under a heading, subheadings included."""
    return re.split(
        r"^## ",
        text_of(page).partition(f"\n## {heading}\n")[2],
        maxsplit=1,
        flags=re.MULTILINE,
    )[0]


def blocks(language: str, pages: list[Path]) -> list[object]:
    found = [
        (page, at, text)
        for page in pages
        for at, (lang, text) in enumerate(BLOCK.findall(text_of(page)))
        if lang == language
    ]
    return [
        pytest.param(text, id=f"{page.parent.name}-{page.name}-{at}")
        for page, at, text in found
    ]


@together("section", SECTIONS)
def test_every_key_of_a_section_is_on_the_page(section: str) -> None:
    """Under the section's own heading."""
    rows = (
        part(SCENARIOS, "All keys")
        .partition(f"### [{section}]\n")[2]
        .partition("\n### [")[0]
    )
    for entry in fields(SECTIONS[section]):
        assert f"\n`{entry.name}` | " in rows


def _rows_with(key: str, tables: dict[str, object]) -> bool:
    return all(isinstance(row, dict) and key in row for row in tables.values())


@pytest.mark.parametrize("text", blocks("toml", PAGES))
def test_a_toml_block_loads_as_what_it_is(text: str, tmp_path: Path) -> None:
    """A scenario or a part of one, a cluster, a model, a row of a table, or the head of a validation set."""
    tables, path = tomllib.loads(text), tmp_path / "block.toml"
    path.write_text(text, encoding="utf-8")
    (tmp_path / "pretrain.sh").write_text(PRETRAIN, encoding="utf-8")
    for name, command in (
        ("mine.toml", "h200-host-4"),
        ("hall.toml", "rail-h100"),
    ):  # what other blocks make
        (tmp_path / name).write_text(f'extends = "{command}"\n', encoding="utf-8")
    if tables.keys() & {"family", "extends"}:
        assert load_cluster(path).gpus
    elif "kind" in tables:
        assert load_model(
            parse_scenario(REST | {"model": {"file": str(path)}}, "block").model,
            "block",
        ).layers
    elif "inherits" in tables:
        assert not list(FRAMEWORK.mistakes("block", "", tables))
    elif _rows_with("moments", tables):
        assert not list(Named(optimizer.ROW).mistakes("block", "", tables))
    elif _rows_with("wire", tables):
        assert not list(Named(precision.ROW).mistakes("block", "", tables))
    elif "title" in tables:
        assert tables["rows"]
    elif tables.keys() >= REST.keys() or "jobs" in tables:
        load_scenario(path)
    else:
        assert tables.keys() <= SECTIONS.keys()
        parse_scenario(REST | tables, "block")


@together(
    "path",
    # Those of the distribution are installed in tests/contracts/test_distributions.py.
    sorted({*EXAMPLES.rglob("*.toml")} - {*(EXAMPLES / "plugins").rglob("*.toml")}),
)
def test_an_example_file_loads(path: Path) -> None:
    """Scenarios, and the cluster files that they name; examples/README.md shows each."""
    cluster = path.parent.name == "clusters"
    assert load_cluster(path).gpus if cluster else load_scenario(path).cluster
    assert f"]({path.relative_to(ROOT / 'examples')})" in text_of(
        ROOT / "examples" / "README.md"
    )


@together("page", PAGES)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    """Links, and paths in backticks that begin with a folder of this tree; NAME and * stand for any."""
    text = text_of(page)
    links = [page.parent / link for link in re.findall(r"\]\((?!http)([^)#\s]+)", text)]
    paths = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w./*-]+)", text)
    named = [ROOT / path for path in paths if "NAME" not in path and "my_" not in path]
    for path in (*links, *named):
        at = path.resolve().relative_to(ROOT)
        assert list(ROOT.glob(str(at))), f"{page.name} names {at}"


@pytest.mark.parametrize(
    "command",
    [line for line in text_of(PAGES[-1]).splitlines() if line.startswith("prestep ")],
)
def test_a_command_of_the_examples_page_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any folder that has examples/ in it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.main, shlex.split(command, comments=True)[1:])
    assert done.exit_code == 0, done.output


def test_the_page_has_every_key_of_the_json() -> None:
    """What run, whatif and collective print, in backticks; shares of the breakdown too."""
    page, step = part(SCENARIOS, "JSON"), result()
    printed = json.loads(step.to_json())
    (row,) = table.sweep(load_cluster("h200-host-4"), min_bytes=2**20, max_bytes=2**20)
    inner = [
        *printed["peak_memory"]["0"],
        *printed["out_of_memory"],
        *printed["links"][0],
        *EXPECTED,
    ]
    for key in (*printed, *inner, *compare(printed, printed), *row.to_json()):
        assert f"`{key}`" in page, key
    listed = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^([^|\n]*) \| ", page, re.MULTILINE))
    )
    assert listed == list(printed)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--set", "training.seq_len=64"], 0),
        (["run", "examples/custom-cluster.toml", "--strict"], _shared.EXIT_OUTSIDE),
        (["run", "--set", "training.seq_len=2k"], _shared.EXIT_INPUT),
        (["run", "--set", "training.precision=fp16"], _shared.EXIT_INPUT),
    ],
)
def test_exit_codes_are_as_the_page_has_them(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 good, 1 outside what was asked for, 2 wrong or not simulated; with 2 there is nothing on stdout."""
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == code
    assert f"\n{code} | " in part(SCENARIOS, "Exit codes")
    assert bool(done.stdout) == (code != _shared.EXIT_INPUT)


@together(
    ("change", "key", "value"),
    [
        ("training.seq_len=4096", "training.seq_len", 4096),
        (' training.seq_len = "4096" ', "training.seq_len", 4096),
        ("parallel.data_parallel=fsdp", "parallel.data_parallel", "fsdp"),
        ("parallel.bucket_cap=100 MiB", "parallel.bucket_cap", 100 * 2.0**20),
        ("model.sizes=[64,64,1]", "model.sizes", (64, 64, 1)),
        ("nvlink.bandwidth=2x", "cluster.set", {"nvlink.bandwidth": "2x"}),
        ("cluster.set.nvlink.bandwidth=2x", "cluster.set", {"nvlink.bandwidth": "2x"}),
        (
            "gpu0>nvswitch1.latency=1 us",
            "cluster.set",
            {"gpu0>nvswitch1.latency": "1 us"},
        ),
    ],
)
def test_a_change_is_read_as_the_page_says(
    change: str, key: str, value: object
) -> None:
    """Texts and quantities bare, others as TOML, links by any other name."""
    tables = REST | {"training": {"seq_len": 8}}
    section, _, name = key.partition(".")
    assert (
        getattr(getattr(parse_scenario(tables, "test", [change]), section), name)
        == value
    )


def test_the_constants_are_those_of_the_code() -> None:
    """The last table of the notes on models says what the code and its files say."""
    gpu, costs = (
        load_gpu("h200"),
        [cost for cost in host_costs("pytorch-eager").values() if cost],
    )
    slow = interference._table()["factor"].values()
    known = {
        "pause between kernels of a stream": format_duration(gpu.gap),
        "the same inside a CUDA graph": f"{(kernel_gap('cuda-graph') or 0) * 1e6:g} us",
        "launch to start on an idle stream": format_duration(planned.LAUNCH_LATENCY),
        "launches outstanding": f"{OpGraph.launch_limit}",
        "host time of an operation": f"{min(costs) * 1e6:.2g} to {max(costs) * 1e6:.3g} us",
        "host_factor of h200-host-4": f"{load_cluster('h200-host-4').facts['host_factor'].value:g}",
        "spread between GPUs": f"{gpu.spread * 100:g} %",
        "GEMMs and attention when GPUs work together": f"{gpu.crowded:g}",
        "communication beside kernels": f"{interference.BUNDLED.contention():g}",
        "kernels beside communication": f"{min(slow):g} to {max(slow):g}",
        "GEMM of up to two waves beside communication": f"{interference.STATIC:g}",
        "products free of the power limit": f"{interference._table()['power']['free'] / 1e12:g} Tflop/s",
        "slowest product that power holds down": f"{interference._table()['power']['least'] / 1e12:g} Tflop/s",
        "pauses until a stream rests": f"{streams.PAUSE}",
        "NCCL watchdog's period": f"{ddp.WATCHDOG_PERIOD:g} s",
        "cuBLAS workspace": f"{rank_step.HANDLES * rank_step.CUBLAS_WORKSPACE / 2**20:g} MiB",
    }
    shown = dict(
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|", part(NOTES, "Constants"), re.MULTILINE)
    )
    assert {name: shown.get(name) for name in known} == known


def test_first_pages_greet_with_runs_that_nothing_was_fitted_to() -> None:
    """Bundled scenarios that README, index and tutorial run, for what they print beside the measured time."""
    greeting = [
        name
        for page in ("README.md", "docs/index.md", "docs/tutorial.md")
        for name in re.findall(
            r"^prestep run ([\w-]+)", text_of(ROOT / page), re.MULTILINE
        )
        if name in names("scenarios")
    ]
    assert greeting
    for name in greeting:
        measured = load_scenario(find_scenario(name)).measured
        assert measured.step_time and not measured.fitted, name


def test_rows_that_a_constant_was_taken_from_are_those_of_fitted_toml() -> None:
    """Rows beside a constant are among those that fitted.toml has for its file."""
    fitted = tomllib.loads(text_of(ROOT / "lab/cases/h200/fitted.toml"))["constant"]
    lines = [
        line.split(" | ")
        for line in part(NOTES, "Constants").splitlines()
        if line.count(" | ") == 4
    ]
    for line in lines:
        path = re.findall(r"`([\w/.-]+)`", line[3])
        named = set(re.findall(r"\b\d+[bm]-[\w-]+", line[4]))
        entries = [entry for entry in fitted if path and entry["file"] == path[0]]
        if entries and named:
            allowed = {row for entry in entries for row in entry.get("rows", [])}
            allowed |= {
                row
                for entry in entries
                for row in re.findall(r"\b\d+[bm]-[\w-]+", entry["name"])
            }
            assert named <= allowed, line
