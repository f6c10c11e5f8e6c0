"""Words that people bring from other tools are answered with the key, the unit or the name that they mean."""

from __future__ import annotations

import doctest
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import plugins, words
from prestep.sim.commands.list import KINDS as LISTED
from prestep.sim.errors import MOST_NAMES, MOST_SUGGESTIONS, did_you_mean, unknown
from prestep.sim.spec.sections import SECTIONS
from prestep.sim.tools import catalog
from tests.sample import together

TABLE = tomllib.loads(words.FILE.read_text(encoding="utf-8"))
KINDS = ("clusters", "models", "scenarios", "sets", "storage", "precisions",
         "optimizers", "schedules", "algorithms", "collectives", "topologies",
         "exporters", "routings", "frameworks", "probes", "extensions")  # fmt: skip


def answer(*arguments: str) -> str:
    """What a command that is refused says."""
    done = CliRunner().invoke(cli.main, list(arguments))
    assert done.exit_code == 2, done.output
    return done.stderr


def test_every_key_with_words_exists() -> None:
    """`words.toml` names keys of sections."""
    keys = {
        f"{name}.{key.name}" for name, cls in SECTIONS.items() for key in fields(cls)
    }
    assert set(TABLE) <= keys


def test_a_word_means_one_key() -> None:
    """No word stands at two keys, and none is a key of its own elsewhere."""
    listed = [word for row in TABLE.values() for word in row]
    assert len(listed) == len(set(listed))
    own = {key.rpartition(".")[2] for key in TABLE}
    assert not own & set(listed)


def test_examples_of_the_module() -> None:
    """The examples in the docstring of `prestep.sim.words` hold."""
    assert doctest.testmod(words).failed == 0


@together("name", ("llama3-70b", "dgx-h100"))
def test_a_name_of_another_kind_is_answered_with_init(name: str) -> None:
    """A model or a cluster in a scenario's place is no scenario as yet."""
    assert f" {name}` writes a scenario" in answer("run", name)


@together(
    ("item", "hint"),
    [
        ("hosts=16", 'did you mean "cluster.hosts=16"?'),
        ("gpu=b200", "--cluster dgx-b200"),
        ("nodes=16", 'did you mean "cluster.hosts=16"?'),
        ("seq_len=8192", 'did you mean "training.seq_len=8192"?'),
        ("parallel.tensor=2", 'did you mean "parallel.tp"?'),
        ("parallel.tensor_model_parallel_size=2", 'did you mean "parallel.tp"?'),
        ("training.tp=2", 'did you mean "parallel.tp"?'),
        ("model.num_attention_heads=8", 'did you mean "model.heads"?'),
        ("training.seq_len=8k", "write 8192 or 8000"),
        ("training.seq_len=1M tokens", "write 1048576 or 1000000"),
        ("training.global_batch=4M tokens", "it counts samples"),
        ("cluster.hosts=16 nodes", "write 16"),
        ("nvlink.bandwidth=800G", 'write "800 Gbit/s" or "800 GB/s"'),
        ("model=llama3-8b", 'did you mean "model.name=llama3-8b"?'),
        ("cluster=dgx-h100", 'did you mean "cluster.name=dgx-h100"?'),
        ("spine=2x", 'did you mean "spine.bandwidth=2x"?'),
        ("nic=800G", 'did you mean "nic.bandwidth=800 Gbit/s"?'),
        ("nvlink.bw=2x", 'did you mean "bandwidth"?'),
        ("parallel.bucket_cap=25M", 'write "25 MB"'),
    ],
)
def test_a_word_is_answered_with_what_it_means(item: str, hint: str) -> None:
    """A key, a count or a quantity as other tools write it is refused with what to write here."""
    assert hint in answer("run", "llama1b-ddp4", "--set", item)


def test_a_scenario_is_begun_with_the_words_of_its_question(tmp_path: Path) -> None:
    """`init MODEL --nodes N` is `init --model MODEL --hosts N`; a model is named once."""
    job = ("--cluster", "dgx-h100-superpod", "--seq-len", "2048", "--global-batch", "64")  # fmt: skip
    texts = []
    for at, words_ in enumerate([("qwen2.5-0.5b", "--nodes", "2"), ("--model", "qwen2.5-0.5b", "--hosts", "2")]):  # fmt: skip
        path = tmp_path / f"{at}.toml"
        done = CliRunner().invoke(cli.main, ["init", *words_, *job, "-o", str(path)])
        assert done.exit_code == 0, done.output
        texts.append(path.read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    assert "the model once" in answer("init", "a", "--model", "b", "-o", "new.toml")


def test_a_part_of_a_name_is_answered_with_names() -> None:
    """`h100` is no cluster: at most three that have it in their name are said, and not all there are."""
    told = answer("run", "llama1b-ddp4", "--cluster", "h100")
    assert 'did you mean "dgx-h100", "rail-h100" or "roce-h100"?' in told
    assert "`prestep list clusters` shows all" in told
    assert "jean-zay" not in told


def test_a_scenario_is_told_by_a_near_name() -> None:
    """A bundled scenario that is misspelt is suggested."""
    assert 'did you mean "llama1b-ddp4"?' in answer("run", "llama1b-dpp4")


def test_suggestions_and_lists_are_short() -> None:
    """However many names there are, three are suggested at most, and a long list is counted."""
    names = [f"pod-{number}" for number in range(MOST_NAMES + 1)]
    assert did_you_mean("pod", names).count('"') == 2 * MOST_SUGGESTIONS
    assert f"one of {len(names)} names" in str(unknown("file", "key", "pod", names))
    assert "pod-0, pod-1" in str(unknown("file", "key", "pod", names[:3]))


@together("kind", KINDS)
def test_everything_listed_says_what_it_is(kind: str) -> None:
    """`prestep list KIND --long` has a line about every name."""
    lines = catalog.summaries(kind)
    assert set(lines) == set(catalog.names(kind))
    assert all(lines.values())


def test_without_a_kind_the_list_says_what_can_be_listed() -> None:
    """Every kind with what it is, in 80 columns."""
    done = CliRunner().invoke(cli.main, ["list"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(LISTED)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_groups_commands_and_cuts_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command stands under a heading, with the whole of its first line, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(cli.main, ["--help"], terminal_width=80).output
    whole = " ".join(text.split())
    for name, outline in plugins.outlines(cli.PACKAGE).items():
        assert outline.constants["GROUP"] in cli.GROUPS, name
        assert " ".join(outline.summary.split()) in whole
    assert all(f"{group}:" in text for group in cli.GROUPS)
    assert max(map(len, text.splitlines())) <= 80


def help_of(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The help of every command below a group."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        where = (*path, name)
        asked = [*where, "--help"]
        yield where, CliRunner().invoke(cli.main, asked, terminal_width=80).output
        if isinstance(command, click.Group):
            yield from help_of(command, *where)


def test_the_help_of_every_command_fits_80_columns() -> None:
    """Examples too, which nothing wraps."""
    for where, text in help_of(cli.main):
        assert max(map(len, text.splitlines())) <= 80, where
