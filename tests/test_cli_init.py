"""`prestep init` writes a scenario that runs, from five answers or five options."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.largest import fits
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.interchange import export_file
from prestep.topologies.show.summary import oversubscription

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


def cluster_of(folder: Path, *words: str, answers: str = "") -> Fabric:
    """The cluster in the file that `prestep init cluster` writes."""
    path = folder / "made.toml"
    line = ["init", "cluster", *words, "-o", str(path), "--force"]
    made = CliRunner().invoke(cli.main, line, input=answers)
    assert made.exit_code == 0, made.output
    return load_cluster(path)


def test_a_cluster_of_eight_answers(tmp_path: Path) -> None:
    """Options and answers write the same: a known host with its facts, and the oversubscription that was said."""
    words = "--host dgx-h100 --hosts 16 --network tree --below 8 --oversubscription 2 --description ours --port"
    made = cluster_of(tmp_path, *words.split(), "200 Gbit/s")
    typed = "dgx-h100\n16\ntree\n8\n2\n200 Gbit/s\nours\n"
    asked = cluster_of(tmp_path, answers=typed)
    assert made.facts == asked.facts and len(made.gpus) == 128
    assert made.facts["nvlink_sharp"] == load_cluster("dgx-h100").facts["nvlink_sharp"]
    assert set(made.links.raw[made.links.of_kind("nic")]) == {25e9}
    assert str(oversubscription(made)[0]) == "leaf 2:1"


def test_options_alone_ask_nothing(tmp_path: Path) -> None:
    """Seven options are enough where nobody can answer; an option that is missing then is named."""
    words = "--host dgx-h100 --hosts 16 --network rail --below 8 --oversubscription 2"
    assert len(cluster_of(tmp_path, *words.split(), "--port=").gpus) == 128
    line = ["init", "cluster", *words.split(), "-o", str(tmp_path / "other.toml")]
    missed = CliRunner().invoke(cli.main, line, input="")
    assert missed.exit_code == 2 and "--port" in missed.stderr


def test_a_cluster_of_names_has_the_host_that_is_said(tmp_path: Path) -> None:
    """Slurm names hosts and says nothing of them."""
    (tmp_path / "slurm.conf").write_text("SwitchName=s1 Nodes=n[1-2]\n")
    words = ("--from", str(tmp_path / "slurm.conf"), "--host", "dgx-b200")
    assert cluster_of(tmp_path, *words).gpu_model == "b200"


def test_a_cluster_of_what_another_tool_says(tmp_path: Path) -> None:
    """A host that is known is multiplied; a network is extended as it is."""
    for name, hosts in (("dgx-h100", None), ("rail-h100", 2)):
        export_file(load_cluster(name, hosts), tmp_path / f"{name}.json")
    words = "--hosts 4 --network rail --below 4 --oversubscription 1 --port= --description ours"
    host = cluster_of(
        tmp_path, "--from", str(tmp_path / "dgx-h100.json"), *words.split()
    )
    assert len(host.gpus) == 32 and "leaf" in host.nodes.kinds
    both = cluster_of(tmp_path, "--from", str(tmp_path / "rail-h100.json"))
    assert len(both.gpus) == 16 and len(both.links) == len(
        load_cluster("rail-h100", 2).links
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--host dgx-h10", "dgx-h100"),
        ("--host dgx-h100 --oversubscription 3", "a divisor of 32"),
    ],
)
def test_a_cluster_that_cannot_be(tmp_path: Path, words: str, message: str) -> None:
    """Is refused with what could be, and leaves no file."""
    path = tmp_path / "made.toml"
    line = ["init", "cluster", *words.split(), "-o", str(path)]
    made = CliRunner().invoke(cli.main, line, input="\n" * 9)
    assert made.exit_code == 2 and message in made.output
    assert not path.exists()


def test_without_a_terminal_the_option_is_missed_by_name(tmp_path: Path) -> None:
    """What nobody can answer is refused with the option that says it, not broken off."""
    words = ["init", "qwen2.5-0.5b", "--cluster", "dgx-h100", "-o", str(tmp_path / "a")]
    done = CliRunner().invoke(cli.main, words, input="")
    assert (
        done.exit_code == 2 and "--hosts: found nothing, and no terminal" in done.stderr
    )
