"""What the script of an MLPerf submission says of a row: its exported variables as keys of a scenario.

``cases/mlperf/configs.json`` has the variables by round, submitter, system and benchmark; what each means is the
same as in a recipe (`workloads/recipes/mlperf.toml`). A switch that is not simulated, or that nobody knows, is said
with the row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab.formats.published_setups import Setup
from prestep.workloads.recipes._rules import Rule, rules
from prestep.workloads.recipes.mlperf import RULES, recomputed

FOLDER = Path(__file__).parents[1] / "cases" / "mlperf"
CONFIGS = FOLDER / "configs.json"
#: Those of pretraining and of fine-tuning.
FILES = (CONFIGS, FOLDER.parent / "lora" / "configs.json")
#: Round, submitter, system and benchmark of a row's address.
SYSTEM = r"training_results_(v[\d.]+)/tree/[^/]+/([^/]+)/results/([^/]+)/([^/\s]+)"
#: The script that a row's notes name, and the variables that they repeat.
SCRIPT = r"\bconfig (config_[\w.-]+?\.sh)\b"
#: AMD's GPUs in the name of a script.
OF_AMD = r"MI\d{3}X"
VARIABLE = r"\b([A-Z][A-Z0-9_]{2,})=(\S+?)(?=[\s;]|$)"


def switches() -> tuple[Rule, ...]:
    """What variables mean, in the order of the file; those of the layout are columns of the row."""
    return rules(RULES)


def with_script(setup: Setup, row: Mapping[str, str]) -> Setup:
    """The setup with what the row's script says over it.

    Raises
    ------
    InputError
        If a switch has a value that it cannot have.
    """
    variables = variables_of(row)
    if not variables:
        return setup
    sections = {name: dict(keys) for name, keys in (setup.sections or {}).items()}
    for section, keys in entry_of(row).get("program", {}).items():
        sections.setdefault(section, {}).update(keys)
    for switch in (one for one in switches() if one.counts(variables)):
        for name in sorted(filter(switch.fits, variables)):
            for section, keys in switch.tables(name, variables[name]).items():
                sections.setdefault(section, {}).update(keys)
    for tables in _recomputed(row, variables):
        for section, keys in tables.items():
            sections.setdefault(section, {}).update(keys)
    return replace(setup, sections=sections, unsaid=_unsaid(variables))


def _recomputed(
    row: Mapping[str, str], variables: Mapping[str, str]
) -> list[Mapping[str, Mapping[str, Any]]]:
    """Layers that run again. They are for a GPU's memory: the script that a readme names may be another GPU's."""
    script = re.search(SCRIPT, row.get("notes", ""))
    named = re.search(OF_AMD, script[1]) if script else None
    other = named is not None and named[0] not in row.get("hardware", "")
    return [] if other else list(recomputed(variables).values())


def variables_of(row: Mapping[str, str]) -> dict[str, str]:
    """The variables that the script of a row exports and its pretrain.py uses; {} of a row that names no script."""
    notes = row.get("notes", "")
    if re.search(SCRIPT, notes) is None:
        return {}
    entry = entry_of(row)
    exported = entry.get("env", {}).items()
    repeated = dict(re.findall(VARIABLE, notes))
    variables = {**dict(pair for each in exported for pair in apart(*each)), **repeated}
    unread = entry.get("unread", ())
    return {name: value for name, value in variables.items() if name not in unread}


def entry_of(row: Mapping[str, str]) -> Mapping[str, Any]:
    """The system's entry in the file of configurations, if it has the script that the row names."""
    script = re.search(SCRIPT, row.get("notes", ""))
    address = re.search(SYSTEM, row.get("url_or_repo", ""))
    entry = _configs().get("/".join(address.groups()), {}) if address else {}
    same = script and str(entry.get("config", "")).rpartition("/")[2] == script[1]
    return entry if same else {}


def apart(name: str, text: str) -> Iterator[tuple[str, str]]:
    """A variable's value without the end of its command, and those that the same line exports behind it."""
    value, *others = re.split(r"\s*&&\s*export\s+", text)
    yield name, value.rstrip(" ;\\")
    for other in others:
        further, _, said = other.partition("=")
        yield further, said.rstrip(" ;\\")


@lru_cache(maxsize=1)
def _configs() -> Mapping[str, Mapping[str, Any]]:
    configs: dict[str, Mapping[str, Any]] = {}
    for path in FILES:
        configs |= json.loads(path.read_text(encoding="utf-8"))
    return configs


def _unsaid(variables: Mapping[str, str]) -> tuple[str, ...]:
    """What is not simulated of a script, each thing once."""
    counted = [one for one in switches() if one.counts(variables)]
    texts = [_unsaid_of(counted, name, variables[name]) for name in sorted(variables)]
    return tuple(filter(None, texts))


def _unsaid_of(counted: Sequence[Rule], name: str, value: str) -> str:
    switch = next((one for one in counted if one.fits(name)), None)
    if switch is None:
        return f"{name}={value} unknown"
    return switch.unsaid(name, value)
