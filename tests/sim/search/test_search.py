"""Searching the best layout: pruning changes nothing, nothing over memory is ranked, and the same is found every time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.analysis.memory import needed
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_open, load_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.ranking import Objective
from prestep.sim.studies.search import Options, search, work
from prestep.sim.studies.search.axes import FREE, divisors, read_over
from prestep.sim.studies.search.bounds import bound, quick
from prestep.sim.studies.search.explore import Ranking
from prestep.sim.studies.search.scenario_file import text_of, write_scenario
from prestep.sim.studies.search.space import Candidate, Clusters, space
from prestep.sim.studies.search.words import layout_of, table, to_dict
from tests.executed import executed, step_time

SMALL = 'kind = "transformer"\nhidden = 1024\nlayers = 4\nheads = 8\nffn = 2816\nvocab = 32000'
MOE = 'kind = "transformer"\nhidden = 512\nlayers = 4\nheads = 8\nffn = 1024\nvocab = 32000\nexperts = 4\nexperts_per_token = 2'
CASES = {
    "megatron": (
        "dgx-h100",
        SMALL,
        'framework = "megatron"\nseq_len = 2048\nglobal_batch = 16',
        ["cluster.gpus=4"],
    ),
    "experts": (
        "dgx-h100",
        MOE,
        'framework = "megatron"\nseq_len = 1024\nglobal_batch = 8',
        ["cluster.gpus=4"],
    ),
    "pytorch": ("h200-host-4", SMALL, "seq_len = 1024\nglobal_batch = 8", []),
    "multilayer": (
        "h200-host-4",
        'kind = "mlp"\nsizes = [1024, 4096, 1024]',
        "global_batch = 64",
        [],
    ),
}
FEWER = {
    "megatron": {
        "training.recompute": ("none", "full"),
        "parallel.data_parallel": ("zero1",),
    },
    "experts": {
        "training.recompute": ("none",),
        "training.micro_batch": (1, 4),
        "parallel.data_parallel": ("zero1",),
        "parallel.vpp": (1,),
    },
    "pytorch": {
        "training.micro_batch": (1,),
        "training.recompute": ("none",),
        "parallel.pp": (1, 2),
        "parallel.vpp": (1,),
    },
    "multilayer": {},
}


@pytest.fixture(scope="module")
def remembered() -> dict[str, Callable[[Candidate], Any]]:
    """What a search asks of a layout, by the name of the question."""
    names = ("quickly", "bounded", "simulated")
    return {name: once(getattr(work, name)) for name in names}


@pytest.fixture
def known_layouts(
    remembered: dict[str, Callable[[Candidate], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches of one process find out once what a layout takes, and share it."""
    for name, function in remembered.items():
        monkeypatch.setattr(work, name, function)


def once(function: Callable[[Candidate], Any]) -> Callable[[Candidate], Any]:
    """The same function of a layout, remembered by what the layout is; where its file lies does not count."""
    known: dict[Scenario, Any] = {}

    def remembered(candidate: Candidate) -> Any:
        layout = replace(candidate.scenario, where="")
        if layout not in known:
            known[layout] = function(candidate)
        return known[layout]

    return remembered


def scenario(tmp_path: Path, name: str) -> tuple[Path, list[str]]:
    cluster, model, training, sets = CASES[name]
    path = tmp_path / "s.toml"
    path.write_text(
        f'[cluster]\nname = "{cluster}"\n[model]\n{model}\n[training]\n{training}\n'
    )
    return path, sets


def found(path: Path, sets: list[str], **options: Any) -> Ranking:
    base, batch = load_open(path, sets, FREE)
    return search(base, batch, Options(**options))


def summary(result: Ranking) -> list[tuple[str, float]]:
    return [(layout_of(one.candidate), one.result.step_time) for one in result.ranked]


@pytest.mark.usefixtures("known_layouts")
@pytest.mark.parametrize("name", CASES)
def test_the_best_found_are_those_of_brute_force(tmp_path: Path, name: str) -> None:
    """Pruning leaves the ranking as simulating every layout gives it."""
    path, sets = scenario(tmp_path, name)
    pruned = found(path, sets, over=FEWER[name], top=3)
    brute = found(path, sets, over=FEWER[name], top=3, prune=False)
    assert summary(pruned) == summary(brute)
    assert brute.too_slow == 0
    assert pruned.simulated <= brute.simulated
    assert (
        pruned.simulated + pruned.too_slow + pruned.too_large
        == pruned.valid
        == brute.valid
    )


def test_a_search_that_is_stopped_keeps_what_it_found(tmp_path: Path) -> None:
    """Ctrl-C after the first good layout ranks that one, and says how many are left; before it, nothing is kept."""
    path, sets = scenario(tmp_path, "multilayer")

    def stop(candidate: Candidate, seconds: float) -> None:
        raise KeyboardInterrupt

    result = found(path, sets, better=stop)
    assert result.stopped and len(result.ranked) == 1
    assert "left when the search was stopped" in table(result)
    assert to_dict(result)["stopped"]


def test_the_best_by_energy_are_those_of_brute_force(tmp_path: Path) -> None:
    """Pruning by what waiting GPUs draw leaves the ranking by joules as simulating every layout gives it."""
    path, sets = scenario(tmp_path, "multilayer")
    objective = Objective("energy")
    ways = [
        found(path, sets, top=2, prune=prune, objective=objective)
        for prune in (True, False)
    ]
    assert summary(ways[0]) == summary(ways[1])
    energies = [one.result.energy for one in ways[1].ranked]
    joules = [energy.step_energy for energy in energies if energy]
    assert len(joules) == 2 and joules == sorted(joules)
    entry = to_dict(ways[0], objective)
    assert entry["ranked_by"] == "energy"
    assert entry["ranked"][0]["energy"]["step_energy"] == joules[0]


@pytest.mark.parametrize("name", ["megatron", "pytorch", "experts"])
def test_bounds_are_never_above_what_is_simulated(tmp_path: Path, name: str) -> None:
    """Neither bound on the time exceeds the step time, nor the bound on memory the peak, on sampled layouts."""
    path, sets = scenario(tmp_path, name)
    base, batch = load_open(path, sets, FREE)
    clusters = Clusters()
    every = space(base, batch, {}, clusters).candidates
    for candidate in random.Random(7).sample(every, 12):
        fabric = clusters.fabric(candidate.scenario)
        least, made = (
            bound(candidate.scenario, fabric),
            executed(candidate.scenario, fabric=fabric),
        )
        peak = needed(made.planned, step_time(made))[0]
        assert least.time <= step_time(made), layout_of(candidate)
        rough = quick(candidate.scenario, fabric).bound(candidate.scenario)
        assert rough.time <= step_time(made), layout_of(candidate)
        assert rough.memory <= least.memory, layout_of(candidate)
        assert least.memory <= peak * (1 + 1e-9), layout_of(candidate)


def test_memory_grows_with_the_micro_batch(tmp_path: Path) -> None:
    """Within a family that differs in the micro batch only, a larger one never needs less: so bisection finds the limit."""
    path, sets = scenario(tmp_path, "megatron")
    base, batch = load_open(path, sets, FREE)
    clusters, families = Clusters(), {}
    for candidate in space(base, batch, {}, clusters).candidates:
        families.setdefault(candidate.family, []).append(candidate)
    for family in random.Random(3).sample(
        sorted(families.values(), key=lambda f: f[0].index), 6
    ):
        sizes = [bound(c.scenario, clusters.fabric(c.scenario)).memory for c in family]
        assert sizes == sorted(sizes)


def test_nothing_over_memory_is_ranked(tmp_path: Path) -> None:
    """Every ranked layout fits, and of those that do not the nearest is named."""
    path, sets = scenario(tmp_path, "megatron")
    big = [*sets, "model.hidden=8192", "model.layers=16", "training.seq_len=4096"]
    result = found(
        path,
        big,
        over={"parallel.data_parallel": ("zero1", "none"), "parallel.vpp": (1,)},
        top=2,
    )
    assert result.too_large > 0 and result.least is not None
    assert result.least[0] > result.least[2]
    for one in result.ranked:
        verdict = one.result.out_of_memory
        assert verdict is not None and verdict.fits


def test_the_same_is_found_with_more_processes(tmp_path: Path) -> None:
    """Neither the ranking nor the counts depend on who simulates."""
    path, sets = scenario(tmp_path, "experts")
    one, two = (
        found(path, sets, jobs=jobs, over=FEWER["experts"], top=3) for jobs in (1, 2)
    )
    assert to_dict(one) == to_dict(two)
    assert table(one) == table(two)


def test_no_layout_fits(tmp_path: Path) -> None:
    """A model that is too large anywhere is told with the layout that comes nearest and its largest owner."""
    path, _ = scenario(tmp_path, "megatron")
    result = found(path, ["cluster.gpus=1", "model.hidden=16384", "model.layers=64"])
    assert not result.ranked and result.simulated == 0
    assert "no layout fits" in table(result) and "nearest: " in table(result)
    assert to_dict(result)["nearest_that_does_not_fit"]["needed"] > 80 * 2**30


def test_a_batch_that_nothing_divides(tmp_path: Path) -> None:
    """An odd batch leaves the layouts whose replicas divide it, and says how many it refuses."""
    path, sets = scenario(tmp_path, "megatron")
    result = found(
        path, [*sets, "training.global_batch=7"], over={"training.recompute": ("none",)}
    )
    assert result.ranked
    assert all(7 % one.candidate.scenario.parallel.dp == 0 for one in result.ranked)
    assert result.refused["training.global_batch"] > 0


def test_models_of_other_kinds_have_neither_layers_nor_recomputation(
    tmp_path: Path,
) -> None:
    """An MLP is spread over replicas alone, with as large a micro batch as there is."""
    path, sets = scenario(tmp_path, "multilayer")
    base, _ = load_open(path, sets, FREE)
    made = space(base, 1024, {}, Clusters())
    chosen = [dict(c.chosen) for c in made.candidates]
    assert {one["training.recompute"] for one in chosen} == {"none"}
    assert max(one["training.micro_batch"] for one in chosen) == 256


@pytest.mark.usefixtures("known_layouts")
def test_what_was_found_runs(tmp_path: Path) -> None:
    """The written scenario is the found one: `prestep run` predicts the same step."""
    path, sets = scenario(tmp_path, "megatron")
    best = found(
        path, [*sets, "nvlink.bandwidth=0.5x"], over=FEWER["megatron"], top=1
    ).ranked[0]
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "best.toml"
    write_scenario(best.candidate.scenario, target)
    again = load_scenario(target)
    assert replace(again, where="") == replace(best.candidate.scenario, where="")
    assert predict(again).step_time == best.result.step_time


def test_quantities_are_written_with_units(tmp_path: Path) -> None:
    """What is SI inside is a text with a unit in the file."""
    path, sets = scenario(tmp_path, "pytorch")
    base, _ = load_open(path, [*sets, "parallel.bucket_cap=100 MiB"], FREE)
    target = tmp_path / "again.toml"
    target.write_text(text_of(base).replace("global_batch", "# global_batch"))
    assert 'bucket_cap = "104857600 B"' in target.read_text()
    assert load_scenario(target, ["cluster.gpus=1"]).parallel.bucket_cap == 100 * 2**20


@pytest.mark.usefixtures("known_layouts")
def test_samples_of_a_space(tmp_path: Path) -> None:
    """With so many trials only, the same layouts are looked at every time, and all counts are of those."""
    pytest.importorskip("optuna", reason="an extra")
    path, sets = scenario(tmp_path, "experts")
    one, two = (
        found(path, sets, over=FEWER["experts"], top=2, trials=20) for _ in range(2)
    )
    whole = found(path, sets, over=FEWER["experts"], top=2)
    assert to_dict(one) == to_dict(two)
    assert one.sampled == 20 < one.valid and "20 of them looked at" in table(one)
    assert one.ranked[0].result.step_time >= whole.ranked[0].result.step_time


def test_values_are_pinned_and_restricted() -> None:
    """--set pins a key of the layout, --over gives its values; others are no axes."""
    assert read_over(
        ["parallel.tp=1,2"], ["parallel.pp=2", "training.seq_len=1024"]
    ) == {
        "parallel.tp": (1, 2),
        "parallel.pp": (2,),
    }
    assert read_over(["training.recompute=none", "nvlink.bandwidth=1x,2x"]) == {
        "training.recompute": ("none",),
        "nvlink.bandwidth": ("1x", "2x"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "parallel.tp",
        "parallel.tp=two",
        "parallel.tpp=1",
        "parallel.tp=0",
        "paralel.tp=1",
        "training.microbatches=4",
        "training.recompute=all",
    ],
)
def test_what_cannot_be_tried_is_refused(text: str) -> None:
    """A wrong key or value of --over is named."""
    with pytest.raises(InputError, match=text.partition("=")[0].partition(".")[0]):
        read_over([text])


def test_divisors() -> None:
    """All of them, ascending, up to a limit."""
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(12, 4) == (1, 2, 3, 4)
    assert divisors(1) == (1,)
