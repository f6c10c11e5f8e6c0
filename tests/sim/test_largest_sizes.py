"""What is far beyond anything physical is refused, with where, what it is and what it may be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import SECTIONS
from tests.sample import together

SMALL: dict[str, Any] = {
    "cluster": {"name": "dgx-h100"},
    "model": {"kind": "transformer", "hidden": 512, "layers": 2, "heads": 8}
    | {"ffn": 1024, "vocab": 1000},
    "training": {"seq_len": 256},
    "parallel": {"dp": 8},
}
BOUNDED = [
    (f"{name}.{entry.name}", entry.metadata["most"])
    for name, cls in SECTIONS.items()
    for entry in fields(cls)
    if entry.metadata.get("most")
]


def _with(**tables: dict[str, Any]) -> dict[str, Any]:
    return {name: SMALL.get(name, {}) | tables.get(name, {}) for name in SMALL | tables}


@together(("key", "most"), BOUNDED)
def test_a_size_beyond_its_bound_is_refused(key: str, most: float) -> None:
    """One more than the most that a key takes: its name, the number and the bound are in the message."""
    section, _, name = key.partition(".")
    value: Any = int(most) + 1
    tables = _with(**{section: {name: [value] if name == "sizes" else value}})
    with pytest.raises(InputError) as refused:
        parse_scenario(tables, "job.toml")
    lines = [line for line in str(refused.value).splitlines() if key in line]
    assert len(lines) == 1 and str(value) in lines[0] and f"{most:,.0f}" in lines[0]


def test_every_size_of_a_model_has_a_bound() -> None:
    """The keys that multiply work: widths, heads, experts, vocabulary, tokens and samples."""
    named = {key for key, _ in BOUNDED}
    model = {"hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts"}
    training = {"seq_len", "micro_batch", "global_batch"}
    assert {f"model.{key}" for key in model} <= named
    assert {f"training.{key}" for key in training} <= named


def test_a_step_of_years_is_refused() -> None:
    """Sizes of which each is possible make a step that nobody waits for."""
    tables = _with(
        model={"hidden": 2**17, "heads": 1024, "ffn": 2**19, "layers": 1000},
        training={"seq_len": 2**24, "micro_batch": 64},
    )
    with pytest.raises(InputError, match=r"model, training: found a step of .* years"):
        predict(parse_scenario(tables, "job.toml"))


def test_a_configuration_is_refused_by_the_same_bounds(tmp_path: Path) -> None:
    """Of Hugging Face's config.json the file and the key are named."""
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,'
        '"intermediate_size": 99999999999, "vocab_size": 32000, "num_key_value_heads": 8}'
    )
    scenario = tmp_path / "job.toml"
    scenario.write_text(
        '[cluster]\nname = "dgx-h100"\n[model]\nfile = "config.json"\n[parallel]\ndp = 8\n'
    )
    done = CliRunner().invoke(cli.main, ["run", str(scenario)])
    assert done.exit_code == 2 and "99999999999" in done.output
    assert "config.json" in done.output and "at most 16,777,216" in done.output
