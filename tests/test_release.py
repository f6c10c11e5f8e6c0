"""What is published: wheel and sdist, installed where there is nothing else, and the citation."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import lab
from prestep import cli
from prestep.sim import __version__
from prestep.sim.commands.list import KINDS
from prestep.sim.tools import catalog
from prestep.validation import command
from tests import in_turn, lowest
from tests.conftest import MadeOnce

ROOT = Path(cli.__file__).parent
#: Further interpreters to try, as paths: PRESTEP_PYTHONS=/usr/bin/python3.12:/usr/bin/python3.13
PYTHONS = [
    sys.executable,
    *(
        pytest.param(path, marks=pytest.mark.night)
        for path in os.environ.get("PRESTEP_PYTHONS", "").split(os.pathsep)
        if path
    ),
]


def bare() -> dict[str, str]:
    """An environment that does not see this checkout."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
    }


def call(*command: str | Path, cwd: Path, codes: tuple[int, ...] = (0,)) -> str:
    """What a command prints; its environment does not see this checkout."""
    made = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=bare(),
    )
    assert made.returncode in codes, made.stdout[-2000:] + made.stderr[-2000:]
    return made.stdout


def environment(interpreter: str | Path, folder: Path) -> Path:
    """The Python of an environment that has nothing, not even pip, which takes most of the time to make one."""
    call(interpreter, "-m", "venv", "--without-pip", "env", cwd=folder)
    return folder / "env" / "bin" / "python"


def pip_of(python: Path) -> tuple[str | Path, ...]:
    """This environment's pip, at work in another."""
    return sys.executable, "-m", "pip", "--python", python


def install(python: Path, wheel: Path, folder: Path) -> None:
    """The wheel and its dependencies, by uv in a tenth of pip's time; by pip where there is no uv, or no index for it."""
    words = ("uv", "pip", "install", "-q", "--python", python, wheel)
    if shutil.which("uv"):
        made = subprocess.run([*map(str, words)], cwd=folder, capture_output=True)
        if made.returncode == 0:
            return
    # Compiled is what runs, when it runs: most of the dependencies' files never do.
    call(*pip_of(python), "install", "-q", "--no-compile", wheel, cwd=folder)


@pytest.fixture(scope="module")
def builder(made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has hatchling and nothing else."""

    def with_hatchling() -> Path | None:
        python = environment(sys.executable, tmp_path_factory.mktemp("builder"))
        pip = subprocess.run(
            [*map(str, pip_of(python)), "install", "-q", "--no-compile", "hatchling"],
            capture_output=True,
            check=False,
        )
        return None if pip.returncode else python

    python: Path | None = made_once("builder", with_hatchling)
    if python is None:
        pytest.skip("needs a package index for hatchling")
    return python


@pytest.fixture(scope="module")
def built(
    builder: Path, made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with what a release has: wheel, sdist, examples, checksums."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs git, and a clone")

    def release() -> Path:
        folder = tmp_path_factory.mktemp("dist")
        call(builder, ROOT / ".ci" / "release", folder, cwd=ROOT)
        return folder

    folder: Path = made_once("release", release)
    return folder


@pytest.fixture(scope="module")
def installed(
    built: Path, made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The `prestep` of a clean environment of an interpreter that has the wheel and its dependencies, made once."""
    (wheel,) = built.glob("*.whl")

    def prestep(interpreter: str) -> Path:
        def fresh() -> Path:
            home = tmp_path_factory.mktemp("fresh")
            python = environment(interpreter, home)
            install(python, wheel, home)
            return python.with_name("prestep")

        name = hashlib.sha256(interpreter.encode()).hexdigest()
        path: Path = made_once(f"installed {name}", fresh)
        return path

    return prestep


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", PYTHONS)
def test_it_installs_where_nothing_is(
    installed: Callable[[str], Path], tmp_path: Path, interpreter: str
) -> None:
    """A clean environment, the wheel and its dependencies: a step is predicted, with the data files it needs."""
    prestep = installed(interpreter)
    report = ("--report", "r.html")
    told = json.loads(call(prestep, "run", "mlp-ddp4", "--json", *report, cwd=tmp_path))
    assert told["step_time"] > 0 and (tmp_path / "r.html").stat().st_size > 10_000
    assert __version__ in call(prestep, "--version", cwd=tmp_path)
    page = "from prestep.sim.explorer import page, answers; from prestep.sim.tools.catalog import find_scenario as f; "
    page += "print(len(page.render(answers.Explorer(f('mlp-ddp4')))))"
    python = prestep.with_name("python")
    assert int(call(python, "-c", page, cwd=tmp_path)) > 10_000


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", PYTHONS)
def test_the_sdist_makes_the_same_wheel(
    built: Path, tmp_path: Path, interpreter: str
) -> None:
    """To the byte, by each interpreter: what it installs is what the wheel installs, dependencies included."""
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    pip = pip_of(environment(interpreter, tmp_path))
    call(*pip, "wheel", "-q", "--no-deps", "-w", "made", sdist, cwd=tmp_path)
    (made,) = (tmp_path / "made").glob("*.whl")
    assert contents(made) == contents(wheel)


@pytest.mark.slow
def test_what_is_installed_does_what_the_tree_does(
    installed: Callable[[str], Path], tmp_path: Path
) -> None:
    """From another folder, with nothing of the tree in sight: lists, clusters, a search, replays and steps, to the last bit."""
    prestep = installed(sys.executable)
    # the last cluster names a file of constants beside it
    clusters = ("dgx-h100", "gb200-nvl72", "alcf-polaris")
    small = ("--ranks", "4", "--max-bytes", "1M")
    one = ("--over", "parallel.tp=1", "--over", "parallel.pp=1")
    lines = [
        *(["list", kind] for kind in KINDS),
        *(["topology", "show", cluster] for cluster in clusters),
        *(["collective", "--cluster", cluster, *small] for cluster in clusters),
        ["search", "llama1b-ddp4", *one],
    ]
    python = prestep.with_name("python")
    printed = tmp_path / "printed"
    with in_turn.commands(python, printed, tmp_path, bare()) as commands:
        told = [commands.run(*line) for line in lines]
    for kind, text in zip(KINDS, told, strict=False):
        # The laboratory's sets are the checkout's alone.
        laboratory = [path.parent.name for path in lab.CASES.glob("*/set.toml")]
        apart = {"sets": laboratory, "extensions": ["prestep-lab"]}
        names = {*catalog.names(kind)} - {*apart.get(kind, ())}
        assert text.split() == sorted(names), kind
    shown = told[len(KINDS) :]
    assert all("nodes" in text for text in shown[:3])
    assert all("size" in text for text in shown[3:6])
    assert "simulated" in shown[6]
    rows = lab.CASES / "h200" / "straggler_4gpu.jsonl"
    tree = command.as_json(command.compare((), rows, 1, None))
    (tmp_path / "tree.json").write_text(json.dumps(tree), encoding="utf-8")
    same = ("--only-compare", "--exact", "--compare", "tree.json")
    assert "0 moved" in call(prestep, "validate", "--rows", rows, *same, cwd=tmp_path)
    where = call(
        prestep.with_name("python"),
        "-c",
        "import prestep.sim, prestep.topologies; print(prestep.__file__, prestep.sim.__file__, prestep.topologies.__file__)",
        cwd=tmp_path,
    )
    assert str(ROOT) not in where


@pytest.mark.slow
def test_a_release_is_the_same_to_the_bit(
    built: Path, builder: Path, tmp_path: Path
) -> None:
    """Built again by another user, elsewhere on earth: wheel, sdist and examples have the same checksums."""
    there = "import os, runpy, sys; os.umask(0o077); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    elsewhere = ("env", "TZ=Asia/Tokyo", "LC_ALL=C", builder, "-c", there)
    call(*elsewhere, ROOT / ".ci" / "release", tmp_path, cwd=tmp_path)
    sums = (built / "SHA256SUMS").read_text().splitlines()
    assert sums == (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1] for line in sums} == {
        path.name for path in built.iterdir() if path.name != "SHA256SUMS"
    }
    assert len(sums) == 3


@pytest.mark.slow
def test_dates_are_those_that_are_asked_for(builder: Path, tmp_path: Path) -> None:
    """SOURCE_DATE_EPOCH decides the dates in the files: another one makes other files."""
    epoch = "SOURCE_DATE_EPOCH=1600000000"
    call("env", epoch, builder, ROOT / ".ci" / "release", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    for name in (wheel, *tmp_path.glob("*-examples.zip")):
        with zipfile.ZipFile(name) as file:
            assert {entry.date_time for entry in file.infolist()} == {
                (2020, 9, 13, 12, 26, 40)
            }


@pytest.mark.slow
def test_the_wheel_is_small(built: Path) -> None:
    """Under 8 MB, which every environment fetches."""
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 8e6


@pytest.mark.slow
def test_the_examples_run_where_they_are_unpacked(
    built: Path, installed: Callable[[str], Path], tmp_path: Path
) -> None:
    """All of them are there, and one that names a cluster beside it is predicted by the wheel alone."""
    (archive,) = built.glob("*-examples.zip")
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    there = tmp_path / "prestep-examples"
    for path in (ROOT / "examples").rglob("*.toml"):
        unpacked = there / path.relative_to(ROOT / "examples")
        assert unpacked.read_bytes() == path.read_bytes()
    prestep = installed(sys.executable)
    told = call(prestep, "run", there / "custom-cluster.toml", "--json", cwd=tmp_path)
    assert json.loads(told)["step_time"] > 0


def test_the_container_copies_what_the_wheel_is_built_from() -> None:
    """Every file that the build backend reads is there; its command is the demonstration."""
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    copied = {
        word
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads(lowest.PYPROJECT.read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {
        *wheel["only-include"],
        *wheel["force-include"],
        *project["project"]["license-files"],
    }
    assert {"pyproject.toml", project["project"]["readme"], *needed} == copied
    assert lines[-2:] == ['ENTRYPOINT ["prestep"]', 'CMD ["run"]']


#: What a build needs here beside the engine, such as `-v /etc/pip.conf:/etc/pip.conf:ro`.
BUILD_OPTIONS = os.environ.get("PRESTEP_CONTAINER_OPTIONS", "").split()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["podman", "docker", "buildah"])
def test_the_container_runs_the_demonstration(engine: str) -> None:
    """Where there is an engine, and an image of Python to be had: as the image's user, in its folder, by its entry point."""
    if shutil.which(engine) is None:
        pytest.skip(f"needs {engine}")
    tag = "prestep-test"
    # A stage of buildah's needs neither user namespaces nor an overlay so; others have a daemon or know themselves.
    alone = ("--isolation", "chroot") if engine == "buildah" else ()
    options = ("-q", *alone, *BUILD_OPTIONS, "-t", tag, "-f", "Containerfile", ".")
    made = subprocess.run(
        [engine, "build", *options],
        cwd=ROOT,
        env=os.environ | {"STORAGE_DRIVER": "vfs"} if alone else None,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"cannot build here: {made.stderr[-200:]}")
    in_image = run_in_buildah if engine == "buildah" else run_in_engine
    told = in_image(engine, tag, "run", "--json")
    assert json.loads(told)["step_time"] > 0


def run_in_engine(engine: str, tag: str, *arguments: str) -> str:
    """What the image prints, without a network."""
    return call(engine, "run", "--rm", "--network", "none", tag, *arguments, cwd=ROOT)


def no_network() -> tuple[str, ...]:
    """What takes the network from a command, where root runs it: without namespaces of its own buildah does not."""
    may = os.geteuid() == 0 and shutil.which("unshare") is not None
    return ("unshare", "--net") if may else ()


def run_in_buildah(engine: str, tag: str, *arguments: str) -> str:
    """The same: buildah takes the user and the folder of the image, and is told its entry point."""
    driver = ("env", "STORAGE_DRIVER=vfs", engine)
    config = "{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}"
    entry = call(
        *driver, "inspect", "--type", "image", "--format", config, tag, cwd=ROOT
    )
    container = call(*driver, "from", "--pull-never", tag, cwd=ROOT).strip()
    try:
        line = ("run", "--isolation", "chroot", container, "--", *entry.split())
        return call(*no_network(), *driver, *line, *arguments, cwd=ROOT)
    finally:
        call(*driver, "rm", container, cwd=ROOT)


def test_the_conda_recipe_asks_for_what_the_wheel_asks_for() -> None:
    """The same version, dependencies with the same lower ends, command and licence."""
    text = (ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    project = tomllib.loads(lowest.PYPROJECT.read_text(encoding="utf-8"))["project"]
    wanted = {f"python {project['requires-python']}"}
    for one in project["dependencies"]:
        name, version = lowest.bound(one)
        wanted.add(f"{name} >={version}")
    assert set(recipe["requirements"]["run"]) == wanted
    assert recipe["context"]["version"] == __version__
    ((command, entry),) = project["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [f"{command} = {entry}"]
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["license_file"] == project["license-files"]


def test_the_changelog_begins_with_the_version_that_comes() -> None:
    """Sections by version, the newest first; none is older than what the code says it is."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^## (\d+\.\d+\.\d+)", text, re.MULTILINE)
    versions = [tuple(map(int, number.split("."))) for number in numbers]
    assert versions == sorted(set(versions), reverse=True)
    assert __version__ in numbers[:2]


def test_every_data_file_travels_with_its_package() -> None:
    """What is no code lies inside the packages that the wheel has, under a name that no rule of git ignores."""
    tops = ("sim", "topologies", "workloads", "validation")
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *tops]
    listed = subprocess.run(
        asked, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs git, and a clone")
    known = set(listed.stdout.splitlines())
    for top in tops:
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and "__pycache__" not in path.parts:
                assert name in known, (
                    f"{name} is ignored by git, so neither wheel nor sdist has it"
                )


# Measurements that tables are made from and that no command reads: in the sdist alone.
MEASURED_ALONE = (
    "lab/cases/aten/h100.",
    "lab/cases/aten/h200.",
    "lab/cases/traces/1",
    "lab/cases/traces/moe",
    "lab/cases/traces/rn50",
    "lab/cases/frameworks/hosts/h200_",
)


@pytest.mark.slow
def test_what_is_in_the_files(built: Path) -> None:
    """The wheel has the packages, their data and the licence; the sdist has the tests and all that was measured too."""
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    tops = {name.partition("/")[0] for name in wheel}
    assert tops == {
        "prestep",
        f"prestep-{__version__}.dist-info",
    }
    for name in (
        "prestep/__init__.py",
        "prestep/cli.py",
        "prestep/py.typed",
        "prestep/sim/exporters/_html/page.js",
        "prestep/sim/explorer/explore.js",
        "prestep/sim/explorer/explore.css",
    ):
        assert name in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert any(name.endswith("licenses/NOTICE") for name in wheel)
    for top in (
        "sim",
        "topologies",
        "workloads",
        "validation",
    ):  # every file of the packages, data as well as code
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and "__pycache__" not in path.parts:
                assert (f"prestep/{name}" in wheel) != name.startswith(
                    MEASURED_ALONE
                ), name
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = sdist.getnames()
    assert any(name.endswith("lab/cases/aten/h100.jsonl.gz") for name in names)
    assert any("/tests/" in name for name in names) and any(
        name.endswith("CITATION.cff") for name in names
    )
    assert not any(
        "__pycache__" in name or "/.venv" in name for name in (*wheel, *names)
    )


def test_the_citation_names_this_version() -> None:
    """CITATION.cff has what the format (1.2.0) requires, and the version and licence of the package."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(found) and found[
        "authors"
    ]
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert found["version"] == __version__ and found["license"] == "Apache-2.0"


def test_bundled_data_has_its_notice() -> None:
    """Every source of published kernel rates is in NOTICE."""
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    rates = csv.DictReader(
        (ROOT / "sim/costs/hardware/published.csv").open(encoding="utf-8")
    )
    words = {
        "aiconfigurator": "aiconfigurator",
        "simumax": "SimuMax",
        "azure": "Azure",
        "stas00": "stas00",
        "hf-playbook": "Smol Training Playbook",
    }
    for source in {row["source"] for row in rates}:
        assert words[source] in notice, source


def test_requirements_have_lower_ends_that_ci_can_pin() -> None:
    """`name>=version` for every dependency, and the same end in every extra that names it again."""
    pinned = dict(pin.split("==") for pin in lowest.pins() if "==" in pin)
    assert {"click", "numpy", "pandas", "simpy"} <= set(pinned)
    project = tomllib.loads(lowest.PYPROJECT.read_text(encoding="utf-8"))["project"]
    for extra in project["optional-dependencies"].values():
        for one in extra:
            name, _, version = one.partition(">=")
            assert not version or pinned.get(name, version) == version, one
