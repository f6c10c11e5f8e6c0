"""Mistakes as people make them on the command line: exit 2, every one named, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.errors import InputError
from prestep.validation.report.gate import new_misses

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

FIVE_MISTAKES = """
[cluster]
name = "h200-host-4"
[model]
kind = "transformer"
hidden = 1024
layers = 10
heads = 16
ffn = 4096
vocab = 32000
[training]
mico_batch = 2
microbatches = 8
framework = "megatron"
[parallel]
dp = 3
pp = 4
bucket_cap = "0 MiB"
[faults]
slow_per_layer = "1"
"""


def run(*arguments: str) -> Result:
    """The command, which ends by itself or with an exit code: never with an error that nobody expected."""
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_a_bad_scenario_is_exit_2_with_every_mistake_on_stderr(tmp_path: Path) -> None:
    """No traceback, nothing on stdout, file and key and what was expected."""
    (tmp_path / "bad.toml").write_text(BAD)
    done = run("run", str(tmp_path / "bad.toml"), "--set", "paralell.tp=2")
    assert (done.exit_code, done.stdout) == (2, "")
    for key in (
        "training.global_bach",
        "parallel.dp",
        "parallel.bucket_cap",
        "paralell.tp",
    ):
        assert f"{key}: found " in done.stderr
    assert 'did you mean "global_batch"?' in done.stderr


def test_every_kind_of_mistake_is_reported_at_once(tmp_path: Path) -> None:
    """Unknown key, missing unit, layout, layers and an empty bucket: one run names all five, each with its place."""
    scenario = tmp_path / "five.toml"
    scenario.write_text(FIVE_MISTAKES)
    done = run("run", str(scenario))
    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 5 and all(
        line.startswith(f"{scenario}: ") and ", expected " in line for line in lines
    )
    found = {
        line.removeprefix(f"{scenario}: ").partition(": found ")[::2] for line in lines
    }
    said = dict(found)
    assert said.keys() == {
        "training.mico_batch",
        "faults.slow_per_layer",
        "parallel.bucket_cap",
        "parallel",
        "model.layers",
    }
    assert 'did you mean "micro_batch"?' in said["training.mico_batch"]
    assert "the unit is missing" in said["faults.slow_per_layer"]
    assert "0 MiB, expected more than 0" in said["parallel.bucket_cap"]
    assert "= 12, expected 4, the number of GPUs" in said["parallel"]
    assert "10, expected a multiple of pp * vpp = 4" in said["model.layers"]


HEAD = '[cluster]\nname = "h200-host-4"\n[model]\nname = "llama3-1b-plain"\n'
SPLIT = HEAD + "[parallel]\ndp = 4\n"


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("", (), ("cluster: found neither", "model: found none of them")),
        ("a = = [", (), ("expected a scenario file (TOML)",)),
        ("\0\x01", (), ("expected a scenario file (TOML)",)),
        ('cluster = 3\nmodel = "x"', (), ("cluster: found 3", "model: found 'x'")),
        (
            HEAD
            + '[training]\nmicro_batch = -1\nseq_len = 2.5\n[parallel]\ndp = -4\nbucket_cap = "-5 MiB"\n',
            (),
            (
                "training.micro_batch: found -1",
                "training.seq_len: found 2.5",
                "parallel.dp: found -4",
                '"-5 MiB"',
            ),
        ),
        (
            SPLIT.replace("host-4", "host4").replace("plain", "plane"),
            (),
            ("cluster.name: ", '"h200-host-4"?', "model.name: ", '"llama3-1b-plain"?'),
        ),
        (
            SPLIT.replace('name = "h', 'file = "gone/h').replace(
                'name = "l', 'file = "l'
            ),
            (),
            ("gone/h200-host-4: ", "llama3-1b-plain: found no such file"),
        ),
        (
            HEAD.replace("name = ", "gpus = 3\nname = ", 1) + "[parallel]\ntp = 3\n",
            (),
            (
                "model.heads: found 32, expected a multiple of tp = 3",
                "model.kv_heads: ",
                "model.ffn: ",
            ),
        ),
        (
            SPLIT + "[faults]\nslow_rank = 0\nslow_factor = nan\n",
            (),
            ("faults.slow_factor: found nan",),
        ),
        (
            SPLIT,
            (
                "foo",
                "=3",
                "training.micro_batch",
                "training.=4",
                "parallel.dp=x",
                "model.sizes=[1,",
            ),
            (
                '"foo"',
                '"=3"',
                "training.micro_batch: found",
                "training.: found",
                "parallel.dp: found 'x'",
                "'[1,'",
            ),
        ),
        (
            SPLIT,
            (
                "nvlink.bandwidth=-2x",
                "nccl.version=abc",
                "nccl.cross_nic=7",
                "parallel.dp=3",
            ),
            (
                'nvlink.bandwidth: found "-2x"',
                "nccl.version: found abc",
                "nccl.cross_nic: found 7",
            ),
        ),
        (
            HEAD.replace("llama3-1b-plain", "gpt2-small")
            + '[training]\nframework = "pytorch-compiled"\n',
            ("parallel.dp=4", "pytorch.joined_qkv=true"),
            (
                "training.seq_len: found 2048, expected at most max_positions = 1024",
                "pytorch.joined_qkv: found true",
            ),
        ),
    ],
)
def test_mistakes_are_named_and_nothing_is_run(
    tmp_path: Path, text: str, changes: tuple[str, ...], said: tuple[str, ...]
) -> None:
    """Whatever is wrong with a scenario or its changes: exit 2, every mistake on stderr, nothing on stdout."""
    (tmp_path / "wrong.toml").write_text(text)
    options = [part for change in changes for part in ("--set", change)]
    result = run("run", str(tmp_path / "wrong.toml"), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert [part for part in said if part not in result.stderr] == [], result.stderr


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    """Said in words, not by a traceback."""
    result = run("run", str(tmp_path))
    assert result.exit_code == 2
    assert "is a directory, expected a scenario file" in result.stderr


@pytest.mark.parametrize("text", ["a = = [", 'check = "much"'])
def test_known_misses_that_cannot_be_read_are_an_input_error(
    tmp_path: Path, text: str
) -> None:
    """A table of figures, or a message that names the file."""
    (tmp_path / "misses.toml").write_text(text)
    with pytest.raises(InputError, match=r"misses\.toml: "):
        new_misses([], tmp_path / "misses.toml")
