"""Rows of published training steps as scenarios."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.formats.published_setups import FOLDER, setup_of
from lab.report.published import Case, PublishedReport
from lab.sets import published
from lab.sets.published import Run, read, run_of
from lab.sets.published_scenarios import scenario_of
from prestep.sim.errors import InputError

ROWS = {row["id"]: row for row in read(FOLDER / "rows.csv")}


def test_racks_count_trays() -> None:
    """64 GB200 are sixteen trays of four, also where a later setup without a cluster fits the row."""
    row = ROWS["bridge-0078"]
    assert scenario_of(row, setup_of(row))["cluster"] == {
        "name": "gb200-nvl64",
        "hosts": 16,
        "gpus": 64,
    }


def test_layers_that_cannot_be_cut_evenly() -> None:
    """94 layers in 96 stages: the embedding and the head are stages; 96 layers in 96 stages: they are not."""
    row = ROWS["moezoo-0004"]
    assert scenario_of(row, setup_of(row))["megatron"]["account_for_embedding"]
    plain = scenario_of(row | {"layers": "96"}, setup_of(row))
    assert "account_for_embedding" not in plain["megatron"]


def test_a_layout_of_another_size_is_told() -> None:
    """A row whose layout has not as many ranks as it has GPUs is no scenario, unless its setup knows which is right."""
    row = ROWS["nemols-0001"]
    with pytest.raises(InputError, match="dp 2 x tp 1 x pp 1 x cp 1 on 8 GPUs"):
        run_of({**row, "notes": "NeMo 25.04.rc2"})
    assert run_of(row).scenario["parallel"]["dp"] == 2


@pytest.mark.parametrize(
    ("id_", "precision"),
    [("bridge-0165", "nvfp4"), ("bridge-0266", "fp8"), ("bridge-0092", "bf16")],
)
def test_number_formats(id_: str, precision: str) -> None:
    """As the row says; pages without the column say it in words."""
    row = ROWS[id_]
    assert scenario_of(row, setup_of(row))["training"]["precision"] == precision


def test_rows_of_a_fitted_source_are_counted_apart() -> None:
    """Judged rows are split by whether a constant was read off rows of their source; a row says which."""
    assert run_of(ROWS["vtrainS-0001"]).fit == "host_factor, kernel_gap"
    assert not run_of(ROWS["dgxc-0001"]).fit
    names = map(str, range(40))
    cases = [
        Case(name, "s", name, 1.0, 1.5 if fit else 1.1, fit=fit)
        for name in names
        for fit in ("", "host_factor")
    ]
    groups = PublishedReport("p", "", tuple(cases)).groups
    own, none = (
        groups["constants of their source"],
        groups["no constant of their source"],
    )
    assert own.n + none.n == groups["predicted"].n
    assert own.mape == pytest.approx(0.5) and none.mape == pytest.approx(0.1)


#: Columns in which runs of one kind differ.
BATCH = ("id", "global_batch", "metric_value", "notes")


def _on_lines(source: str) -> list[bool]:
    """Whether times of runs that differ in their batch only lie on a line, to a part in 50,000: by kind of run.

    A step has a fixed part and one for each microbatch, but no measured one is their exact sum.
    """
    kinds: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in ROWS.values():
        if row["source"] == source and row["metric_name"] == "step_time":
            same = tuple(row[name] for name in row if name not in BATCH)
            point = float(row["global_batch"] or 0), float(row["metric_value"])
            kinds.setdefault(same, []).append(point)
    several = (kind for kind in kinds.values() if len({x for x, _ in kind}) > 2)
    points = [np.array(sorted(kind)).T for kind in several]
    lines = [(y, np.polyval(np.polyfit(x, y, 1), x)) for x, y in points]
    return [bool(np.abs(line / y - 1).max() < 2e-5) for y, line in lines]


def test_times_that_a_source_computed_are_counted_apart() -> None:
    """Of rows in print as measured, those of one source are exact sums; these and no others say so of themselves."""
    computed = {row["source"] for row in ROWS.values() if setups_say(row, "computed")}
    lines = {name: _on_lines(name) for name in {row["source"] for row in ROWS.values()}}
    exact = {name for name, kinds in lines.items() if kinds and np.mean(kinds) > 0.5}
    assert exact == computed and len(exact) == 1
    assert all(len(lines[name]) > 20 for name in exact)
    case = Case("a", "s", "", 1.0, 1.1, listed=False)
    sums = replace(case, predicted=1.3, computed="sums")
    groups = PublishedReport("p", "", (case, sums)).groups
    assert groups["measured steps"].mape == pytest.approx(0.1)
    assert groups["computed by their source"].mape == pytest.approx(0.3)


def setups_say(row: dict[str, str], key: str) -> str:
    """What the setups that fit a row say under a key; "" where a row is refused."""
    try:
        return str(getattr(setup_of(row), key))
    except InputError:
        return ""


@pytest.mark.parametrize(
    ("id_", "dispatcher", "scope"),
    [
        ("bridge-0010", "flex", ("full_iteration",)),  # GB200, MXFP8, 26.08
        ("bridge-0103", "flex", ("attn", "moe_router", "moe_preprocess")),  # 26.04.01
        ("bridge-0105", "alltoall", ()),  # B200, 26.04.01
        (
            "bridge-0276",
            "alltoall",
            ("full_iteration",),
        ),  # GB200, 25.09, padded experts
    ],
)
def test_recipes_change_from_release_to_release(
    id_: str, dispatcher: str, scope: tuple[str, ...]
) -> None:
    """How Megatron-Bridge runs Qwen3 235B goes by the GPU, the number format and the release."""
    megatron = run_of(ROWS[id_]).scenario["megatron"]
    assert megatron.get("moe_token_dispatcher", "alltoall") == dispatcher
    assert tuple(megatron.get("cuda_graph_scope", ())) == scope


@pytest.mark.parametrize("error", ["", "stuck"])
def test_runs_of_one_scenario_are_simulated_once(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Rows that say the same scenario share one prediction; what is wrong with it is said of each by its own name."""
    runs = [run_of(ROWS["vtrainS-0001"] | {"id": name}) for name in ("a", "b")]
    runs.insert(1, run_of(ROWS["dgxc-0001"]))
    asked: list[str] = []

    def predict(run: Run) -> tuple[float, str]:
        asked.append(run.id)
        return 1.0, error and f"{run.id}: {error}"

    monkeypatch.setattr(published, "predict", predict)
    made = published.predict_all(runs, jobs=1)
    assert made == [
        (1.0, error and f"{name}: {error}") for name in ("a", "dgxc-0001", "b")
    ]
    assert asked == (["a", "dgxc-0001", "b"] if error else ["a", "dgxc-0001"])


def test_a_submission_without_a_layout_runs_its_maker_s_script() -> None:
    """LoRA on another maker's eight H100 is the scenario that NVIDIA's own row says."""
    own, other = (
        run_of(ROWS[name]).scenario for name in ("mlperf-0012", "mlperf-0005")
    )
    assert own == other and run_of(ROWS["mlperf-0005"]).assumed


@pytest.mark.parametrize(
    ("id_", "hosts", "layout"),
    [
        ("mlperf-0004", None, {"tp": 4, "cp": 1, "dp": 2}),  # a system of ASUS
        ("mlperf-0006", None, {"tp": 4, "cp": 1, "dp": 1}),  # half a host
        ("mlperf-0009", 2, {"tp": 4, "cp": 2, "dp": 2}),
        ("mlperf-0021", 8, {"tp": 4, "cp": 2, "dp": 8}),
        ("moezoo-0013", 32, {"tp": 4, "pp": 8, "vpp": 4, "ep": 8, "cp": 8, "dp": 1}),
        ("bigsci-0013", 40, {"tp": 8, "pp": 10, "dp": 4}),
    ],
)
def test_layouts_from_the_source_s_text(
    id_: str, hosts: int | None, layout: dict[str, int]
) -> None:
    """Rows whose table prints no layout take the one that their source says elsewhere, and say that it is assumed."""
    run = run_of(ROWS[id_])
    parallel = run.scenario["parallel"]
    assert {key: parallel[key] for key in layout} == layout and run.assumed
    assert run.scenario["cluster"].get("hosts") == hosts


def test_jean_zay_before_and_after_its_adapters_were_bound() -> None:
    """Rows of BigScience before 25 February 2022 run on slower adapters; one row's host does not wait for launches."""
    clusters = {
        name: run_of(ROWS[name]).scenario["cluster"]["name"]
        for name in ("bigsci-0040", "bigsci-0076", "bigsci-0007")
    }
    assert clusters == {
        "bigsci-0040": "jean-zay-a100-unbound",
        "bigsci-0076": "jean-zay-a100",
        "bigsci-0007": "jean-zay-a100-unbound",
    }
    waits = [
        run_of(ROWS[name]).scenario["megatron"]["launch_blocking"]
        for name in ("bigsci-0007", "bigsci-0008")
    ]
    assert waits == [True, False]


def test_positions_of_a_model_without_learned_ones_have_no_rows() -> None:
    """ALiBi and rotations hold no embedding, also where the model's family has one."""
    model = run_of(ROWS["bigsci-0132"]).scenario["model"]
    assert model["positions"] == "alibi" and "max_positions" not in model
