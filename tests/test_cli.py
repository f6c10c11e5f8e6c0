"""The command line: exit codes, what goes to stdout, what to stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli

ROOT = Path(cli.__file__).parent
BAD = """
[cluster]
name = "h200-host-4"
[model]
name = "llama3-1b-plain"
[training]
global_bach = 7
[parallel]
dp = 0
bucket_cap = "25"
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    """`prestep --help` is instant because the libraries are imported by the commands that need them."""
    code = (
        "import sys, cli; print(sorted({'numpy', 'pandas', 'networkx', 'pyarrow', 'simpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_every_command() -> None:
    """The group's help is the table of commands."""
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    assert all(
        name in result.stdout for name in ("run", "whatif", "validate", "collective", "topology", "list", "schema")
    )


def test_version_is_the_package_s() -> None:
    """One version, in sim/__init__.py."""
    assert "0.1.0" in CliRunner().invoke(cli.main, ["--version"]).stdout


def test_schema_is_json_on_stdout() -> None:
    """stdout is data."""
    result = CliRunner().invoke(cli.main, ["schema"])
    assert json.loads(result.stdout)["title"] == "prestep scenario" and result.stderr == ""


@pytest.mark.parametrize(
    ("kind", "name"), [("scenarios", "llama1b-ddp4"), ("models", "llama3-8b"), ("schedules", "1f1b"), ("clusters", "")]
)
def test_list_prints_one_name_a_line(kind: str, name: str) -> None:
    """The names that scenarios take."""
    pytest.importorskip("topologies")
    result = CliRunner().invoke(cli.main, ["list", kind])
    assert result.exit_code == 0
    assert not name or name in result.stdout.splitlines()


def test_a_bad_scenario_is_exit_2_with_every_mistake_on_stderr(tmp_path: Path) -> None:
    """No traceback, nothing on stdout, file and key and what was expected."""
    pytest.importorskip("topologies")
    (tmp_path / "bad.toml").write_text(BAD)
    done = run("run", str(tmp_path / "bad.toml"), "--set", "paralell.tp=2")
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    for key in ("training.global_bach", "parallel.dp", "parallel.bucket_cap", "paralell.tp"):
        assert f"{key}: found " in done.stderr
    assert 'did you mean "global_batch"?' in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "no-such.toml"),
        ("whatif", "no-such.toml"),
        ("validate", "--rows", "no-such.jsonl"),
        ("validate", "no-such-set"),
        ("topology", "show", "no-such-cluster"),
        ("topology", "check", "no-such.toml"),
        ("collective", "--cluster", "no-such-cluster"),
        ("collective", "--cluster", "h200-host-4", "--min-bytes", "many"),
        ("list", "gadgets"),
    ],
)
def test_what_does_not_exist_is_exit_2_without_a_traceback(arguments: tuple[str, ...]) -> None:
    """The last line of stderr says what was not found."""
    for module in ("sim.predict", "topologies", "validation.compare", "sim.collectives"):
        pytest.importorskip(module)
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exit_code == 2 and result.stdout == "" and result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_without_a_file_the_demonstration_is_run() -> None:
    """And a bundled scenario is found by its name."""
    assert cli.find_scenario(None).stem == cli.DEMO
    assert cli.find_scenario("moe-ep4").is_file()
    assert cli.find_scenario("other.toml") == Path("other.toml")
