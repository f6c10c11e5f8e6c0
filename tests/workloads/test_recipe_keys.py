"""Keys that decide what a step computes: understood or refused, also with --lenient; others are named and passed over."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.recipes import _rules
from prestep.workloads.recipes._rules import Rule, decides
from tests.sample import together
from tests.workloads.recipe_examples import CLUSTER, EXAMPLES, text_with

LENIENT = "recipe.lenient=true"
#: Keys that nobody has, of a degree, a size, a layout and a number format; and others that change no step.
DECIDING = ("new_parallel_size", "new_hidden_size", "new_pipeline_layout", "new_dtype")
PASSING = ("new_log_interval", "new_seed", "new_save_path", "new_key")


def loaded(folder: Path, form: str, key: str, *options: str) -> Scenario:
    """A recipe of a format with one more key, in place of the one that nobody knows."""
    example = EXAMPLES[form]
    strange = example.strange
    name = (
        "NEW_KEY"
        if "NEW_KEY" in strange
        else "new-key"
        if "new-key" in strange
        else "new_key"
    )
    own = (
        key.upper() if name.isupper() else key.replace("_", "-") if "-" in name else key
    )
    path = folder / example.name
    path.write_text(text_with(example, strange.replace(name, own)))
    return load_scenario(path, (CLUSTER, *example.options, *options))


FORMS = sorted(
    name for name, example in EXAMPLES.items() if "new" in example.strange.lower()
)


@pytest.mark.parametrize("key", DECIDING)
@together("form", FORMS)
def test_what_decides_a_step_is_never_passed_over(
    form: str, key: str, tmp_path: Path
) -> None:
    """The error names the key and its place; --lenient changes nothing about it."""
    for options in ((), (LENIENT,)):
        with pytest.raises(InputError) as error:
            loaded(tmp_path, form, key, *options)
        [mistake] = error.value.mistakes
        assert key in mistake.key.lower().replace("-", "_")
        assert EXAMPLES[form].name in mistake.where


@pytest.mark.parametrize("key", PASSING)
@together("form", FORMS)
def test_what_decides_nothing_is_named(form: str, key: str, tmp_path: Path) -> None:
    """Logs, seeds and paths are a note."""
    notes = loaded(tmp_path, form, key).notes
    assert any(key in note.lower().replace("-", "_") for note in notes)


@together(
    ("key", "value", "decided"),
    [
        ("model.num_new_heads", 8, True),
        ("model.num_new_heads", None, False),
        ("EXPERT_PARALLEL", 4, True),
        ("expert_parallel", 1, False),
        ("activation_checkpointing.policy", "op", True),
        ("checkpoint.async_layers", 4, False),
        ("train.eval_batch_size", 4, False),
        ("dataset.seq_length", 4096, True),
        ("tokenizer.vocab_file", "a.json", False),
        ("fp8_new_recipe", "rowwise", True),
        ("optimizer.lr", 1e-3, False),
    ],
)
def test_words_of_keys(key: str, value: object, decided: bool) -> None:
    """A person who reads the key alone would say the same."""
    assert decides(key, value) is decided


def test_a_pattern_covers_what_it_names(tmp_path: Path) -> None:
    """`model.config.*` is about files; a number of layers below it is none. One that is written out was looked at."""
    rule = Rule(("model.config.*",), ignored="files")
    assert rule.swallows("model.config.num_hidden_layers", 2)
    assert not rule.swallows("model.config.revision", "main")
    own = Rule(("*.fp8_amax_*",), ignored="history of scales")
    assert not own.swallows("model.fp8_amax_history", 16)


@pytest.mark.parametrize(
    "file", sorted(_rules.WORDS.parent.glob("*.toml")), ids=lambda file: file.stem
)
def test_every_value_that_a_rule_lists_is_read(file: Path) -> None:
    """A key that has a name of its own in some trainers' files takes that name, whatever its kind is."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("rule", ())
    for rule in _rules.rules(file) if entries else ():
        for value, tables in rule.values.items():
            assert rule.tables(rule.names[0], value) == tables, rule.names


def mlperf(folder: Path, text: str) -> Path:
    path = folder / "config.sh"
    path.write_text(
        "export MODEL_SIZE=405b\nexport MINIBS=8\nexport DGXNNODES=4\nexport DGXNGPU=8\nexport PIPELINE_MODEL_PARALLEL=4\n"
        + text
    )
    return path


def test_experts_and_layouts_of_submissions(tmp_path: Path) -> None:
    """EXPERT_PARALLEL and PIPELINE_LAYOUT are what Megatron's arguments of these names are."""
    layout = "Et*15|t*16|t*16|t*16|t*16|t*16|t*16|t*15L"
    path = mlperf(tmp_path, f'export PIPELINE_LAYOUT="{layout}"\n')
    scenario = load_scenario(path, ("cluster.name=rail-h100",))
    assert scenario.megatron.pipeline_layout == layout
    assert (scenario.parallel.pp, scenario.parallel.vpp) == (4, 2)
    path = mlperf(tmp_path, "export EXPERT_PARALLEL=4\n")
    with pytest.raises(InputError, match=r"parallel\.ep"):
        load_scenario(path, ("cluster.name=rail-h100", LENIENT))


@pytest.mark.parametrize(
    ("line", "kernel", "reason"),
    [
        ("", "auto", "where it is told nothing else"),
        ("flash_attention: true\n", "flash2", "for which flash_attention asks"),
    ],
)
def test_attention_has_one_reason(
    line: str, kernel: str, reason: str, tmp_path: Path
) -> None:
    """A recipe that asks for FlashAttention is not told what PyTorch takes where it is told nothing."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\n"
        + line
    )
    scenario = load_scenario(path, (CLUSTER,))
    assert scenario.pytorch.attention == kernel
    [note] = [note for note in scenario.notes if "attention by" in note]
    assert reason in note


@together("form", FORMS)
def test_the_command_line_changes_a_recipes_own_keys(form: str, tmp_path: Path) -> None:
    """`recipe.KEY=VALUE` is the file with that value: a key that nobody has is told of as if it stood there."""
    example = EXAMPLES[form]
    path = tmp_path / example.name
    path.write_text(text_with(example))
    inside = "modules.pre_trainer.overrides." if form == "primus" else ""
    change = f"recipe.{inside}new_parallel_size=2"
    with pytest.raises(InputError) as error:
        load_scenario(path, (CLUSTER, *example.options, change))
    [mistake] = error.value.mistakes
    assert mistake.key.endswith("new_parallel_size")
