"""The Python interface: frames that say what the commands say."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import prestep
from prestep import cli
from prestep.sim import api

NOTEBOOK = Path(cli.__file__).parent / "examples" / "whatif.ipynb"


def test_simulate_is_what_run_prints() -> None:
    """The same step time; shares sum to it; spans are those of the timeline."""
    result = api.simulate("mlp-ddp4")
    told = json.loads(
        CliRunner().invoke(cli.main, ["run", "mlp-ddp4", "--json"]).stdout
    )
    assert result.step_time == told["step_time"]
    assert api.breakdown(result).sum() == pytest.approx(result.step_time)
    frame = api.spans(result)
    assert (
        len(frame) == len(result.timeline or ())
        and (frame["end"] >= frame["start"]).all()
    )


def test_compare_has_a_row_for_every_variant() -> None:
    """The base first; slower links never help."""
    frame = api.compare(
        "mlp-ddp4", {"nvlink.bandwidth": "0.1x"}, {"training.micro_batch": 128}
    )
    assert list(frame.index) == [
        "base",
        "nvlink.bandwidth=0.1x",
        "training.micro_batch=128",
    ]
    assert frame.loc["base", "speedup"] == 1 and frame.iloc[1]["speedup"] <= 1


def test_mistakes_are_exceptions_with_their_list() -> None:
    """As the command line words them."""
    with pytest.raises(api.InputError, match="micro_batch"):
        api.load("mlp-ddp4", {"training.micro_batch": "x"})
    with pytest.raises(api.PrestepError, match="loaded already"):
        api.simulate(api.load("mlp-ddp4"), {"training.micro_batch": 1})


def test_a_collective_is_a_frame() -> None:
    """A row for every size."""
    frame = api.collective("h200-host-4", min_bytes="1M", max_bytes="4M")
    assert list(frame["bytes"]) == [2**20, 2**21, 2**22] and (frame["time"] > 0).all()


def test_the_package_is_the_interface() -> None:
    """`import prestep` has the names of `prestep.sim.api`, each the same; about a dozen functions."""
    assert set(prestep.__all__) == {*api.__all__, "__version__"}
    assert all(getattr(prestep, name) is getattr(api, name) for name in api.__all__)
    assert doctest.testmod(prestep).failed == 0


def test_a_saved_report_is_that_of_the_command(tmp_path: Path) -> None:
    """With what-ifs and measured neighbours, as `prestep run --report` writes it."""
    saved = api.save(
        api.simulate("mlp-ddp4", prices=True), tmp_path / "a.html"
    ).read_text(encoding="utf-8")
    made = CliRunner().invoke(
        cli.main, ["run", "mlp-ddp4", "--report", str(tmp_path / "b.html")]
    )
    assert made.exit_code == 0 and saved == (tmp_path / "b.html").read_text(
        encoding="utf-8"
    )
    assert 'id="whatif"' in saved and 'id="measured"' in saved


def test_the_notebook_runs() -> None:
    """Every code cell of examples/whatif.ipynb, in order."""
    room: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), room)
    assert Path(str(room["folder"]), "report.html").is_file()


def test_the_docstring_is_true() -> None:
    """Its example runs."""
    assert doctest.testmod(api).failed == 0


def test_every_public_name_is_there() -> None:
    """`__all__` has what the module offers."""
    assert all(hasattr(api, name) for name in api.__all__)
