"""Rows of published RL steps: the columns of NeMo RL's performance pages, as scenarios with [rl].

What a row leaves out stands in `lab/cases/rl/recipes.toml`, read from the framework's recipes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab.formats.csv_rows import csv_rows
from lab.formats.published_columns import natural
from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.spec.load import scenario_of as read_tables
from prestep.sim.spec.sections import Scenario

RECIPES = Path(__file__).parents[1] / "cases" / "rl" / "recipes.toml"
STEP_TIME = "Total Step time(s)"
EXPECTED = "a CSV file of RL steps"
COLUMNS = (
    "section",
    "Algorithm",
    "Model",
    "On/Off policy",
    "T-Max Sequence Length",
    "G-Average Seq len",
    "#-GPUs",
    "G-GBS",
    "T-GBS",
    "Generation [TP,PP]",
    "Training [TP,CP,EP,PP,VPP]",
    STEP_TIME,
)
#: Cluster, and GPUs of a host, by what a section's title says.
MACHINES = {"H100": ("dgx-h100-superpod", 8), "GB200": ("gb200-superpod-576", 4)}
RACK = 72  # GPUs of one NVLink domain
#: Keys of a table of recipes.toml that are switched on by what the row says.
CASES = ("set", "off", "dapo", "fp8")
ASYNC = (0, 6)  # first one whose vLLM (0.17) schedules beside the GPU


@dataclass(frozen=True)
class RlRow:
    """One row, its cells by column."""

    where: str
    number: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def count(self, column: str) -> int:
        """A whole number, with or without thousands' commas.

        Raises
        ------
        InputError
            If it is none.
        """
        value = natural(self.text(column))
        if value < 1:
            raise self.wrong(column, "a whole number above 0")
        return value

    def seconds(self, column: str) -> float:
        text = self.text(column).replace(",", "")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e9:
            raise self.wrong(column, "seconds")
        return value

    def layout(self, column: str) -> list[int]:
        """The numbers of "[1,1,16,16,n/a]"; 1 for what is not applicable."""
        parts = self.text(column).strip("[]").split(",")
        if not all(re.fullmatch(r"\s*(\d+|n/a)\s*", part) for part in parts):
            raise self.wrong(column, "numbers in brackets")
        degrees = [1 if part.strip() == "n/a" else natural(part) for part in parts]
        if 0 in degrees:
            raise self.wrong(column, "numbers in brackets, at least 1")
        return degrees

    def wrong(self, column: str, expected: str) -> InputError:
        place = f"row {self.number}, {column}"
        return InputError(Mistake(self.where, place, self.text(column), expected))

    @property
    def group(self) -> str:
        return f"{self.text('Algorithm')} {self.text('Model')}"

    @property
    def machine(self) -> str:
        """H100 or GB200, by the section's title."""
        found = [name for name in MACHINES if name in self.text("section")]
        if not found:
            raise self.wrong("section", f"a title with {' or '.join(MACHINES)}")
        return found[0]

    @property
    def release(self) -> tuple[int, int]:
        """Of NeMo RL, as the section's title says.

        Raises
        ------
        InputError
            If it says none.
        """
        found = re.search(r"v(\d+)\.(\d+)", self.text("section"))
        if not found:
            raise self.wrong("section", "a title with a release, such as v0.6")
        return int(found[1]), int(found[2])

    @property
    def fp8(self) -> bool:
        return "FP8" in self.text("section")

    @property
    def off(self) -> int:
        """Steps that rollouts may be older than the weights."""
        text = self.text("On/Off policy").lower()
        if text.startswith("on"):
            return 0
        found = re.match(r"(\d+)-step", text)
        if not found:
            raise self.wrong("On/Off policy", "On policy, or N-step Off")
        return int(found[1])

    @property
    def name(self) -> str:
        policy = f"{self.off} off" if self.off else "on policy"
        number = f"{self.text('Model')}, {self.machine}"
        precision = " FP8" if self.fp8 else ""
        return f"{self.text('Algorithm')} {number}{precision} x {self.count('#-GPUs')}, {policy} ({self.number})"

    @property
    def same(self) -> tuple[str, ...]:
        """What is the same in a row that another release repeats."""
        machine = f"{self.machine} {self.fp8}"
        return (machine, *(self.text(column) for column in COLUMNS[1:]))


def read_rows(path: Path) -> list[RlRow]:
    """The rows of a file; one that an earlier row repeats to the digit is left out.

    Raises
    ------
    InputError
        If it cannot be read or lacks columns.
    """
    rows: dict[tuple[str, ...], RlRow] = {}
    for number, cells in enumerate(csv_rows(path, COLUMNS, EXPECTED), start=1):
        row = RlRow(str(path), number, cells)
        rows.setdefault(row.same, row)
    return list(rows.values())


def scenario_of(row: RlRow) -> Scenario:
    """The scenario that the row's columns and its recipe say.

    Raises
    ------
    InputError
        For a model that no recipe is known of, or columns that are no numbers.
    """
    recipe = _recipe(row)
    gpus, (cluster, per_host) = row.count("#-GPUs"), MACHINES[row.machine]
    if row.machine == "GB200" and gpus <= RACK:
        cluster = "gb200-nvl72"
    hosts = max(1, -(-gpus // per_host))
    rl = _rl(row, recipe)
    training = gpus - rl.get("generation_gpus", gpus // 2) if row.off else gpus
    tables: dict[str, Any] = {
        "cluster": {"name": cluster, "hosts": hosts, "gpus": gpus},
        "model": {"name": recipe["model"]},
        "training": {
            "framework": "megatron",
            "precision": "fp8" if row.fp8 else "bf16",
        },
        "parallel": _layout(row, training),
        "megatron": {"fp8_scaling": "dynamic"} if row.fp8 else {},
        "rl": rl,
    }
    for key, value in _changes(row, recipe):
        section, _, name = key.rpartition(".")
        tables[section or "rl"][name] = value
    return read_tables(tables, Path(row.where))


@cache
def _recipes() -> Mapping[str, Any]:
    return files.toml(RECIPES.read_text(encoding="utf-8"))


def _recipe(row: RlRow) -> Mapping[str, Any]:
    model, known = row.text("Model"), _recipes()
    models = [name for name, table in known.items() if "model" in table]
    if model not in models:
        raise InputError(unknown(row.where, f"row {row.number}, Model", model, models))
    return known[model]  # type: ignore[no-any-return]


def _changes(row: RlRow, recipe: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the recipe says for a row of its kind."""
    applies = {
        "set": True,
        "off": row.off > 0,
        "dapo": row.text("Algorithm") == "DAPO",
        "fp8": row.fp8,
    }
    yield from _recipes()["every"].items()
    yield from _recipes()["machines"].get(row.machine, {}).items()
    yield "async_scheduling", row.release >= ASYNC
    yield (
        "executor",
        "ray",
    )  # distributed_executor_backend of vllm_worker.py, in all releases
    for case in CASES:
        if applies[case]:
            yield from recipe.get(case, {}).items()
    yield from _of_release(row, recipe)


def _of_release(row: RlRow, recipe: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What changed from release to release: "0.5", or of one machine alone "0.5 GB200"."""
    release = ".".join(map(str, row.release))
    for name in (release, f"{release} {row.machine}"):
        yield from recipe.get("release", {}).get(name, {}).items()


def _rl(row: RlRow, recipe: Mapping[str, Any]) -> dict[str, Any]:
    known = _recipes()
    generations = recipe["set"]["generations"]
    tp, *pp = row.layout("Generation [TP,PP]")
    engine = "async" if row.off or recipe.get("async") else "batch"
    made: dict[str, Any] = {
        "algorithm": row.text("Algorithm").lower(),
        "prompts": max(1, row.count("G-GBS") // generations),
        "mean_length": row.count("G-Average Seq len"),
        "max_length": row.count("T-Max Sequence Length"),
        "train_global_batch": row.count("T-GBS"),
        "off_policy_steps": row.off,
        "generation_tp": tp,
        "generation_pp": pp[0] if pp else 1,
        "max_num_seqs": known["engines"][engine],
    }
    if row.off:
        made |= known["apart"]
    if row.fp8:
        made["generation_precision"] = "fp8"
    place = f"{row.text('Model')} {row.machine} {row.count('#-GPUs')} {row.off}"
    own: Mapping[str, Any] = known["runs"].get(place, {})
    return {**made, **own}


def _layout(row: RlRow, gpus: int) -> dict[str, Any]:
    """The layout of training; one row names a further axis of 1 first, one a cp that its GPUs have no room for."""
    column = "Training [TP,CP,EP,PP,VPP]"
    degrees = row.layout(column)
    if len(degrees) < 5:
        raise row.wrong(column, "five numbers in brackets")
    tp, cp, ep, pp, vpp = degrees[-5:]
    if tp * cp * pp > gpus:
        cp = 1
    return {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": min(ep, gpus // pp),
        "vpp": vpp,
        **({"etp": 1} if ep > 1 else {}),
        "sequence_parallel": tp > 1,
        "data_parallel": "zero1",
    }
