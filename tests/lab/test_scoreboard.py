"""The scoreboard of published steps, from a saved result."""

from __future__ import annotations

import csv
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lab.bench import peer_llm_analysis as peer
from lab.formats.published_setups import FOLDER
from lab.report import scoreboard, scoreboard_sources
from lab.report.cells import PEER_STEPS
from lab.sets.published import read, run_of
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.spec.load import parse_scenario


def case(
    name: str, error: float, fitted: bool = False, assumed: str = ""
) -> dict[str, Any]:
    """A case of 10 s that is predicted with a signed error."""
    return {
        "id": name,
        "slice": "",
        "measured": 10.0,
        "predicted": 10.0 * (1 + error),
        "fitted": fitted,
        "assumed": assumed,
        "error": "",
    }


CASES = [
    case("vtrainM-0003", 0.02),
    case("vtrainM-0005", -0.04),
    case("vtrainM-0009", 0.5, fitted=True),
    case("vtrainM-0010", 0.9, assumed="dp assumed"),
    case("mosaic-0001", 0.1),
    case("bigsci-0002", 0.2, fitted=True),
    {**case("vtrainM-0011", 0.0), "predicted": None, "error": "refused"},
]


def saved(tmp_path: Path, cases: Any = CASES, **keys: Any) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"set": "published", "cases": cases, **keys}))
    return path


def board(tmp_path: Path, *arguments: str) -> str:
    page, picture = tmp_path / "board.md", tmp_path / "board.svg"
    scoreboard.main(
        [str(saved(tmp_path)), "-o", str(page), "--picture", str(picture), *arguments]
    )
    return page.read_text()


def test_only_judged_rows_count(tmp_path: Path) -> None:
    """Rows for fitting, incomplete ones and those that were not predicted are in no figure."""
    found = {
        s.name: s
        for s in scoreboard_sources.sources(saved(tmp_path), [FOLDER / "rows.csv"])
    }
    assert list(found) == ["vTrain, several nodes", "MosaicML, H100", "BigScience"]
    ours = found["vTrain, several nodes"].ours
    assert (ours.n, len(found["vTrain, several nodes"].cases)) == (2, 4)
    assert ours.mape == pytest.approx(0.03) and ours.bias == pytest.approx(-0.01)
    assert found["BigScience"].ours.n == 0


def test_the_page_has_ours_beside_the_peers(tmp_path: Path) -> None:
    """A row for each source and one for all, with the peers' figures and where they are from."""
    text = board(tmp_path)
    row = next(
        line for line in text.splitlines() if line.startswith("| vTrain, several nodes")
    )
    assert (
        "2 of 4" in row
        and " 3.0 % " in row
        and "14.6 % (rank 0.72)" in row
        and "vTrain 14.7 %" in row
    )
    assert re.search(r"\| all +\| 3 of 6 +\|", text)
    assert (
        "arXiv 2312.12391" in text and "![predicted over measured](board.svg)" in text
    )


def test_llm_analysis_is_judged_on_the_same_rows(tmp_path: Path) -> None:
    """Its error is that of the judged rows it has a time for, and their number is said."""
    times = {
        row["id"]: row
        for row in csv.DictReader(PEER_STEPS.open(encoding="utf-8", newline=""))
    }
    expected = [
        abs(float(times[name]["half"]) / 10 - 1)
        for name in ("vtrainM-0003", "vtrainM-0005")
    ]
    found = scoreboard_sources.sources(saved(tmp_path), [FOLDER / "rows.csv"])[
        0
    ].of_peer("half")
    assert found.n == 2 and found.mape == pytest.approx(sum(expected) / 2)


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    """Page and picture are written alike every time."""
    first, picture = board(tmp_path), (tmp_path / "board.svg").read_bytes()
    assert board(tmp_path) == first
    assert (tmp_path / "board.svg").read_bytes() == picture


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"set": "h200", "cases": []}',
        '{"set": "published"}',
        '{"set": "published", "cases": [{"id": "a"}]}',
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    """Anything but the output of `prestep validate published --json` is named, with exit code 2."""
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"r\.json"):
        scoreboard_sources.sources(path, [FOLDER / "rows.csv"])
    with pytest.raises(SystemExit) as stopped:
        scoreboard.main(
            [
                str(path),
                "-o",
                str(tmp_path / "x.md"),
                "--picture",
                str(tmp_path / "x.svg"),
            ]
        )
    assert stopped.value.code == 2 and not (tmp_path / "x.md").exists()


def test_sets_of_published_steps_share_the_table(tmp_path: Path) -> None:
    """Reports of every set of published steps in one file: each row stands under its source, judged by its own set."""
    path = tmp_path / "both.json"
    reports = [
        {"set": "published", "cases": [case("mosaic-0001", 0.1)]},
        {"set": "mlperf", "cases": [case("mlperf5-0015", 0.2)]},
        {"set": "h200", "cases": [case("other", 0.3)]},
    ]
    path.write_text(json.dumps(reports))
    rows = [
        FOLDER.parent / name / "rows.csv"
        for name in scoreboard_sources.published_sets()
    ]
    by_name = {one.name: one for one in scoreboard_sources.sources(path, rows)}
    assert set(by_name) == {"MosaicML, H100", "MLPerf, Llama 3.1 405B"}


def test_cases_of_other_rows_are_refused(tmp_path: Path) -> None:
    """A case that the CSV does not have says which file to name."""
    with pytest.raises(InputError, match="--rows"):
        scoreboard_sources.sources(
            saved(tmp_path, [case("other-1", 0.1)]), [FOLDER / "rows.csv"]
        )


def test_every_source_of_peers_has_rows() -> None:
    """No pattern of peers.toml matches nothing, and every row falls into one."""
    rows = [
        row
        for name in scoreboard_sources.published_sets()
        for row in read(FOLDER.parent / name / "rows.csv")
    ]
    entries = tomllib.loads(scoreboard_sources.PEERS.read_text(encoding="utf-8"))[
        "source"
    ]
    first = {
        next(e["name"] for e in entries if scoreboard_sources._fits(e, row))
        for row in rows
    }
    assert first == {e["name"] for e in entries}


def test_llm_analysis_has_no_words_for_some_rows() -> None:
    """Context parallelism, fp8 and GPUs without a file are left out with the reason."""
    reasons = {
        row["reason"]
        for row in csv.DictReader(PEER_STEPS.open(encoding="utf-8", newline=""))
        if row["reason"]
    }
    assert {"context parallelism", "fp8 training", "no file of a b200"} <= reasons
    run = run_of(
        next(row for row in read(FOLDER / "rows.csv") if row["id"] == "vtrainM-0003")
    )
    assert peer.unsaid(parse_scenario(run.scenario, run.id)) == ""


def test_llm_analysis_that_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the package there is a sentence, no traceback."""
    monkeypatch.setitem(sys.modules, "llm_analysis", None)
    with pytest.raises(PrestepError, match="pip install llm-analysis"):
        peer.predictions([])
