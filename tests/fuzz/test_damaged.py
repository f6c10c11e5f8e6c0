"""Whatever a file, a command line or an answer says: a result, or a message with a place, within ten seconds of work.

Inputs are drawn by hypothesis: in CI always the same, so that a change is judged by what it changes; `make hunt` draws
others, and reduces what breaks a command to little.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import inputs, options, recorded
from tests.fuzz.damage import Chance, damaged
from tests.fuzz.running import outcome
from tests.fuzz.seeds import seeds

#: Recipes are damaged as they are imported.
SEEDS = {
    name: seed
    for name, seed in seeds().items()
    if not (name.startswith("recipe_") and name.endswith("_run"))
}
#: An input of a kind: with a source of chance, in a folder; what was wrong, empty for nothing.
Kind = Callable[[Chance, Path], str]
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        *(recorded.capture, recorded.results, recorded.kernels, recorded.ranks),
        *(recorded.packed, inputs.mcp, inputs.explorer, inputs.init, inputs.scripts),
        *(inputs.places_of_scripts, inputs.replay, inputs.places, inputs.quantity),
        *(inputs.circles, inputs.surroundings),
        *(options.strange_options, options.mixed_commands),
    )
}
#: One fails for many reasons: hypothesis may change all that it drew.
CHANCE = st.randoms(use_true_random=False)
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.parametrize("name", SEEDS)
@settings(max_examples=6, suppress_health_check=CHECKS)
@given(chance=CHANCE)
def test_a_damaged_file_is_read_or_explained(
    name: str, tmp_path: Path, chance: Chance
) -> None:
    """Other letters, other values, parts of another file, other bytes."""
    seed, path = SEEDS[name], tmp_path / f"x{SEEDS[name].suffix}"
    seed.write(damaged(seed, SEEDS, chance), path)
    assert outcome(seed, path, tmp_path / "out.json") == ""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, suppress_health_check=CHECKS)
@given(chance=CHANCE)
def test_a_strange_input_is_answered_or_explained(
    kind: str, tmp_path_factory: pytest.TempPathFactory, chance: Chance
) -> None:
    """Recordings, tables, calls, questions, answers, scripts, amounts, circles, places, surroundings, options."""
    folder = tmp_path_factory.mktemp(kind)
    options.prepare(folder)
    with chdir(folder):  # what is written under a strange name is written there
        assert KINDS[kind](chance, folder) == ""
