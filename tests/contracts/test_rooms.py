"""The core and its extensions: nothing of the core imports a room that can be taken out, and without it the core works."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.entry_points import entry_points
from prestep.sim.spec import openers
from tests.contracts.test_house import PACKAGES, ROOT, imports_of, modules

#: Rooms that declare what they add, and one that others read traces with.
ROOMS = sorted(
    {
        Path("workloads/traces"),
        *(
            path.parent.relative_to(ROOT)
            for package in PACKAGES
            for path in (ROOT / package).glob("*/entry_points.txt")
        ),
    }
)
#: What is asked of a core without a room, in one process; the last answer is printed.
COMMANDS = """
import sys
from click.testing import CliRunner
from prestep import cli
for words in (["--help"], ["list", "extensions"], ["collective", "--cluster", "dgx-h100"],
              ["topology", "show", "dgx-h100"], ["schema"], ["kernel", "--gpu", "h100", "gemm", "64x64x64"],
              ["whatif", "mlp-ddp4", "--set=nvlink.bandwidth=2x"], ["search", "mlp-ddp4", "--top=1"],
              ["sweep", "mlp-ddp4", "--grid=training.micro_batch=64,128", "-o", "swept", "--executor=threads"],
              ["run", "mlp-ddp4", "--max-micro-batch"], ["run", "llama1b-ddp4", "--report", "step.html"],
              *(["list", kind] for kind in ("clusters", "models", "frameworks", "schedules", "gpus", "storage")),
              ["run", "mlp-ddp4", "--json"]):
    done = CliRunner().invoke(cli.main, words)
    if done.exception and not isinstance(done.exception, SystemExit) or done.exit_code == 3:
        raise SystemExit(f"{words}: {done.output} {done.exception}")
print(done.stdout)
"""


def name_of(room: Path) -> str:
    return ".".join(("prestep", *room.parts))


def imported(nodes: Iterable[ast.stmt]) -> set[str]:
    """Modules and packages that statements import, at the top of a module or in a function."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return names


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_the_core_imports_no_room_of_an_extension(room: Path) -> None:
    """Only other rooms may."""
    rooms = [*map(name_of, ROOMS)]
    importers = {
        module
        for module, path in modules().items()
        if not any(within(module, other) for other in rooms)
        for statements in (imports_of(path).first, imports_of(path).later)
        if any(within(name, name_of(room)) for name in imported(statements))
    }
    assert not importers


#: Rooms of the core that read scenarios, and words that it has of its own: a section, a span's phase, systems.
READERS = (
    "sim",
    "topologies",
    "workloads/frameworks",
    "workloads/job",
    "workloads/models",
)
OWN_WORDS = {"faults", "checkpoint", "storage"}


def names_of_rooms() -> set[str]:
    """What rooms call their sections, frameworks, files and options."""
    groups = ("sections", "effects", "runs", "frameworks", "openers", "lists")
    entries = [e for group in groups for e in entry_points(f"prestep.{group}")]
    constants = [openers.options(), {".capture": ()}]
    return {entry.name for entry in entries}.union(*constants) - OWN_WORDS


def constants_of(path: Path) -> set[str]:
    """Texts in the code of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in texts
    }


def test_the_core_names_nothing_of_an_extension() -> None:
    """Neither a section, a framework, the ending of a file nor an option of one stands in the core's code."""
    names = names_of_rooms()
    assert {"rl", "inference", "dataload", "captured", "recipe.with"} <= names
    readers = [place for room in READERS for place in (ROOT / room).rglob("*.py")]
    core = [p for p in readers if not any(p.is_relative_to(ROOT / r) for r in ROOMS)]
    named = {str(path.relative_to(ROOT)): constants_of(path) & names for path in core}
    assert not {path: words for path, words in named.items() if words}


def copied(place: Path, rooms: Iterable[Path]) -> Path:
    """A copy of the program without some rooms; files are links to those of the checkout."""
    for package in ("prestep", *PACKAGES):
        shutil.copytree(
            ROOT / package,
            place / package,
            copy_function=os.link,
            ignore=shutil.ignore_patterns("__pycache__", "cases"),
        )
    shutil.copy(ROOT / "cli.py", place / "cli.py")
    for room in rooms:
        shutil.rmtree(place / room)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    "rooms", [ROOMS, *([room] for room in ROOMS)], ids=["all", *map(str, ROOMS)]
)
def test_without_a_room_the_core_works(rooms: list[Path], tmp_path: Path) -> None:
    """Its commands are gone from the help, the others answer, and a step takes as long as with it; and without all rooms."""
    place = copied(tmp_path, rooms)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    whole = CliRunner().invoke(cli.main, ["run", "mlp-ddp4", "--json"])
    step, same = (json.loads(text)["step_time"] for text in (done.stdout, whole.stdout))
    assert step == same
