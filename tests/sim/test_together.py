"""Several jobs on one cluster: what sharing costs, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.errors import InputError
from prestep.sim.predict import STEPS, load_fabric
from prestep.sim.predict import predict as predict_one
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.studies import shared_cluster
from prestep.sim.studies.shared_cluster import predict
from tests.sample import together

MLP = {"kind": "mlp", "sizes": [1024, 1024, 1024, 1]}
ON = {
    "cluster": {"name": "h200-leafspine-4x1"},
    "model": MLP,
    "parallel": {"dp": 2},
    "training": {"micro_batch": 64},
}


def jobs(*placed: list[str], **more: object) -> dict[str, object]:
    return {**ON, "jobs": [{"placement": {"hosts": hosts}, **more} for hosts in placed]}


def test_jobs_that_share_no_link_do_not_notice_each_other() -> None:
    """One under each leaf: each takes what it takes alone."""
    found = predict(parse_scenario(jobs(["host0", "host1"], ["host2", "host3"]), "t"))
    for name, result in found.results.items():
        assert result.step_time == pytest.approx(found.alone[name], rel=1e-6)


def test_jobs_that_share_the_spine_slow_each_other() -> None:
    """Both across the spine: slower than alone, and at most as slow as one after the other."""
    found = predict(parse_scenario(jobs(["host0", "host2"], ["host1", "host3"]), "t"))
    for name, result in found.results.items():
        assert 1.3 < result.step_time / found.alone[name] <= 2.0 + 1e-6
    assert {link.name for link in found.links[:2]} == {
        "leaf0 -> leaf1",
        "leaf1 -> leaf0",
    }


def test_equal_jobs_over_tcp_are_in_step() -> None:
    """Without a start they take what they take from one instant on, and longer than half a step apart."""
    placed = (["host0", "host2"], ["host1", "host3"])

    def times(starts: tuple[float, float] | None) -> list[float]:
        tables = jobs(*placed)
        for job, start in zip(tables["jobs"], starts or (), strict=False):  # type: ignore[call-overload]
            job["start"] = f"{start} s"
        found = predict(parse_scenario(tables, "t"))
        return [result.step_time for result in found.results.values()]

    step = times(None)
    assert step == pytest.approx(times((0.0, 0.0)), rel=1e-9)
    assert max(times((0.0, step[0] / 2))) <= min(step) * (1 + 1e-9)


def test_one_job_alone_takes_what_the_scenario_takes() -> None:
    """A list of one job is the scenario itself."""
    alone = predict_one(
        parse_scenario({**ON, "placement": {"hosts": ["host0", "host2"]}}, "t")
    )
    found = predict(parse_scenario(jobs(["host0", "host2"]), "t"))
    assert found.results["job0"].step_time == pytest.approx(alone.step_time, rel=1e-6)


def test_the_order_of_the_jobs_does_not_matter() -> None:
    """Step times belong to jobs, not to their places in the file (which job starts first is said)."""
    tables = [
        {"name": "a", "placement": {"hosts": ["host0", "host2"]}, "start": "0 s"},
        {
            "name": "b",
            "placement": {"hosts": ["host1", "host3"]},
            "start": "1 ms",
            "training": {"micro_batch": 4096},
        },
    ]
    one, two = (
        predict(parse_scenario({**ON, "jobs": order}, "t"))
        for order in (tables, tables[::-1])
    )
    for name in "ab":
        assert one.results[name].step_time == pytest.approx(
            two.results[name].step_time, rel=1e-9
        )


def test_a_fast_job_goes_on_until_the_slow_one_has_been_measured() -> None:
    """A job with the spine half of the time slows one that takes ten times as long; neither has it to itself."""
    big = {
        "model": {"kind": "mlp", "sizes": [8192, 8192, 8192, 1]},
        "placement": {"hosts": ["host1", "host3"]},
    }
    scenario = parse_scenario(
        {**ON, "jobs": [{"placement": {"hosts": ["host0", "host2"]}}, big]}, "t"
    )
    found = predict(scenario)
    small, large = found.results.values()
    assert large.step_time > 8 * small.step_time and not found.notes
    assert all(
        result.step_time > 1.2 * found.alone[name]
        for name, result in found.results.items()
    )


def test_a_job_that_nobody_slows_goes_on_while_others_slow_each_other() -> None:
    """How long the others take together is not known from each alone: the third one repeats its step often enough."""
    across = [
        {"placement": {"hosts": hosts}}
        for hosts in (["host0", "host3"], ["host1", "host4"])
    ]
    alone = {"placement": {"hosts": ["host2"]}, "parallel": {"dp": 1}}
    cluster = {"name": "h200-leafspine-4x1", "hosts": 6}
    scenario = parse_scenario({**ON, "cluster": cluster, "jobs": [*across, alone]}, "t")
    jobs = shared_cluster._planned(scenario, load_fabric(scenario))
    steps = [shared_cluster._alone(job) for job in jobs]
    runs, early = shared_cluster._steady(jobs, steps, [0.0, steps[1] / 3, 0.0])
    marks = [
        shared_cluster._marks(job, run) for job, run in zip(jobs, runs, strict=True)
    ]
    least = max(ends[STEPS - 2 + shared_cluster.MEASURED] for ends in marks)
    assert not early and min(ends[-1] for ends in marks) >= least > 1.2 * (
        STEPS - 1 + shared_cluster.MEASURED
    ) * max(steps)


def test_jobs_that_name_no_hosts_take_what_is_left() -> None:
    """In order, beside those that do."""
    scenario = parse_scenario(
        {
            **ON,
            "jobs": [{"name": "free"}, {"placement": {"hosts": ["host0", "host3"]}}],
        },
        "t",
    )
    links = {link.name for link in predict(scenario).links}
    assert "host1/nic0 -> leaf0" in links and "host2/nic0 -> leaf1" in links


@together(
    ("tables", "told"),
    [
        (jobs(["host0", "host2"], ["host2", "host3"]), "host2/gpu0, of another job"),
        (jobs(["host0", "host9"]), 'host "host9"'),
        ({**ON, "jobs": [{}, {}, {}]}, "rank 0 has none"),
        ({**ON, "jobs": []}, "[[jobs]] tables"),
        ({**ON, "jobs": {}}, "[[jobs]] tables"),
        ({**ON, "jobs": [{"cluster": {}}]}, "share the scenario's [cluster]"),
        ({**ON, "jobs": [{"name": "a"}, {"name": "a"}]}, 'two jobs named "a"'),
        ({**ON, "jobs": [{"modle": MLP}]}, "modle"),
        ({**ON, "jobs": [{"scenario": "none.toml"}]}, "no such file"),
        ({**ON, "jobs": [{"model": {"name": "none", "kind": "mlp"}}]}, "model"),
        ({**ON, "jobs": [{"start": "-1 s"}]}, "start"),
        ({**ON, "jobs": [{}], "job": [{}]}, "one of them"),
    ],
)
def test_what_is_wrong_with_a_job_is_told(tables: dict[str, object], told: str) -> None:
    """The job and the key."""
    with pytest.raises(InputError) as error:
        predict(parse_scenario(tables, "t"))
    assert told in str(error.value)


JOBS = """
[cluster]
name = "h200-leafspine-4x1"
[training]
micro_batch = 64
[[jobs]]
name = "mine"
model = { kind = "mlp", sizes = [1024, 1024, 1024, 1] }
parallel = { dp = 2 }
placement = { hosts = ["host0", "host2"] }
[[jobs]]
scenario = "sub/other.toml"
"""
OTHER = """
[cluster]
name = "h200-host-4"
[model]
kind = "mlp"
sizes = [2048, 2048, 2048, 1]
[parallel]
dp = 2
[placement]
hostfile = "hosts"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.toml").write_text(OTHER, encoding="utf-8")
    (tmp_path / "sub" / "hosts").write_text(
        "host1 slots=1\nhost3 slots=1\n", encoding="utf-8"
    )
    (tmp_path / "jobs.toml").write_text(JOBS, encoding="utf-8")
    return tmp_path / "jobs.toml"


def test_jobs_on_the_command_line(scenario: Path) -> None:
    """A page for each job and what sharing costs; with --json one result for each and the cluster's links."""
    page = CliRunner().invoke(main, ["run", str(scenario)])
    assert (
        page.exit_code == 0
        and "times as long" in page.output
        and "[mine]" in page.output
    )
    assert page.output.startswith("2 jobs on one cluster slow each other, ")
    done = CliRunner().invoke(main, ["run", str(scenario), "--json"])
    told = json.loads(done.stdout)
    assert [job["name"] for job in told["jobs"]] == ["mine", "job1"] and told["links"][
        0
    ]["utilisation"] > 0.5
    assert all(job["slowdown"] >= 1 and job["step_time"] > 0 for job in told["jobs"])


def test_set_reaches_one_job_or_all(scenario: Path) -> None:
    """jobs[NAME].section.key for one, section.key for all, links for the cluster."""
    one = load_scenario(scenario, ["jobs[mine].training.micro_batch=8"])
    assert [job.training.micro_batch for job in one.jobs] == [8, 64]
    every = load_scenario(
        scenario,
        [
            "training.micro_batch=8",
            "spine.bandwidth=2x",
            "jobs[1].parallel.bucket_cap=1 MiB",
        ],
    )
    assert [job.training.micro_batch for job in every.jobs] == [8, 8]
    assert (
        every.jobs[0].cluster.set == {"spine.bandwidth": "2x"}
        and every.jobs[1].parallel.bucket_cap == 2**20
    )
    with pytest.raises(InputError, match=r"jobs\[other\]"):
        load_scenario(scenario, ["jobs[other].training.micro_batch=8"])


@pytest.mark.parametrize(
    "arguments", [["--trace", "t.json"], ["--timeline", "t.parquet"]]
)
def test_what_is_for_one_job_is_refused_for_several(
    scenario: Path, arguments: list[str]
) -> None:
    """Exit code 2 and a sentence."""
    done = CliRunner().invoke(main, ["run", str(scenario), *arguments])
    assert done.exit_code == 2 and "2 jobs" in done.stderr
