"""What every format of recipes keeps to: it knows its own files, says what it did not take over, and never fails otherwise."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.formats.mlperf_scripts import CONFIGS
from prestep.sim import plugins
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import SECTIONS, Scenario
from prestep.workloads import recipes
from prestep.workloads.models.model import MODELS
from prestep.workloads.recipes import _models
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._rules import Rule, rules
from tests.sample import together
from tests.workloads.recipe_examples import CLUSTER, EXAMPLES, Example, text_with

FOLDER = Path(recipes.__file__).parent
#: Tables of other things than rules.
OTHERS = ("_benchmarks", "_models", "_words")
TABLES = sorted(path for path in FOLDER.glob("*.toml") if path.stem not in OTHERS)
RULES = [(path.stem, rule) for path in TABLES for rule in rules(path)]
NAMES = sorted(EXAMPLES)


def written(folder: Path, example: Example, line: str = "") -> Path:
    path = folder / example.name
    path.write_text(text_with(example, line))
    return path


def loaded(path: Path, example: Example, *options: str) -> Scenario:
    return load_scenario(path, (CLUSTER, *example.options, *options))


def bare(scenario: Scenario) -> dict[str, Any]:
    """What a scenario says, without where it came from."""
    return scenario.sections()


def test_every_format_has_an_example() -> None:
    """A new format is tested as soon as its file is there."""
    assert set(recipes.formats()) == set(EXAMPLES)


@together("name", NAMES)
def test_a_format_says_how_its_files_look(name: str) -> None:
    """`LOOKS` is for the reader of an error; the docstring is for `prestep list`."""
    module = plugins.load("prestep.workloads.recipes", name)
    assert module.LOOKS and module.__doc__


@together("name", NAMES)
def test_one_format_knows_a_file(name: str, tmp_path: Path) -> None:
    """No two formats recognise one file, so their order does not matter."""
    document = recipes.document_of(written(tmp_path, EXAMPLES[name]))
    known = [
        other
        for other in recipes.formats()
        if plugins.load_function("prestep.workloads.recipes", other, "recognise")(
            document
        )
    ]
    assert known == [name]


@together("name", NAMES)
def test_a_recipe_is_the_scenario_that_a_person_would_write(
    name: str, tmp_path: Path
) -> None:
    """Key by key the same, so it takes the same time."""
    example = EXAMPLES[name]
    by_hand = parse_scenario(example.scenario, "by hand")
    assert bare(loaded(written(tmp_path, example), example)) == bare(by_hand)


@together("name", [n for n in NAMES if EXAMPLES[n].lost])
def test_what_is_not_simulated_is_refused_unless_that_is_allowed(
    name: str, tmp_path: Path
) -> None:
    """The error names the file and says why; with --lenient it is a note, and nothing else changes."""
    example = EXAMPLES[name]
    plain = loaded(written(tmp_path, example), example)
    path = written(tmp_path, example, example.lost)
    with pytest.raises(InputError, match="--lenient") as error:
        loaded(path, example)
    assert all(str(path) in mistake.where for mistake in error.value.mistakes)
    lenient = loaded(path, example, "recipe.lenient=true")
    assert bare(lenient) == bare(plain)
    assert any("not simulated" in note for note in lenient.notes)


@together("name", [n for n in NAMES if EXAMPLES[n].strange])
def test_a_key_that_nobody_knows_is_named(name: str, tmp_path: Path) -> None:
    """It changes nothing, and a note has its name."""
    example = EXAMPLES[name]
    plain = loaded(written(tmp_path, example), example)
    strange = loaded(written(tmp_path, example, example.strange), example)
    assert bare(strange) == bare(plain)
    assert any("new_key" in note.lower() for note in strange.notes)
    assert not any("not understood" in note for note in plain.notes)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_recipe_is_an_explained_mistake(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    """A line is lost, doubled or replaced: the scenario loads, or an InputError says what is wrong."""
    example = EXAMPLES[name]
    lines = text_with(example).splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    value = data.draw(
        st.sampled_from(
            (
                "",
                "-1",
                "null",
                "[]",
                "nan",
                "1e99",
                "{",
                "}",
                '"',
                "true",
                "x: y: z",
                "\t",
            )
        )
    )
    way = data.draw(st.sampled_from(("drop", "twice", "value", "cut")))
    if way == "value":
        for sign in (":", "=", " "):
            if sign in lines[at]:
                lines[at] = f"{lines[at].partition(sign)[0]}{sign}{value}"
                break
    kept = {
        "drop": lines[:at] + lines[at + 1 :],
        "twice": [*lines[: at + 1], *lines[at:]],
        "cut": lines[:at],
    }
    path = tmp_path / example.name
    path.write_text("\n".join(kept.get(way, lines)))
    try:
        assert isinstance(loaded(path, example, "recipe.lenient=true"), Scenario)
    except InputError as error:
        assert all(mistake.where and mistake.expected for mistake in error.mistakes)


@together(
    ("table", "rule"),
    RULES,
)
def test_a_rule_says_one_thing_of_keys_that_scenarios_have(
    table: str, rule: Rule
) -> None:
    """It sets a key, leaves something out, or says why a key does not matter; its keys exist."""
    ways = [
        bool(rule.key or rule.values),
        bool(rule.lost and not rule.values),
        bool(rule.assumed),
        bool(rule.ignored),
        bool(rule.read),
    ]
    assert sum(ways) == 1 or (rule.values and sum(ways) == 2), rule
    places = [rule.key] if rule.key else []
    places += [
        f"{s}.{k}"
        for made in rule.values.values()
        for s, keys in made.items()
        for k in keys
    ]
    for place in places:
        section, _, key = place.partition(".")
        assert key in {entry.name for entry in fields(SECTIONS[section])}, place


def test_models_that_recipes_name_are_there() -> None:
    """Every pattern leads to a model's file."""
    for _, name in _models._patterns():
        assert (MODELS / f"{name}.toml").is_file(), name


@pytest.mark.parametrize("system", sorted(json.loads(CONFIGS.read_text())))
def test_every_script_of_mlperf_is_understood(system: str, tmp_path: Path) -> None:
    """As submitted it loads, or says what is not simulated; with --lenient it loads."""
    entry = json.loads(CONFIGS.read_text())[system]
    folder = tmp_path / system.rpartition("/")[2]
    folder.mkdir()
    path = folder / Path(entry["config"]).name
    path.write_text("".join(f"export {k}={v}\n" for k, v in entry["env"].items()))
    gpus = "gb200-nvl72" if "GB" in path.name else "rail-h100"
    recipe = recipes.read(recipes.document_of(path))
    foreign = "MI3" in entry["config"]
    assert foreign or not recipe.unknown
    try:
        scenario = load_scenario(path, (f"cluster.name={gpus}", "recipe.lenient=true"))
    except InputError as error:
        # one submission has the name of a script and nothing in it
        assert set(entry["env"]) == {"DGXSYSTEM"} and "MINIBS" in str(error)
    else:
        assert scenario.parallel.dp * scenario.parallel.tp > 1
        assert scenario.training.framework == "megatron"


def test_documents_are_values(tmp_path: Path) -> None:
    """Reading a recipe changes nothing in its document: it reads the same twice."""
    for example in EXAMPLES.values():
        document = recipes.document_of(written(tmp_path, example))
        again = replace(document)
        assert isinstance(document, Document)
        assert recipes.read(document) == recipes.read(again)
