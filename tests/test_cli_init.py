"""`prestep init` writes a scenario that runs, from five answers or five options."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.largest import fits

OPTIONS = {
    "--model": "llama3.2-1b",
    "--cluster": "dgx-h100",
    "--hosts": "1",
    "--seq-len": "2048",
    "--global-batch": "16",
}


def init(folder: Path, answers: str = "", **options: str) -> Result:
    """The command with options (names without dashes), answers on stdin."""
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    words = [part for pair in given.items() for part in pair]
    output = ["-o", str(folder / "job.toml")]
    return CliRunner().invoke(cli.main, ["init", *words, *output], input=answers)


def plain() -> dict[str, str]:
    return {name.strip("-").replace("-", "_"): text for name, text in OPTIONS.items()}


def test_options_answers_and_the_file_agree(tmp_path: Path) -> None:
    """The same five facts as options and as answers write the same scenario, which fits and is read back."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    said = init(tmp_path / "a", **plain())
    assert said.exit_code == 0, said.output
    asked = init(tmp_path / "b", answers="\n".join(OPTIONS.values()) + "\n")
    assert asked.exit_code == 0, asked.output
    one, other = (tmp_path / name / "job.toml" for name in "ab")
    assert one.read_text() == other.read_text()
    scenario = load_scenario(one)
    assert fits(scenario)
    assert scenario.parallel.dp == 8 and scenario.training.global_batch == 16


@pytest.mark.parametrize(
    ("named", "gpus", "cluster"),
    [
        ("h100", "8", "dgx-h100"),
        ("h100", "512", "dgx-h100-superpod"),
        ("dgx-h100", "16", "dgx-h100-superpod"),
        ("gb200", "72", "gb200-nvl72"),
    ],
)
def test_a_gpu_or_one_of_its_hosts_is_a_cluster(
    tmp_path: Path, named: str, gpus: str, cluster: str
) -> None:
    """Who says "512 H100" gets the usual cluster of them, and is told which."""
    job = {**plain(), "gpu": named, "gpus": gpus, "global_batch": gpus}
    del job["cluster"], job["hosts"]
    done = init(tmp_path, **job)
    assert done.exit_code == 0, done.output
    assert load_scenario(tmp_path / "job.toml").cluster.name == cluster
    assert named == cluster or cluster in done.stderr


def test_what_needs_more_memory_recomputes(tmp_path: Path) -> None:
    """Where a sample does not fit with all its activations, the scenario recomputes some."""
    done = init(tmp_path, **{**plain(), "model": "llama3-8b", "seq_len": "65536"})
    assert done.exit_code == 0, done.output
    training = tomllib.loads((tmp_path / "job.toml").read_text())["training"]
    assert training["recompute"] in ("alternate", "full")
    assert fits(load_scenario(tmp_path / "job.toml"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "llama"}, "did you mean"),
        ({"cluster": "dgxh100"}, 'did you mean "dgx-h100"'),
        ({"cluster": "h200-host-4", "hosts": "2"}, "hosts"),
        ({"global_batch": "7"}, "global_batch"),
        ({"seq_len": "8k"}, "write 8192 or 8000"),
        ({"global_batch": "4M tokens"}, "it counts samples"),
        ({"gpus": "8"}, "one of the two"),
        ({"model": "gpt-1t"}, "`prestep search` finds layouts"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    """A wrong option ends with 2, says what would do, and writes nothing."""
    done = init(tmp_path, **(plain() | options))
    assert done.exit_code == 2 and said in done.stderr
    assert not (tmp_path / "job.toml").exists()


def test_gpus_are_those_of_whole_hosts(tmp_path: Path) -> None:
    """--gpus 16 says what --hosts 2 says; a part of a host is refused."""
    given = {**plain(), "cluster": "rail-h100"}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    hosts = init(tmp_path / "a", **{**given, "hosts": "2"})
    del given["hosts"]
    gpus = init(tmp_path / "b", **given, gpus="16")
    assert hosts.exit_code == gpus.exit_code == 0, gpus.output
    one, other = (tmp_path / name / "job.toml" for name in "ab")
    assert one.read_text() == other.read_text()
    assert "a multiple of 8" in init(tmp_path, **given, gpus="12").stderr


def test_a_wrong_answer_is_asked_again(tmp_path: Path) -> None:
    """A name that does not exist is explained, and the question comes again."""
    answers = "\n".join(["lama3-8b", *OPTIONS.values()]) + "\n"
    done = init(tmp_path, answers=answers)
    assert done.exit_code == 0, done.output
    assert 'did you mean "llama3-8b"?' in done.stderr


def test_a_file_is_not_written_over(tmp_path: Path) -> None:
    """A file that exists stays, unless --force is said."""
    (tmp_path / "job.toml").write_text("mine")
    done = init(tmp_path, **plain())
    assert done.exit_code == 2 and "--force" in done.stderr
    assert (tmp_path / "job.toml").read_text() == "mine"
