"""File name = registry."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prestep.sim import plugins
from prestep.sim.errors import InputError, PrestepError


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of two plug-ins, a helper, a private module and a sub-package."""
    package = tmp_path / "shapes_for_test"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "_private", "inner/__init__", "inner/deep"):
        (package / f"{name}.py").write_text("")
    (package / "fat_tree.py").write_text("def build():\n    return 'tree'\n")
    (package / "torus.py").write_text("def build():\n    return 'torus'\n")
    (package / "helper.py").write_text("WIDTH = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package.name
    for module in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[module]


def test_discovery_lists_files_without_importing_them(shapes: str) -> None:
    """Public modules are plug-ins, sorted by name; none is imported to be listed."""
    assert plugins.discover(shapes) == {
        name: f"{shapes}.{name}" for name in ("fat_tree", "helper", "torus")
    }
    assert f"{shapes}.torus" not in sys.modules


@pytest.mark.parametrize(
    "package",
    [
        "prestep.sim.commands",
        "prestep.sim.exporters",
        "prestep.sim.collectives.algorithms",
    ],
)
def test_a_summary_is_the_first_line_of_a_docstring(package: str) -> None:
    """A summary that is read from a file's beginning is the one that parsing the file gives."""
    outlines = plugins.outlines(package)
    parsed = {name: outline.summary for name, outline in outlines.items()}
    assert plugins.summaries(package) == parsed


def test_a_plugin_is_loaded_by_its_name(shapes: str) -> None:
    """Dashes, as in scenario files, are underscores in file names."""
    assert plugins.load(shapes, "fat-tree").build() == "tree"
    assert plugins.load_function(shapes, "torus", "build")() == "torus"


@pytest.mark.parametrize("name", ["inner", "inner.deep", "_private"])
def test_what_is_imported_is_not_for_that_a_plugin(shapes: str, name: str) -> None:
    """A private module, a sub-package and what is in it are none, whether somebody has imported them or not."""
    importlib.import_module(f"{shapes}.{name}")
    with pytest.raises(InputError, match="expected one of fat_tree, helper, torus"):
        plugins.load(shapes, name)


def test_providers_leave_helpers_out(shapes: str) -> None:
    """A module without the function is a helper."""
    assert sorted(plugins.providers(shapes, "build")) == ["fat_tree", "torus"]


def test_an_unknown_name_is_answered_with_a_close_one(shapes: str) -> None:
    """The error names what exists."""
    with pytest.raises(
        InputError,
        match=r'expected one of fat_tree, helper, torus \(did you mean "torus"\?\)',
    ):
        plugins.load(shapes, "tours")


def test_a_plugin_without_its_function_is_an_error(shapes: str) -> None:
    """The file is there but does not keep the contract."""
    with pytest.raises(PrestepError, match=r"must define the function build\(\)"):
        plugins.load_function(shapes, "helper", "build")


@pytest.mark.parametrize(
    "package", ["no_such_package", "no.such.package", "json.decoder"]
)
def test_a_package_that_does_not_exist_is_an_error(package: str) -> None:
    """Neither silence nor an empty list."""
    with pytest.raises(PrestepError, match="no such package"):
        plugins.discover(package)
