"""Sets of exchanges of experts' tokens: times, ratios of two clusters, and rows that say something impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.sets.exchanges import COLUMNS, RATIO, TIME, validate_set

ROW = "2,dispatch,pplx,128,7168,8,256,,"


def test_two_clusters_make_a_ratio(tmp_path: Path) -> None:
    """Rows that differ in the cluster alone are compared with each other; a row that is refused says why."""
    path = tmp_path / "rows.csv"
    lines = [f"a,aws-p5en,{ROW},220", f"b,rail-h200,{ROW},110"]
    wrong = "c,rail-h200,2,dispatch,pplxx,128,7168,8,256,,,110"
    path.write_text("\n".join([",".join(COLUMNS), *lines, wrong]), encoding="utf-8")
    cases = {case.name: case for case in validate_set("expert-exchanges", path).cases}
    assert [case.kind for case in cases.values()] == [TIME] * 3 + [RATIO]
    ratio = cases["a / b"]
    assert ratio.measured == pytest.approx(2.0)
    assert ratio.predicted == cases["a"].predicted / cases["b"].predicted
    assert "pplx" in cases["c"].error
