"""What is published: wheel and sdist, installed where there is nothing else, and the citation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import cli
from sim import __version__

ROOT = Path(cli.__file__).parent
#: Further interpreters to try, as paths: PRESTEP_PYTHONS=/usr/bin/python3.12:/usr/bin/python3.13
PYTHONS = [sys.executable, *filter(None, os.environ.get("PRESTEP_PYTHONS", "").split(os.pathsep))]


def call(*command: str | Path, cwd: Path) -> str:
    """What a command prints; its environment does not see this checkout."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    made = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False, env=bare)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    return made.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist."""
    home = tmp_path_factory.mktemp("build")
    call(sys.executable, "-m", "venv", "env", cwd=home)
    python = home / "env" / "bin" / "python"
    pip = subprocess.run([python, "-m", "pip", "install", "-q", "hatchling"], capture_output=True, check=False)
    if pip.returncode:
        pytest.skip("needs a package index for hatchling")
    call(python, "-m", "hatchling", "build", "-d", home / "dist", cwd=ROOT)
    return home / "dist"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
@pytest.mark.parametrize("interpreter", PYTHONS)
def test_it_installs_where_nothing_is(built: Path, tmp_path: Path, interpreter: str, kind: str) -> None:
    """A clean environment, the file and its dependencies: a step is predicted, with the data files it needs."""
    call(interpreter, "-m", "venv", "env", cwd=tmp_path)
    python, (file,) = tmp_path / "env" / "bin" / "python", tuple(built.glob(kind))
    call(python, "-m", "pip", "install", "-q", file, cwd=tmp_path)
    told = json.loads(call(python.with_name("prestep"), "run", "mlp-ddp4", "--json", cwd=tmp_path))
    assert told["step_time"] > 0
    assert __version__ in call(python.with_name("prestep"), "--version", cwd=tmp_path)
    call(python.with_name("prestep"), "run", "mlp-ddp4", "--report", "r.html", cwd=tmp_path)
    page = "from sim.explorer import page, answers; from sim.catalog import find_scenario as f; "
    page += "print(len(page.render(answers.Explorer(f('mlp-ddp4')))))"
    assert int(call(python, "-c", page, cwd=tmp_path)) > 10_000


@pytest.mark.slow
def test_what_is_in_the_files(built: Path) -> None:
    """The wheel has the packages, their data and the licence; the sdist has the tests too; neither has strays."""
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    tops = {name.partition("/")[0] for name in wheel}
    assert tops == {
        "cli.py",
        "prestep.py",
        "sim",
        "topologies",
        "workloads",
        "validation",
        f"prestep-{__version__}.dist-info",
    }
    for name in ("sim/exporters/_html/page.js", "sim/explorer/explore.js", "sim/explorer/explore.css", "sim/py.typed"):
        assert name in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = sdist.getnames()
    assert any("/tests/" in name for name in names) and any(name.endswith("CITATION.cff") for name in names)
    assert not any("__pycache__" in name or "/.venv" in name for name in (*wheel, *names))


def test_the_citation_names_this_version() -> None:
    """CITATION.cff has what the format (1.2.0) requires, and the version and licence of the package."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(found) and found["authors"]
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert found["version"] == __version__ and found["license"] == "Apache-2.0"
