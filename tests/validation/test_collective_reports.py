"""Reports of collectives are judged slice by slice, and written in every format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from lab import CASES
from lab.report.collectives import Limits
from prestep.validation import command
from prestep.validation.report import report as writers
from prestep.validation.sets.predict_collective import Prediction
from tests.validation.collective_cases import case, failed, report


def test_limits_are_those_agreed() -> None:
    """Default 5 % and 10 %, forced 10 %, fewer channels 7 %, overlap 10 %, leaf-spine 7 %."""
    mine = Limits.read(CASES / "collectives" / "limits.toml")
    found = {
        name: mine.of(name)["mean"]
        for name in (
            "default, 1 MiB and more",
            "default, below 1 MiB",
            "Tree-LL128",
            "channel-limited",
            "overlap: kernels",
            "leaf-spine, below 1 MiB",
        )
    }
    assert list(found.values()) == [0.05, 0.10, 0.10, 0.07, 0.10, 0.07]


def test_a_slice_past_its_limit_fails() -> None:
    """A mean past the limit fails that slice; the held-out part is held to it by itself."""
    assert report(case(0.04), case(-0.05)).passed
    assert failed(report(case(0.06))) == {"default, 1 MiB and more: mean"}
    mixed = report(case(0.07), case(0.0, fitted=True))
    assert failed(mixed) == {"default, 1 MiB and more, held out: mean"}


def test_other_machines_are_judged_by_median_and_p90() -> None:
    """One bad row in ten does not matter, two do; rows that were fitted do not count."""
    rest = [case(0.01, "m, 1 MiB and more")] * 8
    bad = case(0.5, "m, 1 MiB and more")
    assert report(*rest, rest[0], bad).passed
    assert failed(report(*rest, bad, bad)) == {"m, 1 MiB and more: p90"}
    assert report(*rest, *[replace(bad, fitted=True)] * 9).passed


def test_nan_and_missing_predictions_fail() -> None:
    """What is not a number, or was not predicted, passes no gate."""
    assert "default, 1 MiB and more: mean" in failed(report(case(float("nan"))))
    gone = replace(case(0.0), prediction=Prediction(error="stuck"))
    assert failed(report(case(0.0), gone)) == {"rows not predicted"}


def test_writers(tmp_path: Path) -> None:
    """Every format is written, and says what failed; several sets are several suites."""
    made = replace(report(case(0.5, name="far"), case(0.01)), skips=())
    paths = {name: tmp_path / name for name in ("markdown", "junit", "html")}
    command.write([made], lambda _: None, **paths)
    assert all(path.stat().st_size > 500 for path in paths.values())
    assert ElementTree.parse(tmp_path / "junit").getroot().get("failures") == str(
        len(failed(made))
    )
    for text in (writers.markdown(made), writers.terminal(made)):
        assert "far" in text and "FAILED" in text
    writers.write_junit([made, made], tmp_path / "both")
    assert len(ElementTree.parse(tmp_path / "both").getroot().findall("testsuite")) == 2


def test_json_keys() -> None:
    """Scripts find the keys of the case and of the set."""
    made = json.loads(
        json.dumps(
            report(
                case(0.1), replace(case(0.0), prediction=Prediction(error="x"))
            ).to_json()
        )
    )
    assert {
        "n",
        "mape",
        "worst",
        "bias",
        "slices",
        "cases",
        "passed",
        "skipped_by_reason",
    } <= made.keys()
    assert {
        "id",
        "measured",
        "predicted",
        "signed_error",
        "slice",
        "algo",
        "proto",
    } <= made["cases"][0].keys()
    assert made["cases"][1]["predicted"] is None
