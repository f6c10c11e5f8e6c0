"""Routing as input: laws, presets, recorded counts; what the busiest rank does to a step."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.workloads import histogram, routing
from prestep.workloads.megatron.shard import busiest
from tests.sample import together

EXPERTS = 16
COUNTS = st.lists(st.integers(0, 10_000), min_size=EXPERTS, max_size=EXPERTS).filter(
    any
)
MODEL = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "ffn": 4096,
    "vocab": 4096,
    "experts": EXPERTS,
    "experts_per_token": 4,
    "moe_ffn": 1024,
}


def tables(imbalance: object, **megatron: Any) -> dict[str, Any]:
    return {
        "cluster": {"name": "rail-h100", "hosts": 1, "host_factor": 0.01},
        "model": MODEL,
        "training": {"framework": "megatron", "seq_len": 4096},
        "parallel": {"dp": 8, "ep": 8, "imbalance": imbalance},
        "megatron": megatron,
    }


def step(imbalance: object, **megatron: Any) -> float:
    return _step(json.dumps(imbalance), json.dumps(megatron))


@cache
def _step(imbalance: str, megatron: str) -> float:
    keys = tables(json.loads(imbalance), **json.loads(megatron))
    return predict(parse_scenario(keys, "test")).step_time


@given(COUNTS)
def test_recorded_tokens_are_conserved(counts: list[int]) -> None:
    """Loads are the counts over their mean, whatever their number: a step has its own tokens."""
    (loads,) = routing.layers_of(counts, EXPERTS)
    assert sum(loads) == pytest.approx(EXPERTS)
    assert loads == pytest.approx([EXPERTS * n / sum(counts) for n in counts])


@given(COUNTS, st.randoms(use_true_random=False), st.sampled_from([1, 2, 4, 8, 16]))
def test_who_is_busiest_does_not_matter(
    counts: list[int], random: Any, ranks: int
) -> None:
    """Ranks in another order, and a rank's experts in another order, leave the busiest rank's tokens as they are."""
    local = EXPERTS // ranks
    hosts = [counts[i : i + local] for i in range(0, EXPERTS, local)]
    random.shuffle(hosts)
    for host in hosts:
        random.shuffle(host)
    moved = [n for host in hosts for n in host]
    assert sum(busiest(moved, ranks, None, False)) == sum(
        busiest(counts, ranks, None, False)
    )


def test_ranks_in_another_order_take_the_same_step() -> None:
    """A symmetric cluster does not care which rank is the busiest."""
    counts = [1 + i for i in range(EXPERTS)]
    assert step(counts) == step(counts[::-1]) == step(counts[4:] + counts[:4])


def test_even_counts_are_uniform() -> None:
    """Whatever their sum, and so is forced balance over any counts."""
    assert step("uniform") == step([7] * EXPERTS) == step("gini 0")
    assert step("uniform") == step("gini 0.7", moe_force_load_balancing=True)


@pytest.mark.parametrize("dispatcher", ["alltoall", "flex"])
def test_more_imbalance_is_never_faster(dispatcher: str) -> None:
    """Up to where one expert has all tokens: its rank's load only falls from there, with that of its others.

    Tokens travel in whole rows, so that no size is aligned worse than another.
    """
    laws = [f"gini {g / 50}" for g in range(0, 50, 4)]
    most = EXPERTS / MODEL["experts_per_token"]
    partial = [law for law in laws if max(loads_of(law)) < most]
    times = [step(law, moe_token_dispatcher=dispatcher) for law in partial]
    assert times == sorted(times) and times[-1] > 1.2 * times[0]


@settings(max_examples=8, deadline=None)
@given(COUNTS)
def test_counts_moved_towards_the_mean_are_never_slower(counts: list[int]) -> None:
    mean = sum(counts) / EXPERTS
    nearer = [(n + mean) / 2 for n in counts]
    assert step("uniform") <= step(nearer) <= step(counts)


@settings(max_examples=8, deadline=None)
@given(COUNTS)
def test_a_capacity_of_the_mean_is_never_slower_than_dropless(
    counts: list[int],
) -> None:
    dropped = step(counts, moe_capacity=1.0)
    assert dropped <= step(counts, moe_capacity=1.5) <= step(counts)
    assert dropped <= step("uniform")


@given(st.floats(0, 0.85), st.sampled_from([8, 32, 128, 256]))
def test_a_law_has_the_coefficient_that_was_asked_for(
    wanted: float, experts: int
) -> None:
    """An even law has 0; one expert that gets all has nearly 1."""
    (loads,) = routing.layers_of(f"gini {wanted}", experts)
    assert routing.gini(loads) == pytest.approx(min(wanted, 1 - 1 / experts), abs=2e-3)


def loads_of(law: str) -> tuple[float, ...]:
    return routing.layers_of(law, EXPERTS, MODEL["experts_per_token"])[0]


@given(st.sampled_from(["gini", "zipf"]), st.floats(0, 0.99), st.data())
def test_no_expert_has_more_than_all_tokens(law: str, n: float, data: Any) -> None:
    """A token chooses different experts: one has at most experts / chosen times the mean, by whatever law."""
    experts = data.draw(st.integers(2, 64))
    chosen = data.draw(st.integers(1, experts))
    (loads,) = routing.layers_of(f"{law} {n}", experts, chosen)
    assert sum(loads) == pytest.approx(experts)
    assert max(loads) <= experts / chosen * (1 + 1e-12)
    if law == "gini" and n < 0.9 * (1 - chosen / experts):
        assert routing.gini(loads) == pytest.approx(n, abs=2e-3)


def test_gini_by_hand() -> None:
    """Of 1 and 3 it is half their difference over their sum; of one that has all among four, three quarters."""
    assert routing.gini([1, 3]) == pytest.approx(0.25)
    assert routing.gini([0, 0, 5, 0]) == pytest.approx(0.75)


def test_presets_have_a_source() -> None:
    """And are what the law of their coefficient is."""
    for name, preset in routing.presets().items():
        assert "arXiv" in preset.source or "github.com" in preset.source
        assert routing.layers_of(name, 64) == routing.layers_of(
            f"gini {preset.gini}", 64
        )


def test_files_say_the_same(tmp_path: Path) -> None:
    """CSV and JSON, rows in any order and in parts; a layer or all."""
    layers = [[i + 1.0 for i in range(EXPERTS)], [9.0] * EXPERTS]
    rows = [
        f"{layer},{expert},{half}"
        for layer, counts in enumerate(layers)
        for expert, n in enumerate(counts)
        for half in (n / 4, 3 * n / 4)
    ]
    table, lists, named = (tmp_path / n for n in ("a.csv", "b.json", "c.json"))
    table.write_text("layer,expert,tokens\n" + "\n".join(reversed(rows)) + "\n")
    lists.write_text(json.dumps(layers))
    named.write_text(json.dumps({"10": layers[1], "9": layers[0]}))
    read = [histogram.read(str(path)) for path in (table, lists, named)]
    assert read[0] == read[1] == read[2] == tuple(map(tuple, layers))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 2**16), min_size=6, max_size=40))
def test_a_map_says_what_its_counts_do(tmp_path_factory: Any, drawn: list[int]) -> None:
    """By numbers of experts or by truth: each token's choices are counted once, in its own layer, and none is lost."""
    folder = tmp_path_factory.mktemp("maps")
    random = np.random.default_rng(drawn)
    tokens, layers, choices = len(drawn), 3, 4
    chosen = np.array(
        [
            [random.permutation(EXPERTS)[:choices] for _ in range(layers)]
            for _ in range(tokens)
        ]
    )
    truth = np.zeros((layers, tokens, EXPERTS), bool)
    for token, layer, choice in np.ndindex(chosen.shape):
        truth[layer, token, chosen[token, layer, choice]] = True
    for name, made in (("numbers", chosen), ("truth", truth), ("one", truth[0])):
        np.save(folder / f"{name}.npy", made)
    read = histogram.read(str(folder / "numbers.npy"), EXPERTS)
    assert read == histogram.read(str(folder / "truth.npy"))
    assert read[:1] == histogram.read(str(folder / "one.npy"))
    assert all(sum(layer) == tokens * choices for layer in read)


def test_a_recorded_map_takes_the_step_of_its_counts(tmp_path: Path) -> None:
    """The busiest of two experts of a rank has three times its share; a step is as long as with those counts."""
    chosen = np.arange(4 * EXPERTS).reshape(-1, 4) % EXPERTS
    chosen = np.concatenate([chosen, np.full((EXPERTS, 4), 3)])
    np.save(tmp_path / "map.npy", chosen)
    counts = np.bincount(chosen.ravel(), minlength=EXPERTS)
    assert step(str(tmp_path / "map.npy")) == step(counts.tolist()) > step("uniform")


def test_the_busiest_rank_has_at_least_the_mean() -> None:
    """Of every law and preset; of uniform loads just that."""
    for name in ("uniform", "zipf", "zipf 2", "gini 0.4", *routing.presets()):
        (loads,) = routing.layers_of(name, 64)
        for ranks in (2, 8, 64):
            most = sum(busiest(loads, ranks, None, False)) * ranks / 64
            assert most >= 1 - 1e-9
            assert name != "uniform" or most == pytest.approx(1)


def test_a_file_of_layers(tmp_path: Path) -> None:
    """Each layer waits for its own busiest rank: time lies between those of the layers, linear in how many are uneven."""
    even, uneven = [1] * EXPERTS, [1] * (EXPERTS - 1) + [40]
    scenario = tmp_path / "job.toml"
    text = '[cluster]\nname = "rail-h100"\nhosts = 1\nhost_factor = 0.01\n[model]\n'
    text += "\n".join(f"{key} = {json.dumps(value)}" for key, value in MODEL.items())
    text += '\n[training]\nframework = "megatron"\nseq_len = 4096\n[parallel]\n'
    scenario.write_text(text + 'dp = 8\nep = 8\nimbalance = "layers.json"\n')

    def of(layers: list[list[int]]) -> float:
        (tmp_path / "layers.json").write_text(json.dumps(layers))
        return predict(load_scenario(scenario)).step_time

    none, half, every = (of([uneven] * n + [even] * (4 - n)) for n in (0, 2, 4))
    assert none == pytest.approx(step("uniform"), rel=1e-9)
    assert half == pytest.approx((none + every) / 2, rel=0.02)
    assert of([uneven]) == pytest.approx(every, rel=1e-9)


@together(
    ("name", "text", "said"),
    [
        ("a.csv", "expert,tokens\n0,x\n", "line 2"),
        ("a.csv", "who,what\n", "header"),
        ("a.csv", "expert,tokens\n", "no layer"),
        ("a.csv", "expert,tokens\n-1,3\n", "from 0 on"),
        ("a.json", "[1, 2", "a list of counts"),
        ("a.json", '{"x": [1]}', "a list of counts"),
        ("a.json", "[-1, 2]", "no count below 0"),
        ("a.json", "[0, 0]", "no count below 0"),
        ("a.json", "[[1, 2], [1]]", "as many in every layer"),
        ("a.json", "[1, 2]", "2 experts"),
        ("a.json", json.dumps([[1] * EXPERTS] * 2), "1 or 4"),
    ],
)
def test_files_that_say_nothing_are_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """With the place, and what would do."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        predict(parse_scenario(tables(str(tmp_path / name)), "test"))
