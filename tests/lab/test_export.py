"""The table that others cite: `python -m lab.report.export`, and the page that says what is in it."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from lab import CASES
from lab.report import cells, export
from prestep import cli
from prestep.sim import __version__
from tests.conftest import ReportOf

ROOT = Path(cli.__file__).parent
PUBLISHED = CASES / "published" / "rows.csv"
NAMES = ("mosaic-0001", "titan-0001", "vtrainS-0330")


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few published rows."""
    path = tmp_path_factory.mktemp("rows") / "some.csv"
    head, *lines = PUBLISHED.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.startswith(NAMES)]
    path.write_text("".join([head, *kept]), encoding="utf-8")
    return path


def exported(path: Path, *words: str | Path) -> None:
    assert export.main([*map(str, words), "-o", str(path)]) == 0


@pytest.fixture(scope="module")
def table_of_some(some: Path) -> Path:
    """Those rows exported."""
    path = some.with_name("one.parquet")
    exported(path, "published", "--rows", some)
    return path


def test_a_row_is_what_its_source_says_beside_what_we_say(
    table_of_some: Path,
) -> None:
    """Cells of the source unchanged, a licence and a source for each, seconds, and the peer's numbers."""
    table = pd.read_parquet(table_of_some).set_index("row")
    assert set(table.index) == set(NAMES) and (table["set"] == "published").all()
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        texts = {row["id"]: row for row in csv.DictReader(file)}
    for name, row in table.iterrows():
        text = texts[str(name)]
        assert (row.source, row.url) == (text["source"], text["url_or_repo"])
        assert (row.gpus, row.tp) == (float(text["gpus"]), float(text["tp"]))
        assert row.signed_error == pytest.approx(row.predicted / row.measured - 1)
        assert row.judged == (not row.fitted and not row.incomplete)
    licences = ["Apache-2.0", "BSD-3-Clause", "facts"]
    assert [table.licence[name] for name in NAMES] == licences
    assert table.llm_analysis["mosaic-0001"] == pytest.approx(8.94861)


def test_the_same_rows_make_the_same_bytes_and_carry_their_meaning(
    some: Path, table_of_some: Path, tmp_path: Path
) -> None:
    """A digest can be cited; every column says what it holds, and the file which version predicted."""
    one, again = table_of_some, tmp_path / "again.parquet"
    exported(again, "published", "--rows", some)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, again)]
    assert digests[0] == digests[1]
    schema = pq.read_schema(one)
    assert schema.names == list(export.COLUMNS)
    for field in schema:
        assert field.metadata[b"doc"].decode() == export.COLUMNS[field.name]
    assert schema.metadata[b"prestep"].decode() == __version__


def test_rows_measured_here_are_this_projects(
    report_of: ReportOf, known_reports: None, tmp_path: Path
) -> None:
    """With their intervals; as CSV they are the same rows, and as many as the set judges are judged."""
    exported(tmp_path / "rows.parquet", "h200-straggler")
    exported(tmp_path / "rows.csv", "h200-straggler")
    table, text = (
        pd.read_parquet(tmp_path / "rows.parquet"),
        pd.read_csv(tmp_path / "rows.csv"),
    )
    points = report_of("h200-straggler").points
    assert len(table) == len(text) == len(points)
    assert (table.source == "prestep").all() and (table.licence == "Apache-2.0").all()
    assert table.measured.tolist() == pytest.approx(text.measured.tolist())
    assert table.judged.sum() == sum(not p.fitted and not p.faint for p in points)
    assert (table.low < table.high).all() and (table.gpus > 0).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("energy", "-o", "a.parquet"), "sets of training steps"),
        (("h200", "-o", "a.txt"), ".parquet or .csv"),
    ],
)
def test_what_cannot_be_exported_is_told_before_the_work(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main(words) == 2
    assert told in capsys.readouterr().err


def test_the_data_card_has_every_column_and_licence() -> None:
    """Columns by name with their meaning, and the sources that are under a licence."""
    page = (ROOT / "docs" / "data-card.md").read_text(encoding="utf-8")
    for name, doc in export.COLUMNS.items():
        assert f"`{name}`" in page, name
        assert doc
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for entry in cells._licences():
        assert entry["licence"] in page
        assert entry["cite"].split("/")[1].split(",")[0].split(";")[0] in notice
