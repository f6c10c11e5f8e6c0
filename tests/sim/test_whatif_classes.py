"""What-ifs of one element for all that are alike: the classes hold everything, and their members have one answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.predict import plan
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.elements import elements
from prestep.sim.studies.representatives import representatives
from prestep.sim.studies.tornado import tornado
from prestep.sim.studies.whatif import Changes
from prestep.topologies.core.colours import rounds
from tests.executed import of, step_time

WORDS = ("rank", "host", "host-clock", "link")
EXAMPLES = Path(cli.__file__).parent / "examples"


def scenario(**tables: dict[str, object]) -> Scenario:
    base: dict[str, dict[str, object]] = {
        "cluster": {"name": "h200-leafspine-2x2"},
        "model": {"kind": "mlp", "sizes": [4096, 8192, 8192, 4096]},
        "training": {"micro_batch": 64},
        "parallel": {"dp": 4, "data_parallel": "ddp"},
    }
    return parse_scenario({**base, **tables}, "classes")


LAYERS: dict[str, object] = {"name": "llama3-8b", "layers": 4}
CASES = {
    "data parallel": scenario(),
    "one slow port": scenario(
        cluster={
            "name": "h200-leafspine-4x1",
            "set": {"nic[host2].bandwidth": "0.3x"},
        }
    ),
    "one slow GPU": scenario(
        cluster={"name": "h200-leafspine-2x2", "set": {"gpu[1].clock": "0.7x"}}
    ),
    "stages": scenario(
        model=LAYERS,
        training={"micro_batch": 1, "seq_len": 512, "microbatches": 4},
        parallel={"pp": 2, "dp": 2, "data_parallel": "ddp"},
    ),
    "tensor parallel": scenario(
        model=LAYERS,
        training={"micro_batch": 1, "seq_len": 512},
        parallel={"tp": 2, "dp": 2, "data_parallel": "ddp"},
    ),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("case", CASES)
def test_one_of_a_class_answers_for_all(case: str, word: str) -> None:
    """The step with any element slower is that of the one which is tried for it; and every element has one."""
    changes = Changes(CASES[case])
    base = changes.base
    tried = representatives(base, word)
    keys = dict(elements(base.fabric, word, base.gpus))
    assert Counter(name for one in tried.chosen for name in one.alike) == Counter(
        list(keys)
    )
    for one in tried.chosen:
        steps = [
            step_time(of(changes.with_cluster({keys[name]: "0.5x"})))
            for name in one.alike
        ]
        assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-9)


def test_the_worst_of_many_is_found() -> None:
    """A job whose stages differ: what one GPU can cost is found among 256, though all of the first 64 have one stage."""
    job = scenario(
        cluster={"name": "dgx-h100-superpod", "hosts": 32},
        model={"name": "llama3-8b", "layers": 10},
        training={
            "framework": "megatron",
            "micro_batch": 1,
            "seq_len": 512,
            "global_batch": 128,
        },
        parallel={"tp": 8, "pp": 2, "dp": 16, "order": "tp-dp-pp"},
    )
    table = tornado(job, ["rank", "host-clock"], [0.5])
    rows = [row for row in table["elements"] if row["element"].startswith("gpu")]
    assert {tuple(row["stages"]) for row in rows} == {(0,), (1,)}
    assert sum(row["stands_for"] for row in rows) == 256
    told = {word["each"]: word for word in table["coverage"]}
    assert told["rank"]["elements"] == told["rank"]["covered"] == 256
    assert told["host-clock"]["elements"] == told["host-clock"]["covered"] == 32
    changes, last = Changes(job), "gpu[255].clock"
    worst = step_time(of(changes.with_cluster({last: "0.5x"})))
    worst -= table["step_time"]
    shown = max(row["effect"] for row in rows if row["stages"] == [1])
    assert shown == pytest.approx(worst, rel=1e-6)


def test_the_command_says_how_many_of_how_many(tmp_path: Path) -> None:
    """On the page, in the JSON and with a limit; a slow host has its stage."""
    file = tmp_path / "step.toml"
    file.write_text(
        '[cluster]\nname = "h200-leafspine-4x1"\n[model]\nname = "llama3-8b"\nlayers = 4\n'
        "[training]\nmicro_batch = 1\nseq_len = 512\nmicrobatches = 4\n"
        '[parallel]\npp = 2\ndp = 2\ndata_parallel = "ddp"\n',
        encoding="utf-8",
    )

    def said(*arguments: str) -> str:
        command = ["whatif", str(file), "--factors", "0.5", *arguments]
        made = CliRunner().invoke(cli.main, command)
        assert made.exit_code == 0, made.output
        return made.stdout

    page = said("--each", "host-clock")
    assert "host-clock: all 4, by one of each of 2 kinds" in page
    assert "(stage 0, 1 of 2 alike)" in page and "(stage 1, 1 of 2 alike)" in page
    page = said("--each", "rank", "--most", "1")
    assert "rank: 1 of 2 kinds tried, which stand for 2 of 4; chosen by turns" in page
    assert "--most 2 tries all" in page
    [covered] = json.loads(said("--each", "rank", "--most", "1", "--json"))["coverage"]
    assert (covered["elements"], covered["classes"], covered["tried"]) == (4, 2, 1)


def test_turns_leave_out_no_stage() -> None:
    """Of more classes than are tried, every stage has one before a stage has two."""
    job = scenario(
        cluster={"name": "h200-leafspine-4x1", "set": {"gpu[0].clock": "0.9x"}},
        model=LAYERS,
        training={"micro_batch": 1, "seq_len": 512, "microbatches": 4},
        parallel={"pp": 2, "dp": 2, "data_parallel": "ddp"},
    )
    planned = plan(job)
    assert representatives(planned, "rank").classes > 2
    chosen = representatives(planned, "rank", most=2).chosen
    assert {one.stages for one in chosen} == {(0,), (1,)}


@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_names_do_not_colour(nodes: int, seed: int) -> None:
    """Colours of a graph whose nodes are renumbered are those of the graph: equal where they were equal, and only there."""
    random = np.random.default_rng(seed)
    edges = random.integers(0, nodes, size=(2, 2 * nodes))
    labels = random.integers(0, 2, size=2 * nodes)
    first = random.integers(0, 2, size=nodes)
    other = random.permutation(nodes)
    moved = np.empty_like(first)
    moved[other] = first
    *_, one = rounds(first, edges[0], edges[1], labels)
    *_, moved = rounds(moved, other[edges[0]], other[edges[1]], labels)
    two = moved[other]
    alike = one[:, None] == one[None, :]
    assert (alike == (two[:, None] == two[None, :])).all()
