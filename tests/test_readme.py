"""What README shows works: commands run, examples load. All other pages: tests/test_pages.py and tests/test_docs.py."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import SECTIONS
from prestep.topologies import load_cluster

ROOT = Path(cli.__file__).parent
README = ROOT / "README.md"
PAGES = [README]  # those of all other pages: tests/test_docs.py
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
# What a scenario must have, under a snippet that shows some other section.
REST = {"cluster": {"name": "h200-host-4"}, "model": {"name": "llama3-8b"}}


def blocks(page: Path, *languages: str) -> list[str]:
    """The text of a page's code blocks in one of the languages."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [match["text"] for match in found if match["language"] in languages]


def commands() -> list[str]:
    """README's command lines that start with prestep, without what is said about them."""
    lines = (
        "\n".join(blocks(README, "", "sh", "bash", "shell", "console"))
        .replace("\\\n", " ")
        .splitlines()
    )
    bare = [
        line.strip().removeprefix("$ ").partition("  #")[0].partition(" # ")[0].strip()
        for line in lines
    ]
    return [line for line in bare if line.split(" ")[0] == "prestep"]


def marked(command: str) -> Any:
    return (
        pytest.param(command, marks=pytest.mark.slow)
        if "validate" in command
        else command
    )


def examples() -> list[Any]:
    """Its TOML blocks, by number."""
    return [
        pytest.param(text, id=f"{page.name}-{at}")
        for page in PAGES
        for at, text in enumerate(blocks(page, "toml"))
    ]


@pytest.mark.usefixtures("known_reports")
@pytest.mark.parametrize("command", [marked(command) for command in commands()])
def test_a_command_of_the_readme_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 0 in an empty folder; validate may find cases outside tolerance. A scenario file is README's own."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for word in words:
        if word.endswith(".toml") and not Path(word).exists():
            Path(word).write_text(blocks(README, "toml")[0])
    result = CliRunner().invoke(cli.main, words)
    assert result.exit_code in ((0, 1) if words[0] == "validate" else (0,)), (
        result.output
    )
    assert result.stdout or result.stderr.startswith("wrote ")


@pytest.mark.parametrize("text", examples())
def test_an_example_loads(text: str, tmp_path: Path) -> None:
    """A whole scenario, a part of one, or a cluster file; anything else is at least TOML."""
    tables = tomllib.loads(text)
    path = tmp_path / "example.toml"
    path.write_text(text)
    if "family" in tables:
        assert load_cluster(path).gpus
    elif tables.keys() >= REST.keys():
        load_scenario(path)
    elif tables and tables.keys() <= SECTIONS.keys():
        parse_scenario(REST | tables, "example")


def test_the_readme_shows_the_main_commands() -> None:
    """There is something to test: a command for each of the things that prestep does."""
    shown = {command.split()[1] for command in commands()}
    assert shown >= {"run", "whatif", "topology", "validate", "list"}
    assert shown <= set(cli.main.list_commands())


def test_the_readme_is_read_in_one_go() -> None:
    """At most 90 lines, one picture and one recording, of this tree; the recording is small."""
    text = README.read_text(encoding="utf-8")
    picture, recording = re.findall(r"^!\[[^\]]+\]\(([^)]+)\)$", text, re.MULTILINE)
    assert len(text.splitlines()) <= 90 and (ROOT / picture).is_file()
    assert recording.endswith(".gif") and (ROOT / recording).stat().st_size < 300_000
