"""What `--json` prints is what `prestep schema OUTPUT` says: every command, and every key that it prints."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import outputs
from tests.sim import test_captured_runs, test_stragglers

ROOT = Path(cli.__file__).parent
TRACE = "lab/cases/traces/1b-single-b2.default.rank0.pt.trace.json.gz"
LOG = """all_reduce_perf -b 16M -e 512M -f 2 -g 8
#  size(B)  time(us)  algbw(GB/s)
16777216 1400.0 11.9
134217728 7000 19.1
"""
DATALOAD = """
[cluster]
name = "h200-host-4"
gpus = 1
[model]
name = "resnet50"
[dataload]
decode = "1.4 ms"
sample = "110 KB"
storage = "weka"
workers = 8
cpus = 96
copy = "pinned"
"""
checked = pytest.mark.skipif(
    importlib.util.find_spec("jsonschema") is None,
    reason="needs jsonschema (pip install -e '.[dev]')",
)


def log(folder: Path) -> str:
    (folder / "all_reduce.log").write_text(LOG)
    return str(folder / "all_reduce.log")


def capture(folder: Path) -> str:
    return str(test_captured_runs.job(folder, world=2))


def whole_job(folder: Path) -> str:
    return str(test_stragglers.written(folder, (1.0, 1.1), (1.0, 1.2)))


def dump(folder: Path) -> str:
    """A flight recorder's dump of one of two ranks: the other has not entered the collective."""
    entry = {
        "process_group": ["0", "default_pg"],
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": 3,
        "state": "started",
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
    }
    content = {"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry]}
    (folder / "nccl_trace_rank_0.json").write_text(json.dumps(content))
    return str(folder / "nccl_trace_rank_0.json")


def with_data(folder: Path) -> str:
    (folder / "data.toml").write_text(DATALOAD)
    return str(folder / "data.toml")


#: Files that a command line names in capitals.
FILES: dict[str, Callable[[Path], str]] = {
    "LOG": log,
    "CAPTURE": capture,
    "JOB": whole_job,
    "DUMP": dump,
    "DATA": with_data,
}
PLAIN = "run mlp-ddp4"
#: Output -> command lines that print each of its shapes, and each key that is there only at times.
LINES = {
    "run": [
        f"{PLAIN} --replicas 3 --energy --price-per-gpu-hour 2 --price-per-kwh 0.1",
        "run llama1b-tp4 --set cluster.host_factor=2",
        "run resnet50-ddp4 --max-micro-batch",
        "run examples/two-jobs.toml",
        "run examples/checkpoints.toml",
        "run examples/serving/prefill-decode.toml",
        "run examples/rl/llama8b-grpo.toml",
        "run CAPTURE --cluster dgx-h200",
        "run DATA",
    ],
    "whatif": [
        "whatif mlp-ddp4 --set nvlink.bandwidth=2x",
        "whatif mlp-ddp4 --against nvlink.bandwidth=2x --against gpu[0].clock=0.9x",
        "whatif mlp-ddp4 --each link-kind,gpu",
        "whatif llama8b-pp4-1f1b --each rank --factors 0.5",
    ],
    "search": [
        "search llama1b-ddp4 --over parallel.tp=1 --over parallel.pp=1 --over training.micro_batch=1,2 --price 2",
        "search CAPTURE --over cluster.name=dgx-h100,dgx-a100 --price 2",
    ],
    "collective": [
        "collective --cluster h200-host-4 --min-bytes 1M --max-bytes 4M --explain",
        "collective --cluster dgx-h100 --backend gloo --min-bytes 1M --max-bytes 1M",
        "collective --cluster dgx-h100 --backend nvshmem --op all_to_all --min-bytes 1M --max-bytes 1M",
        "collective --cluster h200-host-4 --op init --explain",
    ],
    "replay": [
        f"replay {TRACE}",
        f"replay {TRACE} --set kernels.gemm=0.5x --free",
        f"replay {TRACE} --compare llama1b-ddp4",
        "replay JOB",
    ],
    "storage": [
        "storage lustre",
        "storage nvme --cluster aws-p5 --transfer gpu_direct --gpus 1",
    ],
    "goodput": [
        "goodput --step-time 10s --gpus 1024 --days 10 --replicas 3 --optimal",
        "goodput mlp-ddp4 --days 10 --replicas 1",
    ],
    "kernel": ["kernel gemm 16384,8192,1280 --gpu h100"],
    "list": ["list clusters", "list gpus"],
    "doctor": ["doctor"],
    "doctor-cluster": ["doctor cluster dgx-h100 LOG", "doctor cluster dgx-h100 DUMP"],
    "doctor-hang": ["doctor hang DUMP"],
    "doctor-nccl": ["doctor nccl LOG --cluster dgx-h100"],
    "topology-show": ["topology show rail-h100 --hosts 4"],
    "capture-show": ["capture show CAPTURE"],
    "submit": ["submit examples/measured/submission.jsonl"],
    "validate": ["validate doctor", "validate energy collectives-unaligned"],
}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of every command that has --json."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if any("--json" in param.opts for param in command.params):
            yield "-".join((*words, name))
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


def test_every_command_with_json_has_a_schema_and_a_line_here() -> None:
    """A command that gains --json says what it prints, and shows it."""
    printed = {*commands(cli.main), "capture-show"}  # hidden behind `capture`
    assert printed == set(outputs.names()) == set(LINES)


def closed(schema: Any) -> Any:
    """The schema without room for keys that it does not name: those would be keys that nobody promises."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if "properties" in schema else inner


def printed(line: str, folder: Path) -> Any:
    """What a command line prints with --json; 1 is a verdict on what it found, no failure."""
    words = [FILES[word](folder) if word in FILES else word for word in line.split()]
    made = CliRunner().invoke(cli.main, [*words, "--json"])
    assert made.exit_code in (0, 1), made.output
    return json.loads(made.stdout)


def mistakes(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong, by the shape that comes closest."""
    import jsonschema

    def distance(errors: list[Any]) -> tuple[bool, int]:
        return any(not one.path and one.validator == "type" for one in errors), len(
            errors
        )

    def told(error: Any) -> str:
        if not error.context:
            return f"{error.json_path}: {error.message[:300]}"
        shapes: dict[Any, list[Any]] = {}
        for one in error.context:
            shapes.setdefault(one.schema_path[0], []).append(one)
        return "; ".join(map(told, min(shapes.values(), key=distance)))

    found = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [told(error) for error in found]


@pytest.mark.daily
@checked
@pytest.mark.parametrize(
    ("output", "line"), [(output, line) for output in LINES for line in LINES[output]]
)
def test_an_output_has_the_keys_of_its_schema(
    output: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every promised key is there with its type, and no key is there that sim/outputs does not name."""
    monkeypatch.chdir(ROOT)
    wrong = mistakes(printed(line, tmp_path), closed(outputs.schema(output)))
    assert not wrong, f"sim/outputs, {output}: " + "\n".join(wrong)


@checked
@pytest.mark.parametrize("output", outputs.names())
def test_a_schema_is_one(output: str) -> None:
    """Valid JSON Schema, printed by the command, with a title that names the command; numbers are no texts."""
    import jsonschema

    made = CliRunner().invoke(cli.main, ["schema", output])
    schema = json.loads(made.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    words = output.replace("-", " ")
    assert re.search(rf"`prestep {words}( KIND)? --json`", schema["title"])
    assert mistakes("text", schema) and mistakes({"no": 1}, schema)


@checked
def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    """A key that is gone, one that is new, one of another type: each is told by its place."""
    schema = closed(outputs.schema("kernel"))
    good = printed("kernel gemm 512,512,512", tmp_path)
    assert not mistakes(good, schema)
    gone = {key: value for key, value in good.items() if key != "flops"}
    for wrong, told in (
        (gone, "'flops' is a required"),
        ({**good, "extra": 1}, "'extra' was unexpected"),
        ({**good, "time": "1 s"}, "$.time"),
    ):
        assert any(told in one for one in mistakes(wrong, schema)), told


def test_an_unknown_output_is_told_what_there_is() -> None:
    """Exit 2, and the name that was meant; the schema of scenarios is printed as before."""
    wrong = CliRunner().invoke(cli.main, ["schema", "runs"])
    assert wrong.exit_code == 2 and '"run"' in wrong.stderr
    listed = CliRunner().invoke(cli.main, ["schema", "--list"]).stdout.split()
    assert listed == ["scenario", *outputs.names()]
    both = [CliRunner().invoke(cli.main, ["schema", *a]) for a in ([], ["scenario"])]
    assert both[0].stdout == both[1].stdout and "training" in both[0].stdout
