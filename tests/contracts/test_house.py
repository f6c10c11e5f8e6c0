"""The plan of the house: no circles of imports, few imports inside functions, and limits of size that may only fall.

What was won before was lost again because nothing held it. A change that passes a limit either finds another home for
what it adds, or deletes what it replaces. A change that stays far below one lowers it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
#: What is installed.
PACKAGES = ("sim", "topologies", "workloads", "validation")
#: Most lines of the packages, and of one file; files that are longer; Python files in one room.
LINES, LONG, LONG_FILES, ROOM = 143_238, 400, 7, 49
#: Most lines of the rooms that somebody reads who wants to know how a step is simulated.
HEART = ("engine", "graph", "planning", "collectives")
HEART_LINES = 15_000
#: Most imports inside functions.
LOCAL = 39
#: Modules of prestep that a plain `prestep run` loads, and their lines.
LOADED, LOADED_LINES = 282, 46_300


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its name."""
    return {
        ".".join(
            ("prestep", *path.relative_to(ROOT).with_suffix("").parts)
        ).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True)
class Imports:
    """Imports of a module: those that run with it, and those inside functions, which run later."""

    first: list[ast.stmt] = field(default_factory=list)
    later: list[ast.stmt] = field(default_factory=list)


@cache
def imports_of(path: Path) -> Imports:
    """Imports of a file, without those for types alone, which nobody runs."""
    imports = Imports()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            (imports.later if inside else imports.first).append(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        # Imports are statements: expressions have none below them.
        waiting += [
            (child, inside)
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr)
        ]
    return imports


def at_import(path: Path) -> set[str]:
    """Modules of the packages that a module imports when it is imported."""
    names: set[str] = set()
    for node in imports_of(path).first:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {part if part in modules() else node.module for part in parts}
    return names & modules().keys()


def test_rooms_are_called_by_the_name_that_is_installed() -> None:
    """`sim.x` is found in a checkout, whose folder is on the path, and nowhere else: imports, names of modules, prose."""
    rooms = "|".join(PACKAGES)
    old = re.compile(
        rf"""^\s*(?:from|import) (?:{rooms})\b|["'`](?:{rooms})\.[a-z_]+[."'`]""", re.M
    )
    wrong = {
        name: match[0]
        for name, path in modules().items()
        if (match := old.search(path.read_text(encoding="utf-8")))
    }
    assert not wrong


def test_no_modules_import_each_other() -> None:
    """A circle is one idea in two files, or two in one."""
    graph = nx.DiGraph(
        (name, other)
        for name, path in modules().items()
        for other in at_import(path)
        if other != name
    )
    groups = nx.strongly_connected_components(graph)
    assert not [sorted(group) for group in groups if len(group) > 1]


def test_imports_inside_functions_become_fewer() -> None:
    """They hide what a module needs; those that remain are slow libraries that few commands use."""
    count = Counter(
        {name: len(imports_of(path).later) for name, path in modules().items()}
    )
    assert count.total() <= LOCAL, count.most_common(20)


def test_the_packages_and_their_files_become_smaller() -> None:
    """Lines of all, files of more than 400 lines, and Python files in the fullest room."""
    lines = {name: lines_of(path) for name, path in modules().items()}
    assert sum(lines.values()) <= LINES
    long = [name for name, count in lines.items() if count > LONG]
    assert len(long) <= LONG_FILES, long
    rooms = Counter(path.parent for path in modules().values())
    assert max(rooms.values()) <= ROOM, rooms.most_common(5)


def test_the_heart_of_the_simulator_becomes_smaller() -> None:
    """Engine, graph, planning and collectives together: what can be read in a day or two."""
    lines = Counter(
        {
            room: sum(map(lines_of, (ROOT / "sim" / room).rglob("*.py")))
            for room in HEART
        }
    )
    assert lines.total() <= HEART_LINES, lines


#: Rooms that read a `Job` and a `Machine` (`prestep.sim.planning.job`), never a key of a scenario.
BEHIND_LOWERING = tuple(
    f"prestep.sim.{room}."
    for room in ("planning", "costs", "analysis", "engine", "storage", "collectives")
)


def test_lowering_consumes_the_scenario() -> None:
    """What is behind it imports nothing of `prestep.sim.spec`, for types neither, and asks nothing that is called a scenario."""
    asked = []
    for name, path in modules().items():
        if not name.startswith(BEHIND_LOWERING):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imports = (isinstance(node, ast.ImportFrom) and node.module) or ""
            of_scenario = isinstance(node, ast.Attribute) and (
                ast.unparse(node.value).rpartition(".")[2] == "scenario"
            )
            if imports.startswith("prestep.sim.spec") or of_scenario:
                asked.append(f"{name}: {ast.unparse(node)}")
    assert not asked


@pytest.mark.slow
def test_a_plain_run_loads_no_more_than_it_needs() -> None:
    """Modules of prestep in the process after `prestep run` of the demonstration, and their lines."""
    program = (
        "import json, runpy, sys\n"
        "sys.argv = ['prestep', 'run']\n"
        "try:\n    runpy.run_module('prestep', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "json.dump(sorted(sys.modules), sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {*json.loads(done.stderr.splitlines()[-1])} & modules().keys()
    assert {"prestep.sim.engine.engine", "prestep.workloads.torch.tape"} <= loaded
    assert len(loaded) <= LOADED
    assert sum(lines_of(modules()[name]) for name in loaded) <= LOADED_LINES
