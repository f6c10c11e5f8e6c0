"""NCCL's choices against its logs: the set, logs as NCCL writes them, and what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.formats import nccl_table
from lab.sets import choices
from prestep import cli
from prestep.sim.errors import InputError
from prestep.validation.sets.sets import validate

LOG = """# cluster: h200-host-4
vm:1306:1306 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:1306:1306 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
vm:1306:1306 [0] NCCL INFO comm 0x41a29c90 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0
vm:1306:1306 [0] NCCL INFO   Algorithm   |                            Tree                  |           Ring         |
vm:1306:1306 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |     LL |  LL128 | Simple |
vm:1306:1306 [0] NCCL INFO     AllReduce |    10.4/  43.6 |    21.5/ 128.8 |    32.4/ 165.6 |    10.2/  94.0 |    25.4/ 220.8 |    28.8/ 240.0 |
vm:1306:1306 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
vm:1306:1306 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo 1 proto 2 time 4502.7
"""


def test_at_least_95_of_100_choices_are_nccl_s() -> None:
    """28 logged and more than 500 from the tables: fewer than one in twenty may differ. None does."""
    report = validate("nccl-choice")
    assert isinstance(report, choices.ChoiceReport)
    made = report.to_json()
    assert report.passed and made["n"] > 500 and made["agreement"] >= 0.95
    assert {
        name.partition("/")[0] for name in (case.name for case in report.cases)
    } == {"2", "4", "2x2", "4x1"}
    assert made["groups"]["chosen in the log"] == {"n": 28, "agreement": 1.0}


def test_a_log_of_a_user_is_compared(tmp_path: Path) -> None:
    """`--rows` takes NCCL's log itself: table, choices in both spellings, version, ranks and settings."""
    path = tmp_path / "nccl.log"
    path.write_text(LOG)
    log = nccl_table.read(LOG)
    assert (log.cluster, log.version, log.ranks, log.nodes, log.nccl) == (
        "h200-host-4",
        "2.28.9",
        4,
        1,
        {"nvls": False},
    )
    assert log.table["all_reduce"]["tree Simple"] == (32.4, 165.6)
    assert log.choices == {
        ("all_reduce", 8): ("ring", "LL", 1),
        ("all_reduce", 2**30): ("ring", "Simple", None),
    }
    result = CliRunner().invoke(
        cli.main, ["validate", "nccl-choice", "--rows", str(path), "--json"]
    )
    made = json.loads(result.stdout)
    assert result.exit_code == 0 and made["agreement"] == 1.0 and made["n"] >= 20


def test_a_choice_that_differs_fails_the_gate(tmp_path: Path) -> None:
    """A log of another world: trees where NCCL takes rings."""
    path = tmp_path / "nccl.log"
    path.write_text(LOG.replace("Algo RING", "Algo TREE"))
    result = CliRunner().invoke(
        cli.main, ["validate", "nccl-choice", "--rows", str(path)]
    )
    assert (
        result.exit_code == 1
        and "differs" in result.stdout
        and "FAILED" in result.stdout
    )
    report = choices.validate_set("nccl-choice", path)
    assert [case.name for case in report.cases if not case.equal] == [
        "nccl/all_reduce/8"
    ]
    assert not replace(report, cases=()).passed


def test_sizes_at_which_rounding_decides_are_left_out() -> None:
    """Two rows that are as fast as each other within a tenth of a microsecond decide nothing."""
    model = type(
        "Model",
        (),
        {
            "group": type("Group", (), {"n": 2, "nodes": 1})(),
            "graph": None,
            "kind": "hopper",
        },
    )()
    near = {"ring LL": (10.0, 100.0), "ring LL128": (10.1, 100.0)}
    far = near | {"ring LL128": (12.0, 100.0)}
    assert choices.by_table("all_gather", 8, near, model) is None
    assert choices.by_table("all_gather", 8, far, model) == "ring LL"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOG.partition("\n")[2], "no cluster"),
        ("{}x", "expected an NCCL"),
        ("[1]", "instead of logs"),
        ('{"a": {"choices": {}}}', "no 'table'"),
    ],
)
def test_what_is_no_log_is_told(tmp_path: Path, text: str, said: str) -> None:
    """A log without a cluster, and JSON of another form."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        choices.read(path)


def test_a_log_of_more_ranks_than_the_cluster_has_is_skipped(tmp_path: Path) -> None:
    """Skipped with a reason; a set of nothing does not pass."""
    path = tmp_path / "nccl.log"
    path.write_text(LOG.replace("nRanks 4", "nRanks 16"))
    report = choices.validate_set("nccl-choice", path)
    assert "16 ranks" in report.skips[0].reason and not report.passed


def test_a_setting_that_nccl_does_not_have_is_named(tmp_path: Path) -> None:
    """In saved choices as anywhere else: with its key, and those that there are."""
    path = tmp_path / "logs.json"
    entry = {"cluster": "h200-host-4", "version": "2.28.9", "choices": {}, "table": {}}
    for key, value, said in (("a", 1, "unknown key"), ("min_ctas", "x", "min_ctas")):
        path.write_text(json.dumps({"4": {**entry, "nccl": {key: value}}}))
        with pytest.raises(InputError, match=said):
            choices.read(path)
