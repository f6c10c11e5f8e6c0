"""Every page begins with the sentence that answers; what does not fit is told what would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.analysis.beside import grown, kernels_instead, waiting_instead
from prestep.sim.analysis.memory import outside
from prestep.sim.exporters._answers import of_comparison
from prestep.sim.predict import plan
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies import room
from prestep.sim.studies.largest import fits
from prestep.sim.tools.catalog import find_scenario

SPINE = Path(__file__).parents[2] / "examples"
TOO_LARGE = ("training.micro_batch=32", "training.global_batch=128")


def page(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments))


def first(*arguments: str) -> str:
    """The first line of a command's page."""
    done = page(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()[0]


def changes(*items: str) -> list[str]:
    return [part for item in items for part in ("--set", item)]


def test_a_run_says_how_long_and_why() -> None:
    """The length of the step, its largest share, and what faster links would save."""
    text = " ".join(page("run", "mlp-ddp4").stdout.split())
    assert text.startswith("A step takes ") and " % of it waiting for the host" in text
    assert "faster links would save next to nothing." in text


def test_what_does_not_fit_is_said_first_with_what_would() -> None:
    """Out of memory comes before the step time, with how much is too much and with changes of one key that fit."""
    text = " ".join(page("run", "llama8b-fsdp4", *changes(*TOO_LARGE)).stdout.split())
    assert text.startswith("Does not fit without recomputation: ")
    assert "recomputation decides that: with training.recompute=" in text
    assert " and does not fit" in text and " and fits. It would fit with " in text
    assert (
        "It would fit with training.recompute=full, or with training.micro_batch="
        in text
    )


@pytest.mark.parametrize("more", [(), ("training.seq_len=65536",)])
def test_remedies_fit(more: tuple[str, ...]) -> None:
    """Every change that is told makes the step fit, and the step as it is does not."""
    path = find_scenario("llama8b-fsdp4")
    asked = (*TOO_LARGE, *more)
    scenario = load_scenario(path, asked)
    planned = plan(scenario)
    assert not fits(scenario)
    told = room.remedies(scenario, planned, outside(planned))
    assert told
    for change in told:
        assert fits(load_scenario(path, (*asked, *change.split(" and "))))


def test_two_changes_where_one_is_not_enough() -> None:
    """Where no single change is enough, one pair with full recomputation is told."""
    path = find_scenario("llama8b-fsdp4")
    scenario = load_scenario(path, (*TOO_LARGE, "training.seq_len=65536"))
    planned = plan(scenario)
    [told] = room.remedies(scenario, planned, outside(planned))
    assert told.startswith("training.recompute=full and training.micro_batch=")


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--fail-oom",), 1)])
def test_fail_oom_is_an_exit_code(options: tuple[str, ...], code: int) -> None:
    """`--fail-oom` ends with 1 where the step does not fit; the page is the same."""
    done = page("run", "llama8b-fsdp4", *changes(*TOO_LARGE), *options)
    assert done.exit_code == code
    assert done.stdout.startswith("Does not fit")


def test_a_step_that_fits_does_not_fail() -> None:
    """`--fail-oom` says nothing about a step that fits."""
    assert page("run", "mlp-ddp4", "--fail-oom").exit_code == 0


def test_a_what_if_says_what_it_saves() -> None:
    """Twice the bandwidth of links that are used: how much less the step takes."""
    line = first("whatif", "llama1b-ddp4", "--set", "nvlink.bandwidth=2x")
    assert line.startswith("With the change ") and "times as fast" in line


def test_links_that_make_a_step_longer_say_what_takes_longer() -> None:
    """Kernels of which others run beside communication; said of links alone, where NCCL chose nothing else."""
    base = {"compute": 0.080, "exposed_dp": 0.010}
    after = {"compute": 0.084, "exposed_dp": 0.008}
    table = {
        "base": {"step_time": 0.090, "breakdown": base},
        "changed": {"step_time": 0.092, "breakdown": after},
        "speedup": 0.090 / 0.092,
        "changed_kinds": ["nvlink"],
        "communication_alone": {"base": 0.002, "changed": 0.001},
        "choices": [],
    }
    said = of_comparison(table)
    assert "waited for less, but kernels take 4 ms more" in said
    assert "but kernels" not in of_comparison({**table, "changed_kinds": []})
    assert "but kernels" not in of_comparison({**table, "choices": [{}]})


def test_gpus_that_make_a_step_longer_say_what_is_waited_for() -> None:
    """Of changed hardware alone: another layout waits for other communication."""
    table = {
        "base": {
            "step_time": 0.090,
            "breakdown": {"compute": 0.08, "exposed_dp": 0.01},
        },
        "changed": {
            "step_time": 0.092,
            "breakdown": {"compute": 0.076, "exposed_dp": 0.016},
        },
        "speedup": 0.090 / 0.092,
        "changed_kinds": [],
        "same_operations": True,
        "choices": [],
    }
    assert "waited for 6 ms more: it meets other kernels" in of_comparison(table)
    back = {**table, "base": table["changed"], "changed": table["base"]}
    assert (
        "Kernels take more, but communication is waited for 6 ms less"
        in of_comparison(back)
    )
    assert "waited for" not in of_comparison({**table, "same_operations": False})


SOONER = {
    "base": {
        "step_time": 0.090,
        "breakdown": {"compute": 0.07, "exposed_dp": 0.02, "host": 0.0},
    },
    "changed": {
        "step_time": 0.085,
        "breakdown": {"compute": 0.07, "exposed_dp": 0.012, "host": 0.003},
    },
    "speedup": 0.090 / 0.085,
    "choices": [],
}


def test_a_host_that_makes_a_step_shorter_says_what_is_waited_for() -> None:
    """A slower one lets communication meet other kernels."""
    hosts = {**SOONER, "changed_kinds": [], "same_operations": True}
    said = of_comparison(hosts)
    assert "The host takes more, but communication is waited for 8 ms less" in said
    assert said.endswith("it meets other kernels and other communication than before.")


def test_links_that_make_a_step_shorter_say_what_is_waited_for() -> None:
    """Slower ones, on which communication takes longer by itself; nothing where it does not."""
    longer = {"base": 0.001, "changed": 0.002}
    links = {
        **SOONER,
        "changed_kinds": ["nvlink"],
        "communication_alone": longer,
        "same_operations": True,
    }
    said = of_comparison(links)
    assert "Communication by itself takes more, but it is waited for 8 ms less" in said
    shorter = {"base": 0.002, "changed": 0.001}
    assert "waited for" not in of_comparison({**links, "communication_alone": shorter})


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("compute", "exposed_dp", "host"), st.floats(0, 1))
    ),
    st.fixed_dictionaries(
        dict.fromkeys(("compute", "exposed_dp", "host"), st.floats(0, 1))
    ),
)
def test_kernels_explain_a_difference_of_their_sign_or_none(
    before: dict[str, float], after: dict[str, float]
) -> None:
    growth = grown(before, after, "compute")
    kernels, waiting = (
        kernels_instead(before, after),
        waiting_instead(before, after, growth),
    )
    assert kernels == -kernels_instead(after, before)
    assert not (kernels and waiting)
    if kernels:
        assert kernels == after["compute"] - before["compute"]
        assert (after["exposed_dp"] - before["exposed_dp"]) * kernels < 0


def test_kernels_of_another_stage_are_a_bubble_here() -> None:
    """Two stages of which each waits for the other's kernels: half of what they take longer is a bubble."""
    before = {"compute": 0.056, "bubble": 0.019, "exposed_pp": 0.0016}
    after = {"compute": 0.0564, "bubble": 0.0203, "exposed_pp": 0.0008}
    assert kernels_instead(before, after) == pytest.approx(4e-4)
    assert kernels_instead(before, {**after, "bubble": 0.0179}) == 0.0


def test_a_what_if_of_idle_links_says_why_it_saves_nothing() -> None:
    """Links that nothing crosses are named as the reason."""
    line = first(
        "whatif", str(SPINE / "superpod-fsdp.toml"), "--set", "spine.bandwidth=2x"
    )
    assert line.startswith("The change saves nothing, because nothing crosses spine: ")


def test_links_that_are_never_full_are_the_reason_too() -> None:
    """What crosses them never waits for them: the sentence says how far they are used."""
    kind = {"kind": "spine", "bytes": 1e9, "held": 0.0, "utilisation": 0.02}
    side = {"step_time": 1.0, "link_kinds": [kind]}
    comparison = {"base": side, "changed": side, "changed_kinds": ["spine"]}
    line = of_comparison(comparison)
    assert "because spine never holds a transfer back (2.0 % used)" in line
    assert line.endswith("1 s a step as before.")
    full = {**side, "link_kinds": [{**kind, "held": 0.1}]}
    assert of_comparison({**comparison, "base": full}).startswith(
        "The change saves nothing: "
    )


def test_a_collective_says_its_latency_and_its_bandwidth() -> None:
    """The first line is a comment, as nccl-tests prints them, so that tables can be read as before."""
    line = first("collective", "--cluster", "dgx-h100", "--op", "all_reduce")
    assert line.startswith("# all_reduce over 8 GPUs: ")
    assert "bus bandwidth at" in line and "bound by" in line


def test_weeks_say_what_share_of_them_trains() -> None:
    """The share, and what takes most of the rest; nothing else where nothing fails."""
    asked = ("goodput", "--step-time", "10s", "--gpus", "1024", "--replicas", "4")
    told = re.fullmatch(
        r"(\d+\.\d) % of the time trains\. Most of the rest, (\d+\.\d+) %, is [a-z ]+\.",
        first(*asked),
    )
    assert told is not None
    assert float(told[1]) + float(told[2]) <= 100
