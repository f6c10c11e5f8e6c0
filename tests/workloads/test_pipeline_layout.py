"""Cuts of a pipeline in Megatron's own words (--pipeline-model-parallel-layout)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.megatron.pipeline_layout import pipeline_layout, spelled
from prestep.workloads.recipes._rules import typed


def scenario(
    text: str | None,
    layers: int = 8,
    mtp: int = 0,
    chunks: int = 1,
    vocab: int = 32_000,
    **megatron: object,
) -> Scenario:
    written = {} if text is None else {"pipeline_layout": text}
    table = {
        "model": {
            "kind": "transformer", "layers": layers, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": vocab,
            "mtp_layers": mtp,
        },
        "training": {"seq_len": 512, "micro_batch": 1, "global_batch": 8, "framework": "megatron"},
        "parallel": {"pp": 4, "vpp": chunks, "schedule": "interleaved" if chunks > 1 else "1f1b"},
        "megatron": {**written, **megatron},
        "cluster": {"name": "h200-host-4", "host_factor": 0.01},
    }  # fmt: skip
    return parse_scenario(table, "test")


def test_megatrons_own_example() -> None:
    """Megatron's help: three layers beside the embedding, twice 29 pairs, predictions and the loss alone."""
    made = pipeline_layout("Et*3|(tt|)*29,m|L")
    assert made.stages == ("Ettt", *29 * ["tt"], "m", "L")
    assert made.count("t") == 61 and made.prediction == 30


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9))
def test_a_layout_says_its_layers(counts: list[int]) -> None:
    """Whatever the counts: each stage holds the next ones, and repetitions written out are the same layout."""
    short = "|".join(f"t*{n}" if n else "" for n in counts)
    long = "|".join("t" * n for n in counts)
    made = pipeline_layout(f"E{short}L")
    assert made == pipeline_layout(f"E{long}L")
    assert [len(cut) for cut in made.layers] == counts
    assert [i for cut in made.layers for i in cut] == list(range(sum(counts)))


def test_an_even_layout_changes_nothing() -> None:
    """Written out, the cut that Megatron makes by itself takes as long."""
    plain, said = predict(scenario(None)), predict(scenario("Ett|tt|tt|ttL"))
    assert said.step_time == plain.step_time
    assert said.peak_memory == plain.peak_memory


def test_fewer_layers_beside_the_head_take_less_time() -> None:
    """A heavy head has the pipeline wait; one layer less beside it, and one more elsewhere, is faster."""
    even = predict(scenario("Ett|tt|tt|ttL", vocab=256_000)).step_time
    assert predict(scenario("Ett|ttt|tt|tL", vocab=256_000)).step_time < even


def test_predictions_before_the_last_stage() -> None:
    """Multi-token prediction in a stage of its own keeps all parameters, and none of its layers beside the head."""
    beside = predict(scenario("Ett|ttt|ttt|mL", mtp=1))
    apart = predict(scenario("Ett|ttt|ttt,m|L", mtp=1))
    totals = [
        sum(m.parameters for m in one.peak_memory.values()) for one in (beside, apart)
    ]
    assert totals[0] == totals[1]
    last = max(beside.peak_memory)
    assert apart.peak_memory[last].parameters < beside.peak_memory[last].parameters


def test_lists_of_stages_are_the_same_layout() -> None:
    """Recipes in Python write parts by name."""
    stages = [["embedding", "decoder"], ["decoder"] * 2, ["decoder", "mtp", "loss"]]
    assert spelled(stages) == "Et|tt|tmL"
    assert typed("x", stages, "stages") == typed("x", "Et|tt|tmL", "stages")
    with pytest.raises(InputError, match="list of stages"):
        typed("x", [["encoder"]], "stages")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Ett|tt|tt|tL", "7 layers"),
        ("Ett|tt|ttttL", "3 stages"),
        ("Ett|tt|tt|ttmL", "1 predictions"),
        ("tt|tt|tt|ttL", "begin with E"),
        ("Ett|tt|tt|tt", "end with L"),
        ("Ett|tx|tt|ttL", '"x" is none'),
        ("E(tt|)*99999999L", "parts"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(text: str, why: str) -> None:
    """Counts that are not the model's or the layout's, and texts that are no layout."""
    with pytest.raises(InputError, match="pipeline_layout") as told:
        predict(scenario(text))
    assert why in str(told.value)


def test_two_cuts_at_once_are_refused() -> None:
    """A layout says where embedding and head are: they do not count as layers beside it."""
    with pytest.raises(InputError, match="account_for_loss"):
        predict(scenario("Ett|tt|tt|ttL", account_for_loss=True))


def test_chunks_in_the_order_of_a_pass() -> None:
    """With two chunks a rank has a stage of each half."""
    made = predict(scenario("Et|(t|)*6tL", chunks=2))
    assert made.step_time == predict(scenario(None, chunks=2)).step_time
