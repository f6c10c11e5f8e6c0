"""Training cases to measure: read from rows, plain cases and plans, or the usual ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.validation.formats import harness, usual
from prestep.validation.formats.rows import Row
from prestep.validation.formats.scenarios import scenario_of
from prestep.validation.formats.usual import SIZES
from prestep.validation.measure import cases
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model
from tests.sample import together


def write(path: Path, *records: Any) -> Path:
    """A file of one record a line."""
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_cases_come_from_rows_plain_cases_and_plans(tmp_path: Path) -> None:
    """The rows of a set can be measured again: with their settings and number of GPUs."""
    case = {"id": "a", "model": "llama1b", "mode": "ddp", "mbs": 2}
    row = {
        "id": "a",
        "label": "ch4",
        "world": 2,
        "case": case,
        "step_s_by_rank": {"0": [0.1]},
    }
    found = cases.load(write(tmp_path / "rows.jsonl", row, case)).training
    assert [(c["_env"], c["_world"]) for c in found] == [
        ({"NCCL_MAX_NCHANNELS": "4"}, 2),
        ({}, None),
    ]
    assert len(cases.groups(found, 4)) == 2
    series = {
        "ranks": 4,
        "label": "ch3",
        "ops": ["all_reduce"],
        "sizes": [8],
        "env": {"NCCL_MAX_NCHANNELS": "3"},
    }
    asked = cases.load(
        write(
            tmp_path / "plan.json", {"training_2gpu": [case], "collectives": [series]}
        )
    )
    assert asked.training[0]["_world"] == 2 and asked.series[0].sizes == (8,)


@pytest.mark.parametrize(
    ("record", "word"),
    [
        ({"model": "llama1b", "mode": "dpp", "mbs": 1}, "mode"),
        ({"model": "llama1b", "mode": "ddp", "mbs": 0}, "mbs"),
        (
            {
                "case": {"model": "llama1b", "mode": "ddp", "mbs": 1},
                "env": {"LD_PRELOAD": "x.so"},
            },
            "env.LD_PRELOAD",
        ),
        (
            {
                "case": {"model": "llama1b", "mode": "ddp", "mbs": 1},
                "env": {"NCCL_NET_PLUGIN": "x"},
            },
            "NCCL_NET_PLUGIN",
        ),
        (
            {
                "case": {"model": "llama1b", "mode": "ddp", "mbs": 1},
                "label": "4x1-nic16-spine8",
            },
            "label",
        ),
        (3, "found int"),
    ],
)
def test_a_wrong_case_is_refused_with_its_line(
    tmp_path: Path, record: Any, word: str
) -> None:
    """Nothing of a file is set that could load code, and nothing is measured as something else."""
    with pytest.raises(InputError) as error:
        cases.load(
            write(
                tmp_path / "c.jsonl",
                {"id": "ok", "model": "llama1b", "mode": "ddp", "mbs": 1},
                record,
            )
        )
    assert "c.jsonl:2" in str(error.value) and word in str(error.value)


@together("world", [1, 2, 4, 8, 16])
@together("memory", [16e9, 80e9, 141e9])
def test_the_usual_cases_can_be_predicted(world: int, memory: float) -> None:
    """Every case that is measured without being asked for is one that a scenario can say, on this many GPUs."""
    listed = usual.usual(world, memory)
    assert len({case["id"] for case in listed}) == len(listed)
    for case in listed:
        scenario_of(
            Row(case["id"], "here", case, world, cluster={"name": "dgx-h100-superpod"})
        )


def test_models_have_one_size() -> None:
    """What is measured under a name is what is predicted under it."""
    for name, sizes in harness.SIZES.items():
        assert SIZES[name] == sizes
    for name, known in harness.MODELS.items():
        if name in SIZES:
            model = load_model(Model(name=known), "here")
            assert (model.hidden, model.layers, model.vocab) == (
                SIZES[name][0],
                SIZES[name][1],
                SIZES[name][5],
            )
