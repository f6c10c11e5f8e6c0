"""prestep as tools of agents: a server in a process of its own, spoken to as its clients do."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.errors import InputError
from prestep.sim.mcp import confined, tools
from tests.contracts.test_every_output import LOG, TRACE, mistakes
from tests.sim import test_captured_runs

ROOT = Path(cli.__file__).parent
missing = [n for n in ("mcp", "jsonschema") if importlib.util.find_spec(n) is None]
spoken = pytest.mark.skipif(
    bool(missing),
    reason=f"needs the extras mcp and dev (pip install -e '.[dev]'): no {', '.join(missing)}",
)
SCENARIO = """
[cluster]
name = "h200-host-4"
[model]
name = "mlp-1024"
[parallel]
dp = 4
"""
Call = tuple[str, Mapping[str, Any]]


def answers(calls: Sequence[Call], *paths: str | Path, folder: Path = ROOT) -> Any:
    """The tools of a server, and what it answers to the calls, which come at once."""
    from mcp import Client, StdioServerParameters

    async def spoken() -> Any:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "prestep", "mcp", *map(str, paths)],
            cwd=str(folder),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        async with Client(server) as client:
            listed = (await client.list_tools()).tools
            asked = (client.call_tool(name, dict(given)) for name, given in calls)
            return listed, await asyncio.gather(*asked)

    return asyncio.run(asyncio.wait_for(spoken(), 300))


def text(answer: Any) -> str:
    return "\n".join(part.text for part in answer.content)


def printed(*words: str) -> Any:
    made = CliRunner().invoke(cli.main, [*words, "--json"])
    assert made.exit_code in (0, 1), made.output
    return json.loads(made.stdout)


@spoken
def test_every_tool_answers_what_its_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same JSON, which keeps to the schema that the tool has, for all tools there are."""
    (tmp_path / "all_reduce.log").write_text(LOG)
    capture = str(test_captured_runs.job(tmp_path, world=2))
    log, trace = str(tmp_path / "all_reduce.log"), str(ROOT / TRACE)
    change, sizes = "nvlink.bandwidth=2x", {"min_bytes": "1M", "max_bytes": "2M"}
    over = ["parallel.tp=1", "parallel.pp=1", "training.micro_batch=1"]
    calls: list[Call] = [
        ("run", {"scenario": "mlp-ddp4", "set": [change]}),
        ("run", {"scenario": capture, "cluster": "dgx-h200"}),
        ("whatif", {"scenario": "mlp-ddp4", "set": [change]}),
        ("search", {"scenario": "llama1b-ddp4", "over": over, "price": "2"}),
        ("collective", {"cluster": "h200-host-4", "explain": True, **sizes}),
        ("replay", {"files": [trace], "free": True}),
        ("doctor", {}),
        ("doctor-nccl", {"logs": [log], "cluster": "dgx-h100"}),
        ("list", {"kind": "clusters"}),
    ]
    words = [
        ["run", "mlp-ddp4", f"--set={change}"],
        ["run", capture, "--cluster=dgx-h200"],
        ["whatif", "mlp-ddp4", f"--set={change}"],
        ["search", "llama1b-ddp4", *(f"--over={one}" for one in over), "--price=2"],
        [
            "collective",
            "--cluster",
            "h200-host-4",
            "--explain",
            "--min-bytes",
            "1M",
            "--max-bytes",
            "2M",
        ],
        ["replay", trace, "--free"],
        ["doctor"],
        ["doctor", "nccl", log, "--cluster=dgx-h100"],
        ["list", "clusters"],
    ]
    listed, told = answers(calls, tmp_path, ROOT / TRACE)
    schemas = {tool.name: tool.output_schema for tool in listed}
    assert set(schemas) == {name for name, _ in calls} == set(tools.TOOLS)
    monkeypatch.chdir(ROOT)
    for (name, _), line, answer in zip(calls, words, told, strict=True):
        assert not answer.is_error, text(answer)
        value = answer.structured_content
        assert not mistakes(value, schemas[name]), name
        if name != "doctor":  # which speaks of its own process
            assert value == tools.structured(printed(*line)), name
        assert json.loads(answer.content[0].text) == value


@spoken
def test_errors_are_the_texts_of_the_command() -> None:
    """A name that is not there, keys and values that are wrong, and a verdict, which is no error."""
    over = ["parallel.tp=1", "parallel.pp=1", "training.micro_batch=1"]
    much = ["training.seq_len=4000000"]
    calls: list[Call] = [
        ("run", {"scenario": "llama1b-ddp5"}),
        ("run", {"scenario": "mlp-ddp4", "set": ["training.micro_batches=2"]}),
        ("run", {"scenario": "mlp-ddp4", "replica": 2, "seed": "x"}),
        ("collective", {}),
        ("draw", {}),
        ("run", {"scenario": "mlp-ddp4", "scenario_toml": SCENARIO}),
        ("search", {"scenario": "llama1b-ddp4", "over": over, "set": much}),
    ]
    _, told = answers(calls)
    *errors, verdict = told
    for answer, line in zip(errors[:2], calls[:2], strict=True):
        changes = (f"--set={one}" for one in line[1].get("set", ()))
        made = CliRunner().invoke(cli.main, ["run", str(line[1]["scenario"]), *changes])
        assert made.exit_code == 2 and text(answer) == made.stderr.strip()
    assert all(answer.is_error for answer in errors)
    assert '"replica"' in text(errors[2]) and '"replicas"' in text(errors[2])
    assert "--cluster" in text(errors[3]) and "run" in text(errors[4])
    assert "both" in text(errors[5])
    assert not verdict.is_error and "exit code 1" in text(verdict)
    assert verdict.structured_content["ranked"] == []


@spoken
def test_only_files_that_were_given_are_read(tmp_path: Path) -> None:
    """By name, through a link, by a scenario that names it, by --set: what lies outside is refused, unread."""
    inside, out = tmp_path / "given", tmp_path / "other"
    inside.mkdir()
    out.mkdir()
    (out / "secret.toml").write_text("token = 'abc'\n[")
    (inside / "scenario.toml").write_text(SCENARIO)
    (inside / "link.toml").symlink_to(out / "secret.toml")
    named = '[cluster]\nfile = "{}"\n[model]\nname = "mlp-1024"\n'
    (inside / "names.toml").write_text(named.format(out / "secret.toml"))
    change = f"cluster.file={out / 'secret.toml'}"
    calls: list[Call] = [
        ("run", {"scenario": str(inside / "scenario.toml")}),
        ("run", {"scenario_toml": SCENARIO}),
        ("run", {"scenario": str(out / "secret.toml")}),
        ("run", {"scenario": str(inside / "link.toml")}),
        ("run", {"scenario": str(inside / "names.toml")}),
        ("run", {"scenario": "mlp-ddp4", "set": [change]}),
        ("run", {"scenario_toml": named.format(out / "secret.toml")}),
        ("replay", {"files": [str(out)]}),
        ("run", {"scenario_toml": named.format(inside / "link.toml")}),
    ]
    _, told = answers(calls, inside, folder=inside)
    good, refused = told[:2], told[2:]
    assert (
        good[0].structured_content["step_time"]
        == (good[1].structured_content["step_time"])
    )
    for answer, call in zip(refused, calls[2:], strict=True):
        assert answer.is_error and "was not given" in text(answer), call
        assert "abc" not in text(answer) and "prestep mcp PATH" in text(answer)


@spoken
def test_a_call_that_takes_too_long_is_ended() -> None:
    """The server lives on."""
    calls: list[Call] = [("run", {"scenario": "llama8b-fsdp4"})]
    _, told = answers(calls, "--time-limit", "0.01")
    assert told[0].is_error and "--time-limit" in text(told[0])


def test_input_schemas_are_the_options_of_the_commands() -> None:
    """Bounds, choices and what is needed; nothing that writes a file."""
    schemas = {name: tools.input_schema(tool) for name, tool in tools.TOOLS.items()}
    run = schemas["run"]["properties"]
    assert not {"trace", "report", "timeline", "json", "verbose", "each"} & set(run)
    assert run["replicas"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 10_000,
        "description": run["replicas"]["description"],
    }
    assert run["set"]["items"] == {"type": "string"} and run["energy"]["type"] == (
        "boolean"
    )
    assert schemas["collective"]["required"] == ["cluster"]
    assert "dgx" not in schemas["list"]["properties"]["kind"]["enum"]
    assert schemas["replay"]["properties"]["clock"]["enum"] == ["auto", "host", "gpu"]
    for schema in schemas.values():
        assert (
            "write" not in schema["properties"] and "plot" not in schema["properties"]
        )
        assert all(one.get("description") for one in schema["properties"].values())


def test_arguments_become_a_command_line() -> None:
    """Values cannot become options; each mistake is told."""
    tool = tools.TOOLS["run"]
    said = {
        "scenario": "--help",
        "set": ["a=1", "--x"],
        "energy": True,
        "strict": False,
    }
    assert tools.arguments(tool, said) == [
        *("run", "--json", "--set=a=1", "--set=--x", "--energy", "--", "--help")
    ]
    with pytest.raises(InputError) as caught:
        tools.arguments(tool, {"replicas": [1, 2], "energy": "yes", "no": 1})
    assert len(caught.value.mistakes) == 3


@pytest.mark.parametrize("text", ["a\0", "\ud800", "nic\ud8000"])
def test_texts_that_no_process_takes_are_refused(text: str) -> None:
    """JSON has zeros and halves of characters; command lines and files have none."""
    for name in ("scenario", "set"):
        with pytest.raises(InputError, match=name):
            tools.arguments(tools.TOOLS["run"], {name: text})


def test_modules_that_are_not_compiled_yet_are_imported(tmp_path: Path) -> None:
    """A confined process compiles what it imports for itself: it may not write that beside the modules."""
    compiled, temporary = tmp_path / "compiled", tmp_path / "temporary"
    compiled.mkdir()
    temporary.mkdir()
    folders = {"PYTHONPYCACHEPREFIX": str(compiled), "TMPDIR": str(temporary)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **folders}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = confined.command([], ["list", "clusters", "--json"])
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = {path.name.partition(".")[0] for path in compiled.rglob("*.pyc")}
    assert not written & {"catalog", "list"}  # they are imported after the hook is set


def test_inside_is_told_by_whole_names(tmp_path: Path) -> None:
    """A folder whose name merely begins alike is another one."""
    root = str(tmp_path / "data")
    assert confined.inside(f"{root}/a/b.toml", [root]) and confined.inside(root, [root])
    for other in (f"{root}-other/b.toml", f"{root}/../b.toml", str(tmp_path)):
        assert not confined.inside(other, [root])


def test_a_number_names_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`parallel.tp=1` is no file though the folder has one called 1; other values and whole words may be."""
    monkeypatch.chdir(tmp_path)
    for name in ("1", "model.json"):
        (tmp_path / name).touch()
    confined.check(["parallel.tp=1", "gpu.clock=0.5x"], [])
    for word in ("1", "model.file=model.json", "model.file=1"):
        with pytest.raises(InputError):
            confined.check([word], [])
