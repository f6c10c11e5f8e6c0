"""What users of a command line take for granted: examples, -v, no colours, completion, pipes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from prestep import cli
from tests.laboratory import needs_sets

ROOT = Path(cli.__file__).parent


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        yield (*path, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


def examples(help_: str) -> list[str]:
    text = re.split(r"Examples?:", help_)[-1]
    joined = " ".join(text.split())
    return [f"prestep {part}" for part in re.split(r"\bprestep ", joined)[1:]]


@pytest.mark.parametrize("path", list(commands(cli.main)), ids=" ".join)
def test_help_ends_with_an_example_that_parses(path: tuple[str, ...]) -> None:
    """`--help` of every command has an example of it whose options it knows."""
    help_ = CliRunner().invoke(cli.main, [*path, "--help"]).output
    assert re.search(r"^\s*Examples?:", help_, re.MULTILINE), help_
    found = examples(help_)
    assert any(one.split()[1 : 1 + len(path)] == list(path) for one in found)
    for one in found:
        words = shlex.split(re.split(r" [>&]|\.(?= |$)", one)[0])[1:]
        if "--" in words:  # what follows is another program's
            words = words[: words.index("--")]
        group, context = cli.main, click.Context(cli.main)
        # `prestep doctor --json`: a group may do something by itself.
        while isinstance(group, click.Group) and words and words[0][:1] != "-":
            command = group.get_command(context, words.pop(0))
            assert command is not None, one
            group = command
        known = {
            option
            for param in group.params
            for option in (*param.opts, *param.secondary_opts)
        }
        assert {word for word in words if word.startswith("-")} <= known | {"--help"}, (
            one
        )


def test_v_says_what_is_done_on_stderr() -> None:
    """-v leaves stdout as it is."""
    command = [sys.executable, "-m", "prestep", "run", "mlp-ddp4", "--json"]
    plain = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = subprocess.run(
        [*command, "-v"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert plain.stdout == told.stdout and plain.stderr == ""
    assert "lowering" in told.stderr and re.search(
        r"\d+ ms +executing \d+ operations", told.stderr
    )


@pytest.mark.parametrize(
    "environment", [{"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, {}]
)
def test_there_are_no_colours_where_none_are_wanted(
    environment: dict[str, str],
) -> None:
    """No escape codes in a file, nor with NO_COLOR."""
    made = CliRunner().invoke(cli.main, ["run", "mlp-ddp4"], env=environment)
    assert made.exit_code == 0 and "\x1b" not in made.output


@pytest.mark.parametrize(
    "arguments", [["list", "models"], ["run", "mlp-ddp4"], ["schema"]]
)
def test_a_reader_that_goes_away_is_no_crash(arguments: list[str]) -> None:
    """`| head` ends the command quietly, with the code of programs that SIGPIPE ends."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "prestep", *arguments]
    made = subprocess.run(
        command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert made.returncode == 141 and made.stderr == ""


def asked(**environment: str) -> Result:
    """What the shell gets from prestep, which it asks in the environment."""
    return CliRunner().invoke(cli.main, [], env=environment, prog_name="prestep")


def offered(*words: str) -> list[str]:
    """What bash would offer for the last word."""
    made = asked(
        _PRESTEP_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(("prestep", *words)),
        COMP_CWORD=str(len(words)),
    )
    assert made.stderr == ""
    return made.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["wh"], "plain,whatif"),
        (["run", "llama8b-f"], "plain,llama8b-fsdp4"),
        (["run", "--sea"], ""),
        (["run", "examples/"], "file,examples/"),
        (
            ["whatif", "mlp-ddp4", "--set", "training.mic"],
            "plain,training.micro_batch=",
        ),
        (["whatif", "mlp-ddp4", "--set", "nvlink.b"], "plain,nvlink.bandwidth="),
        (["collective", "--cluster", "dgx-b200-"], "plain,dgx-b200-superpod"),
        (["topology", "sh"], "plain,show"),
        (["topology", "show", "aws-p5"], "plain,aws-p5"),
        pytest.param(["validate", "h200-w"], "plain,h200-whatif", marks=needs_sets),
        (["list", "schem"], ""),
    ],
)
def test_tab_offers_commands_names_and_keys(words: list[str], found: str) -> None:
    """Bundled scenarios, clusters, sets, keys of a scenario; files where no name fits."""
    assert found in offered(*words) if found else not offered(*words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there_for_every_shell(shell: str) -> None:
    """The lines of docs/command-line.md print a script that asks prestep."""
    made = asked(_PRESTEP_COMPLETE=f"{shell}_source")
    assert "prestep" in made.stdout or "bash version" in made.stderr
    assert f"{shell}_source prestep" in (ROOT / "docs" / "command-line.md").read_text(
        encoding="utf-8"
    )
