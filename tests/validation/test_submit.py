"""Measurements that others send: `prestep submit`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab import CASES
from prestep import cli
from prestep.validation import submissions

EXAMPLE = Path(cli.__file__).parent / "examples" / "measured" / "submission.jsonl"
ROW: dict[str, Any] = json.loads(EXAMPLE.read_text(encoding="utf-8"))


def submit(folder: Path, *rows: Any, words: tuple[str, ...] = ()) -> Result:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return CliRunner().invoke(cli.main, ["submit", str(path), *words])


def changed(**keys: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ROW), **keys}


def times(factor: float) -> list[float]:
    return [time * factor for time in ROW["step_times"]]


def test_a_good_row_is_predicted_and_written(tmp_path: Path) -> None:
    """What was sent is kept word for word; beside it the name, the median and what we say of it."""
    out = tmp_path / "out.jsonl"
    made = submit(tmp_path, ROW, words=("-o", str(out), "--json"))
    assert made.exit_code == 0, made.output
    (told,) = json.loads(made.stdout)["rows"]
    written = json.loads(out.read_text(encoding="utf-8"))
    assert {key: written[key] for key in ROW} == ROW
    assert written["checked"]["id"] == told["id"] and not told["doubts"]
    assert written["checked"]["predicted"] == told["predicted"] > 0
    assert (
        sorted(ROW["step_times"])[4]
        <= told["measured"]
        <= (sorted(ROW["step_times"])[5])
    )


def test_checking_the_written_file_again_writes_it_again(tmp_path: Path) -> None:
    """To the byte; the name follows from what was measured alone."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert submit(tmp_path, ROW, words=("-o", str(one))).exit_code == 0
    line = ["submit", str(one), "-o", str(two)]
    assert CliRunner().invoke(cli.main, line).exit_code == 0
    assert one.read_bytes() == two.read_bytes()
    other = submissions.Checked(changed(date="2026-01-01"), "", 1.0, None)  # type: ignore[arg-type]
    assert other.id != json.loads(one.read_text())["checked"]["id"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (changed(step_times=times(1e3)), "times the predicted"),
        (changed(step_times=times(0.1)), "no GPU is so fast"),
        (changed(step_times=[0.05, 0.05, 0.07, 0.09, 0.09, 0.1]), "steps differ"),
        (
            changed(
                scenario={
                    **ROW["scenario"],
                    "training": {"micro_batch": 64, "seq_len": 8192},
                }
            ),
            "fit into memory",
        ),
    ],
)
def test_what_can_hardly_be_true_is_told_and_not_written(
    row: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Exit 1, the doubt in words, the row's line; a good row beside it is not written either."""
    out = tmp_path / "out.jsonl"
    made = submit(tmp_path, ROW, row, words=("-o", str(out)))
    assert made.exit_code == 1 and told in made.stdout, made.output
    assert "rows.jsonl:2" in made.stdout and not out.exists()


def test_every_mistake_of_every_row_is_told_at_once(tmp_path: Path) -> None:
    """Format, provenance and scenario, by file and line; nothing is predicted."""
    unknown = {**ROW["scenario"], "training": {"micro_batches": 2}}
    made = submit(
        tmp_path,
        changed(licence="secret", date="yesterday", step_times=[0.1, -1]),
        {key: value for key, value in ROW.items() if key != "how"},
        changed(date="31.3.2026", step_times=[0.1] * 3),
        changed(scenario=unknown),
        changed(scenario={**ROW["scenario"], "cluster": {"file": "/etc/passwd"}}),
        [1],
        changed(speed=1),
    )
    assert made.exit_code == 2 and not made.stdout
    for line, words in enumerate(
        (
            ("licence", "step_times[1]"),
            ("how",),
            ("date", "at least 5"),
            ("micro_batch",),
            ("cluster.file",),
            ("a table",),
            ("speed",),
        ),
        1,
    ):
        said = [one for one in made.stderr.splitlines() if f"rows.jsonl:{line}:" in one]
        assert all(any(word in one for one in said) for word in words), (line, said)


@pytest.mark.parametrize("text", ["", "\n", "{", "null\n", "\x00", '{"scenario": {}}'])
def test_a_file_that_is_none_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    made = CliRunner().invoke(cli.main, ["submit", str(tmp_path / "rows.jsonl")])
    assert made.exit_code == 2 and "rows.jsonl" in made.stderr


@pytest.mark.parametrize(
    "path",
    [EXAMPLE, *sorted((CASES / "submitted").glob("*.jsonl"))],
    ids=lambda p: p.name,
)
def test_what_was_submitted_keeps_to_it(path: Path) -> None:
    """The example, and every file that came by a pull request, can be read and predicted."""
    for one in submissions.checked(path):
        assert one.result.step_time > 0 and one.measured > 0


def test_measurements_of_one_scenario_are_predicted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand rows of a machine that was measured for weeks take no longer than one."""
    asked = []

    def counted(scenario: Any) -> Any:
        asked.append(scenario)
        return predict(scenario)

    predict = submissions.predict
    monkeypatch.setattr(submissions, "predict", counted)
    rows = [changed(step_times=times(1 + n / 1e4)) for n in range(5)]
    made = submit(tmp_path, *rows, words=("--json",))
    assert made.exit_code == 0 and len(json.loads(made.stdout)["rows"]) == 5
    assert len(asked) == 1
