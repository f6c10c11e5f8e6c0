"""`prestep explain RESULT`: what bounds the step, what would help and how sure that is; wrong files are mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from tests.fuzz.seeds import seeds

RESULT: dict[str, Any] = json.loads(seeds()["result"].text)


def explained(result: object, folder: Path) -> Result:
    path = folder / "result.json"
    path.write_text(result if isinstance(result, str) else json.dumps(result))
    return CliRunner().invoke(cli.main, ["explain", str(path)])


def told(folder: Path, **changes: Any) -> str:
    done = explained({**RESULT, **changes}, folder)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_largest_share_comes_first_with_what_helps(tmp_path: Path) -> None:
    """Shares of the step in order of size, each with its help; one below 2 % is not worth a sentence."""
    lines = told(
        tmp_path, breakdown={"host": 0.01, "exposed_dp": 0.3, "compute": 0.69}
    ).splitlines()
    assert lines[0] == "The step takes 1 s."
    assert "(69%) is compute. What helps: faster kernels" in lines[1]
    assert (
        "(30%) is communication of dp that no kernel hides. What helps: faster links under dp"
        in lines[2]
    )
    assert not any("fewer launches" in line for line in lines)


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        ([], "Prices of links were not computed"),
        ([{"kind": "nic", "shadow_price": 0.0}], "Faster links would not help"),
        (
            [
                {"kind": "nvlink", "shadow_price": 0.1},
                {"kind": "nic", "shadow_price": 0.5},
            ],
            "Of the links, nic matters most: 10 % more bandwidth saves about 50 ms (5.0%).",
        ),
    ],
)
def test_links(kinds: list[dict[str, object]], sentence: str, tmp_path: Path) -> None:
    """The link with the highest price, or that none matters, or that nobody asked."""
    assert sentence in told(tmp_path, link_kinds=kinds)


def test_how_sure_comes_from_the_interval(tmp_path: Path) -> None:
    """Bounds, what makes them wide in order, shares by grade, and what to measure first."""
    page = told(tmp_path)
    assert "A measured step lies between 900 ms and 1.1 s in 90% of the cases." in page
    assert "Most of that width: run to run (measured: 2% of 1 s)." in page
    assert (
        "largely a guess; the time of kernels and communication is measured 50%, guess 50%."
        in page
    )
    assert (
        "It would gain most from measuring kernel x: no table (50% of the time)."
        in page
    )
    assert "It does not fit: rank 0 runs out of memory, most of it gradients." in page
    assert "Warning: w" in page


@pytest.mark.parametrize(
    ("measured", "word"),
    [(0.96, "well founded"), (0.8, "fairly founded"), (0.3, "largely")],
)
def test_words_for_grades(measured: float, word: str, tmp_path: Path) -> None:
    """More measured time, surer words."""
    assert word in told(
        tmp_path, evidence={"measured": measured, "guess": 1 - measured}
    )


def test_an_older_result_without_an_interval_is_explained(tmp_path: Path) -> None:
    """What its file does not have is not said."""
    page = explained(
        {key: value for key, value in RESULT.items() if key != "uncertainty"}, tmp_path
    )
    assert page.exit_code == 0
    assert "of the cases" not in page.stdout
    assert "How sure:" in page.stdout


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"step_time": 0}, "step_time"),
        ({"step_time": True}, "step_time"),
        ({"breakdown": {"compute": "1 s"}}, "breakdown"),
        ({"evidence": None}, "evidence"),
        ({"fallbacks": [{"what": "x"}]}, "fallbacks"),
        ({"uncertainty": {"low": 1.0}}, "uncertainty"),
        ({"uncertainty": {**RESULT["uncertainty"], "parts": [3]}}, "uncertainty"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_result_is_a_mistake(
    changes: dict[str, object], key: str, tmp_path: Path
) -> None:
    """Exit 2, the file and the key; never a traceback."""
    done = explained({**RESULT, **changes}, tmp_path)
    assert done.exit_code == 2
    assert f"result.json: {key}: found" in done.stderr
    assert "prestep run --json" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null"])
def test_what_is_no_json_object_is_a_mistake(text: str, tmp_path: Path) -> None:
    """An empty file, a list, half a file."""
    assert explained(text, tmp_path).exit_code == 2
    assert (
        CliRunner().invoke(cli.main, ["explain", str(tmp_path / "none.json")]).exit_code
        == 2
    )


def test_what_run_prints_is_explained(tmp_path: Path) -> None:
    """The pipe that a user types: `prestep run --json > F; prestep explain F`."""
    done = explained(CliRunner().invoke(cli.main, ["run", "--json"]).stdout, tmp_path)
    assert done.exit_code == 0
    assert done.stdout.startswith("The step takes ")
    assert "well founded" in done.stdout
