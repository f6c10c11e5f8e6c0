"""The command line: exit codes, what goes to stdout, what to stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.spec.load import load_scenario
from prestep.sim.tools.catalog import DEMO, find_scenario
from tests.laboratory import needs_sets

ROOT = Path(cli.__file__).parent
# Llama 3 70B: 141 GB of bf16 parameters do not fit a GPU of 140 GiB together with anything else.
TOO_BIG = """
[cluster]
name = "h200-host-4"
gpus = 1
[model]
kind = "transformer"
hidden = 8192
layers = 80
heads = 64
kv_heads = 8
ffn = 28672
vocab = 128256
[training]
seq_len = 2048
"""
RUN_KEYS = {
    "step_time",
    "step_time_by_rank",
    "tokens_per_second_per_gpu",
    "mfu",
    "tflops_per_gpu",
    "breakdown",
    "peak_memory",
    "links",
    "evidence",
}
COLLECTIVE = (
    "collective",
    "--cluster",
    "h200-host-4",
    "--op",
    "all_reduce",
    "--min-bytes",
    "1M",
    "--max-bytes",
    "4M",
)


def good(*arguments: str) -> str:
    """What a command that succeeds prints on stdout."""
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


HEAVY = {"numpy", "pandas", "networkx", "pyarrow", "simpy", "rich", "matplotlib"}


def imported(*lines: list[str]) -> set[str]:
    """The modules that command lines have imported when they end, one after the other."""
    code = (
        "import sys\nfrom prestep import cli\n"
        f"for words in {list(lines)}:\n    cli.main(words, standalone_mode=False)\n"
        "print('IMPORTED', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.rpartition("IMPORTED")[2].split())


def test_help_imports_no_command() -> None:
    """`prestep --help` is instant because the table of commands is read from their files."""
    modules = imported(["--help"])
    assert not modules & HEAVY
    assert not modules & {
        "prestep.sim.commands.run",
        "prestep.validation.commands.validate",
    }


def test_help_and_lists_import_no_simulator() -> None:
    """`prestep COMMAND --help` imports the options alone; names and first lines are read from files."""
    names = cli.main.list_commands()  # type: ignore[attr-defined]
    lists = ["list", "clusters", "--long"], ["list", "models"]
    modules = imported(*([name, "--help"] for name in names), *lists)
    assert not modules & HEAVY
    assert {"prestep.sim.commands.run", "prestep.validation.fit.cli"} <= modules


def test_a_replay_starts_without_the_predictor() -> None:
    """Only `--compare` predicts: a replay takes kernels from its trace, and plans no step."""
    traces = ROOT / "lab" / "cases" / "traces"
    trace = traces / "125m-ddp4-b4.default.rank0.pt.trace.json.gz"
    modules = imported(["replay", str(trace)])
    assert "prestep.sim.replay.replay" in modules
    assert not modules & {
        "prestep.sim.planning.planned",
        "prestep.sim.predict",
        "prestep.sim.spec.load",
    }


def test_a_run_imports_only_what_its_scenario_needs() -> None:
    """A run of training steps loads no serving and no simulated storage, which are slow to import."""
    modules = imported(["run", "llama1b-ddp4"])
    assert not modules & {
        "prestep.sim.serving.serving",
        "prestep.sim.storage.saving",
        "prestep.sim.studies.shared_cluster",
        "prestep.workloads.models.hugging_face",
    }


def test_help_says_of_every_command_what_it_says_of_itself() -> None:
    """The table of `prestep --help` has the short help of every command."""
    context = click.Context(cli.main, info_name="prestep")
    formatter = click.HelpFormatter(width=200)
    cli.main.format_commands(context, formatter)  # type: ignore[attr-defined]
    table = formatter.getvalue()
    for name in cli.main.list_commands():  # type: ignore[attr-defined]
        command = cli.main.get_command(context, name)  # type: ignore[attr-defined]
        assert command.get_short_help_str(150) in table


def test_help_names_every_command() -> None:
    """The group's help is the table of commands."""
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    assert all(
        name in result.stdout
        for name in (
            "run",
            "whatif",
            "validate",
            "collective",
            "topology",
            "list",
            "schema",
        )
    )


def test_version_is_the_package_s() -> None:
    """One version, in sim/__init__.py."""
    assert "0.3.0" in CliRunner().invoke(cli.main, ["--version"]).stdout


def test_schema_is_json_on_stdout() -> None:
    """stdout is data."""
    result = CliRunner().invoke(cli.main, ["schema"])
    assert (
        json.loads(result.stdout)["title"] == "prestep scenario" and result.stderr == ""
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("scenarios", "llama1b-ddp4"),
        ("models", "llama3-8b"),
        ("schedules", "1f1b"),
        ("clusters", "dgx-h200"),
        ("collectives", "ring"),
        ("topologies", "host"),
        ("exporters", "chrome_trace"),
        pytest.param("sets", "h200-straggler", marks=needs_sets),
    ],
)
def test_list_prints_one_name_a_line(kind: str, name: str) -> None:
    """The names that scenarios take."""
    result = CliRunner().invoke(cli.main, ["list", kind])
    assert result.exit_code == 0 and result.stderr == ""
    assert name in result.stdout.splitlines()


def test_strict_fails_on_fallbacks_after_printing_the_prediction() -> None:
    """Exit 1 and a line for each on stderr; without any fallback exit 0. The page and the JSON show them anyway."""
    on = (
        "run",
        "mlp-ddp4",
        "--set",
        "cluster.name=dgx-h100",
        "--set",
        "cluster.gpus=4",
    )
    result = CliRunner().invoke(cli.main, [*on, "--json", "--strict"])
    said = json.loads(result.stdout)["fallbacks"]
    assert (
        result.exit_code == 1 and len(result.stderr.splitlines()) == len(said) + 1 > 1
    )
    assert "Fallbacks: " in good(*on)
    assert "Fallbacks: " not in good("run", "llama1b-tp4", "--strict")


def test_without_a_file_the_demonstration_is_run() -> None:
    """And a bundled scenario is found by its name."""
    assert find_scenario(None).stem == DEMO
    assert not load_scenario(find_scenario(None)).measured.fitted
    assert find_scenario("moe-ep4").is_file()
    assert find_scenario("other.toml") == Path("other.toml")


def test_run_prints_json_with_the_keys_of_the_interface() -> None:
    """`run --json` is an object in seconds and bytes; its breakdown sums to the step."""
    said = json.loads(good("run", "--json"))
    assert said.keys() >= RUN_KEYS
    assert {"compute", "exposed_dp", "bubble", "host", "io", "idle"} <= said[
        "breakdown"
    ].keys()
    assert sum(said["breakdown"].values()) == pytest.approx(said["step_time"])
    assert (
        said["step_time_by_rank"].keys()
        == said["peak_memory"].keys()
        == {"0", "1", "2", "3"}
    )
    assert {"name", "utilisation", "shadow_price"} <= said["links"][0].keys()


def test_run_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    """Predicted beside measured, and what was written where goes to stderr."""
    trace, timeline = tmp_path / "t.json.gz", tmp_path / "t.parquet"
    result = CliRunner().invoke(
        cli.main, ["run", "--trace", str(trace), "--timeline", str(timeline)]
    )
    assert result.exit_code == 0, result.output
    assert (
        "step time" in result.stdout
        and "measured" in result.stdout
        and "compute" in result.stdout
    )
    assert result.stderr.splitlines() == [f"wrote {trace}", f"wrote {timeline}"]
    assert trace.stat().st_size and timeline.stat().st_size


def test_whatif_compares_base_and_changed() -> None:
    """Twice the NVLink bandwidth is never slower, and both steps are shown."""
    arguments = ("whatif", "llama8b-fsdp4", "--set", "nvlink.bandwidth=2x")
    said = json.loads(good(*arguments, "--json"))
    assert said["base"]["step_time"] >= said["changed"]["step_time"] > 0
    assert said["speedup"] == pytest.approx(
        said["base"]["step_time"] / said["changed"]["step_time"]
    )
    assert {"step_time", "breakdown", "links"} <= said["changed"].keys()
    text = good(*arguments)
    assert (
        "step time" in text
        and "times as fast" in text
        and "busiest links, changed" in text
    )


def test_topology_show_takes_hosts_and_changes(tmp_path: Path) -> None:
    """1,024 GPUs as one host with a count; a change is in the listing."""
    picture = tmp_path / "pod.svg"
    text = good(
        "topology",
        "show",
        "dgx-h100-superpod",
        "--hosts",
        "128",
        "--svg",
        str(picture),
    )
    assert (
        "1024 GPUs" in text
        and "oversubscription  leaf 1:1" in text
        and "51.2 TB/s" in text
    )
    assert ">128 hosts<" in picture.read_text(encoding="utf-8")
    assert "12 GB/s" in good(
        "topology",
        "show",
        "rail-h100",
        "--hosts",
        "2",
        "--set",
        "nic[host1].bandwidth=0.25x",
    )


def test_collective_prints_the_columns_of_nccl_tests() -> None:
    """`--json` is a list with one object a size; `--explain` says what bounds each."""
    said = json.loads(good(*COLLECTIVE, "--json"))
    assert [row["bytes"] for row in said] == [2**20, 2**21, 2**22]
    assert all(
        {"op", "bytes", "time", "algbw", "busbw", "algo", "proto", "channels"}
        <= row.keys()
        for row in said
    )
    explained = good(*COLLECTIVE, "--explain")
    assert len(explained) > len(good(*COLLECTIVE)) and "latency" in explained


def test_a_model_that_does_not_fit_is_said_to_be_out_of_memory(tmp_path: Path) -> None:
    """70 billion parameters on one GPU: the verdict, how much too much, and the largest owner."""
    (tmp_path / "big.toml").write_text(TOO_BIG)
    said = json.loads(good("run", str(tmp_path / "big.toml"), "--json"))
    verdict, peak = said["out_of_memory"], dict(said["peak_memory"]["0"])
    total = peak.pop("total")
    assert (
        not verdict["fits"]
        and verdict["needed"] == total + verdict["outside"] > verdict["capacity"] > 0
    )
    assert verdict["largest_owner"] == max(peak, key=peak.__getitem__) == "optimizer"
    text = " ".join(good("run", str(tmp_path / "big.toml")).split())
    assert "OUT OF MEMORY" in text and "the largest part is optimizer" in text


@needs_sets
@pytest.mark.usefixtures("known_reports")
def test_validate_exits_1_outside_tolerance_and_prints_json() -> None:
    """Cases and figures under the names that scripts rely on; the exit code is the verdict."""
    result = CliRunner().invoke(
        cli.main, ["validate", "h200-straggler", "--json", "--jobs", "1"]
    )
    said = json.loads(result.stdout)
    assert result.exit_code == (0 if said["passed"] else 1)
    assert said["set"] == "h200-straggler" and len(said["cases"]) == 4
    assert said.keys() >= {"n", "mape", "worst", "bias", "families"}
    assert all(
        {"id", "measured", "predicted", "signed_error", "family"} <= case.keys()
        for case in said["cases"]
    )


@needs_sets
@pytest.mark.usefixtures("known_reports")
def test_validate_writes_markdown_to_a_pipe() -> None:
    """A file or a pipe gets Markdown, that pastes into a page."""
    result = CliRunner().invoke(cli.main, ["validate", "h200-straggler", "--jobs", "1"])
    assert result.exit_code in (0, 1) and result.stdout.startswith("# h200-straggler: ")
    assert "| check" in result.stdout


def test_hosts_scales_a_cluster_on_the_command_line() -> None:
    """`--hosts` where a family scales; a family of one host says why it does not."""
    assert good("topology", "check", "rail-h100", "--hosts", "40").startswith(
        "rail-h100: good: 40 hosts, 320 GPUs"
    )
    assert "rail-h100: 24 GPUs" in good("topology", "show", "rail-h100", "--hosts", "3")
    size = ("--op", "all_to_all", "--min-bytes", "64M", "--max-bytes", "64M", "--json")
    [row] = json.loads(
        good(
            "collective",
            "--cluster",
            "rail-h100",
            "--hosts",
            "40",
            "--ranks",
            "320",
            *size,
        )
    )
    assert row["busbw"] > 1e9
    result = CliRunner().invoke(
        cli.main, ["topology", "check", "dgx-h100", "--hosts", "2"]
    )
    assert result.exit_code == 2 and "the family host is one host" in result.stderr
