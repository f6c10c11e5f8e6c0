"""What every exporter keeps to, found by its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.exporters import name_for, write
from prestep.sim.plugins import load, providers
from tests.sample import together
from tests.sim.synthetic import result, timeline

NAMES = sorted(providers("prestep.sim.exporters", "write"))
FILES = [
    (name, suffix)
    for name in NAMES
    for suffix in load("prestep.sim.exporters", name).SUFFIXES
]


def written(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@together(("name", "suffix"), FILES)
def test_an_exporter_writes_where_it_is_told(
    name: str, suffix: str, tmp_path: Path
) -> None:
    """It answers to its suffixes, writes that file (or a folder of files) and nothing else, the same bytes twice."""
    for at in ("one", "two"):
        folder = tmp_path / at
        target = f"{folder}/out{suffix}"
        assert name_for(target) == name
        write(result(timeline=timeline(ranks=2)), target)
        found = written(folder)
        assert found and all(content for content in found.values())
        assert all(path.startswith("out") for path in found)
        assert suffix == "/" or list(found) == [f"out{suffix}"]
    assert written(tmp_path / "one") == written(tmp_path / "two")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_text(name: str) -> None:
    """An exporter with render() gives whole lines, the same twice."""
    render = getattr(load("prestep.sim.exporters", name), "render", None)
    if render is None:
        return
    text = render(result())
    assert (
        isinstance(text, str)
        and len(text.splitlines()) > 5
        and text == render(result())
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_place_that_cannot_be_written_is_an_input_error(
    name: str, tmp_path: Path
) -> None:
    """Exit code 2, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a path that can be written"):
        write(result(), tmp_path / "file" / "out", name)


def test_no_two_exporters_answer_to_one_suffix() -> None:
    """The ending decides alone."""
    suffixes = [suffix for _, suffix in FILES]
    assert len(set(suffixes)) == len(suffixes)
