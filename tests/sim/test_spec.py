"""Scenario files: strict, and every mistake at once."""

from __future__ import annotations

import dataclasses
import math
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.collectives.settings import Ctas, Nccl
from prestep.sim.errors import InputError
from prestep.sim.spec import grammar, load
from prestep.sim.spec.load import (
    Scenario,
    check_layout,
    grad_accumulation_of,
    microbatches_of,
    parse_scenario,
)
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model, model_names
from tests.sample import together

SCENARIOS = sorted(
    (Path(__file__).parents[2] / "workloads" / "scenarios").glob("*.toml")
)
BASE: dict[str, Any] = {
    "cluster": {"name": "h200-host-4"},
    "model": {"name": "llama3-1b-plain"},
}


def parse(*overrides: str, **sections: dict[str, Any]) -> Scenario:
    return parse_scenario({**BASE, **sections}, "a.toml", overrides)


def mistakes_of(*overrides: str, **sections: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        parse(*overrides, **sections)
    return {mistake.key: str(mistake) for mistake in caught.value.mistakes}


def layout_mistakes(gpus: int | None, **sections: dict[str, Any]) -> dict[str, str]:
    scenario = parse(**sections)
    found = check_layout(scenario, gpus, load_model(scenario.model))
    return {mistake.key: str(mistake) for mistake in found}


def test_defaults_are_those_of_pytorch() -> None:
    """A scenario that names a cluster and a model is complete."""
    scenario = parse()
    assert scenario.parallel.data_parallel == "none"
    assert scenario.parallel.bucket_caps == (2**20, 25 * 2**20)
    assert (scenario.training.seq_len, scenario.training.precision) == (2048, "bf16")
    assert scenario.training.set_to_none and scenario.parallel.gradient_as_bucket_view
    assert parse(parallel={"dp": 2}).parallel.data_parallel == "ddp"


def test_quantities_are_si_after_loading() -> None:
    """Units stay at the edge."""
    scenario = parse(
        parallel={"bucket_cap": "1 MB"},
        faults={"slow_per_layer": "1 ms", "slow_rank": 0},
    )
    assert (scenario.parallel.bucket_cap, scenario.faults.slow_per_layer) == (1e6, 1e-3)


@together(
    ("section", "table", "key", "text"),
    [
        (
            "parallel",
            {"bucket_cp": "1 MiB"},
            "parallel.bucket_cp",
            'did you mean "bucket_cap"',
        ),
        ("parallel", {"bucket_cap": 25}, "parallel.bucket_cap", 'such as "25 MiB"'),
        ("parallel", {"bucket_cap": "25"}, "parallel.bucket_cap", "unit is missing"),
        ("parallel", {"bucket_cap": "0 MiB"}, "parallel.bucket_cap", "more than 0"),
        ("parallel", {"dp": 0}, "parallel.dp", "at least 1"),
        ("parallel", {"dp": -4}, "parallel.dp", "at least 1"),
        ("parallel", {"dp": True}, "parallel.dp", "a whole number"),
        ("parallel", {"dp": "4"}, "parallel.dp", "a whole number"),
        ("parallel", {"schedule": "1f2b"}, "parallel.schedule", 'did you mean "1f1b"'),
        (
            "parallel",
            {"sequence_parallel": "yes"},
            "parallel.sequence_parallel",
            "true or false",
        ),
        (
            "training",
            {"precision": "bf17"},
            "training.precision",
            'did you mean "bf16"',
        ),
        ("training", {"micro_batch": 2.5}, "training.micro_batch", "a whole number"),
        ("faults", {"slow_factor": 0}, "faults.slow_factor", "more than 0"),
        ("model", {"kind": "mlp", "sizes": [4, 0]}, "model.sizes", "at least 1"),
        ("model", {"kind": "mlp", "sizes": 4}, "model.sizes", "a list"),
        ("model", {}, "model", "one of name, file or kind"),
        ("model", {"name": "x", "kind": "mlp"}, "model", "found name and kind"),
        ("cluster", {}, "cluster", "name or file"),
        ("cluster", {"name": "x", "set": "2x"}, "cluster.set", "a table such as"),
        ("traning", {}, "traning", 'did you mean "training"'),
        (
            "nccl",
            {"min_channels": 8, "max_channels": 4},
            "nccl.min_channels",
            "at most max_channels = 4",
        ),
    ],
)
def test_each_mistake_says_where_what_and_what_else(
    section: str, table: dict[str, Any], key: str, text: str
) -> None:
    """File, key, found, expected, suggestion."""
    found = mistakes_of(**{section: table})
    assert list(found) == [key]
    assert found[key].startswith(f"a.toml: {key}: found ") and text in found[key]


def test_every_mistake_is_reported_at_once() -> None:
    """One report, not one at a time; a rule that rests on a wrong key stays silent."""
    found = mistakes_of(
        "paralel.tp=2",
        parallel={
            "dp": 3,
            "bucket_cap": "0 B",
            "shedule": "1f1b",
            "vpp": 2,
            "pp": 2,
            "ep": 2,
        },
        training={"global_batch": 7, "micro_batch": 2, "seq_len": -1},
        chekpoint={},
    )
    assert set(found) == {
        "paralel.tp",
        "chekpoint",
        "parallel.bucket_cap",
        "parallel.shedule",
        "training.seq_len",
        "training.global_batch",
        "parallel.schedule",
        "parallel.ep",
    }


def test_errors_survive_a_process_boundary() -> None:
    """Workers send them by pickle."""
    with pytest.raises(InputError) as caught:
        parse(parallel={"dp": 0, "tp": 0})
    assert pickle.loads(pickle.dumps(caught.value)).mistakes == caught.value.mistakes


def test_overrides_edit_the_scenario_or_the_links() -> None:
    """A known section is the scenario's; anything else is a change to the cluster, kept as text."""
    scenario = parse(
        "parallel.dp=4",
        "parallel.bucket_cap=1 MiB",
        "nccl.version=2.20",
        "nccl.algo=Ring",
        "nccl.nvls=false",
        "nccl.dp.max_ctas=8",
        "nvlink.bandwidth=2x",
        "cluster.set.spine.latency=1 us",
        cluster={"name": "c", "set": {"nic": {"bandwidth": "1 GB/s"}}},
    )
    assert (scenario.parallel.dp, scenario.parallel.bucket_cap) == (4, 2**20)
    assert (scenario.nccl.version, scenario.nccl.algo, scenario.nccl.nvls) == (
        "2.20",
        "ring",
        False,
    )
    assert scenario.nccl.dp == Ctas(max_ctas=8)
    assert scenario.cluster.set == {
        "nic.bandwidth": "1 GB/s",
        "nvlink.bandwidth": "2x",
        "spine.latency": "1 us",
    }


def test_axes_have_ctas_of_their_own_unless_the_environment_says_how_many() -> None:
    """What a communicator was made with holds for its axis; NCCL_MIN_CTAS and NCCL_MAX_CTAS come before it."""
    nccl = parse("nccl.dp.max_ctas=8", "nccl.pp.max_ctas=2", "nccl.tp.min_ctas=6").nccl
    assert [nccl.of(axis).max_ctas for axis in ("dp", "pp", "tp")] == [8, 2, None]
    assert [nccl.of(axis).least_channels for axis in ("dp", "tp")] == [1, 6]
    assert nccl.of("tp") == Nccl(min_ctas=6)
    forced = parse("nccl.dp.max_ctas=8", "nccl.max_ctas=32", "nccl.min_ctas=16").nccl
    assert forced.of("dp") == forced.of("cp") == Nccl(min_ctas=16, max_ctas=32)


@together(
    "item",
    [
        "nccl.dp.max_ctas=many",
        "nccl.dp.most=8",
        "parallel.dp",
        "dp=4",
        "=4",
        "parallel.dpp=4",
        "parallel.dp=four",
        "paralell.dp=4",
    ],
)
def test_a_wrong_override_is_an_input_error_about_the_command_line(item: str) -> None:
    """The place is --set, not the file."""
    assert all(text.startswith("--set: ") for text in mistakes_of(item).values())


@given(
    micro=st.integers(1, 8),
    dp=st.integers(1, 8),
    count=st.integers(1, 16),
    pp=st.sampled_from([1, 2]),
)
def test_the_batch_is_counted_once(micro: int, dp: int, count: int, pp: int) -> None:
    """global_batch = micro_batch * dp * microbatches, whichever of them is said."""
    parallel = {"dp": dp, "pp": pp}
    by_batch = parse(
        parallel=parallel,
        training={"micro_batch": micro, "global_batch": micro * dp * count},
    )
    by_count = parse(
        parallel=parallel, training={"micro_batch": micro, "microbatches": count}
    )
    elsewhere = parse(
        parallel={**parallel, "microbatches": count}, training={"micro_batch": micro}
    )
    assert (
        microbatches_of(by_batch)
        == microbatches_of(by_count)
        == microbatches_of(elsewhere)
        == count
    )
    assert (
        grad_accumulation_of(by_batch)
        == grad_accumulation_of(by_count)
        == (count if pp == 1 else 1)
    )


@pytest.mark.parametrize(
    ("training", "parallel", "key"),
    [
        ({"global_batch": 6}, {"dp": 4}, "training.global_batch"),
        (
            {"global_batch": 8, "grad_accumulation": 4},
            {"dp": 4},
            "training.global_batch",
        ),
        ({"grad_accumulation": 4, "microbatches": 2}, {}, "training.microbatches"),
        ({"microbatches": 8}, {"microbatches": 4}, "parallel.microbatches"),
        ({}, {"pp": 4}, "training.microbatches"),
    ],
)
def test_batches_that_contradict_each_other_are_mistakes(
    training: dict[str, Any], parallel: dict[str, Any], key: str
) -> None:
    """No number is silently preferred to another."""
    assert key in mistakes_of(training=training, parallel=parallel)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_several_stages_per_rank_need_a_schedule_for_them(schedule: str) -> None:
    """vpp > 1 goes with interleaved, zero-bubble, zbv and dualpipe."""
    parallel = {"pp": 4, "vpp": 2, "schedule": schedule, "microbatches": 8}
    assert list(mistakes_of(parallel=parallel)) == ["parallel.schedule"]
    assert parse(parallel={**parallel, "schedule": "interleaved"}).parallel.vpp == 2
    assert list(mistakes_of(parallel={"vpp": 2, "schedule": "interleaved"})) == [
        "parallel.vpp"
    ]


@given(st.tuples(*[st.integers(1, 4)] * 3), st.integers(1, 64))
def test_the_layout_fills_the_gpus_exactly(
    degrees: tuple[int, int, int], gpus: int
) -> None:
    """dp * tp * pp * cp is the number of GPUs; [cluster] gpus uses only some of them."""
    dp, tp, cp = degrees
    parallel = {"dp": dp, "tp": tp, "cp": cp}
    scenario = parse(parallel=parallel, training={"seq_len": 24})
    assert ([m.key for m in check_layout(scenario, gpus)] == []) == (
        math.prod(degrees) == gpus
    )
    some = dataclasses.replace(
        scenario, cluster=dataclasses.replace(scenario.cluster, gpus=math.prod(degrees))
    )
    assert [m.key for m in check_layout(some, gpus)] == (
        [] if gpus >= math.prod(degrees) else ["cluster.gpus"]
    )


def test_layers_divide_over_stages_unless_uneven_ones_are_asked_for() -> None:
    """Uneven stages are said, never silently made."""
    parallel = {"pp": 3, "microbatches": 6}
    assert list(layout_mistakes(3, parallel=parallel)) == ["model.layers"]
    parallel["uneven_stages"] = True
    assert layout_mistakes(3, parallel=parallel) == {}
    assert (
        list(layout_mistakes(3, parallel=parallel, training={"framework": "megatron"}))
        == []
    )
    assert (
        "at least pp * vpp = 32"
        in layout_mistakes(32, parallel={"pp": 32, "microbatches": 32})["model.layers"]
    )


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_a_schedule_of_two_stages_a_rank_wants_two_layers_a_rank(
    framework: str,
) -> None:
    """DualPipe has two stages a rank though `vpp` is not said; PyTorch's ended as a mistake of prestep."""
    parallel = {"pp": 4, "schedule": "dualpipe", "microbatches": 8}
    training = {"framework": framework}
    for layers, keys in ((4, ["model.layers"]), (8, [])):
        model = {"name": "llama3.2-1b", "layers": layers}
        found = layout_mistakes(4, model=model, parallel=parallel, training=training)
        assert list(found) == keys


def test_ranks_share_heads_of_keys_and_values_under_megatron() -> None:
    """16 ranks share the 8 heads of Llama 3 70B two by two; 5 heads nobody can share; others want whole heads."""
    megatron = {"framework": "megatron"}
    parallel = {"tp": 16}
    llama = {"name": "llama3-70b"}
    assert layout_mistakes(16, model=llama, parallel=parallel, training=megatron) == {}
    eager = layout_mistakes(16, model=llama, parallel=parallel)
    assert eager["model.kv_heads"].endswith("expected a multiple of tp = 16")
    odd = {**llama, "heads": 80, "kv_heads": 5, "head_dim": 128}
    mistakes = layout_mistakes(16, model=odd, parallel=parallel, training=megatron)
    assert "a multiple or a divisor of tp = 16" in mistakes["model.kv_heads"]


def test_heads_and_experts_divide_over_their_ranks() -> None:
    """A tensor-parallel rank has whole heads, an expert-parallel rank whole experts."""
    assert set(layout_mistakes(3, parallel={"tp": 3})) == {
        "model.heads",
        "model.kv_heads",
        "model.ffn",
    }
    moe = {"name": "moe8x-plain"}
    assert layout_mistakes(4, model=moe, parallel={"dp": 4, "ep": 4}) == {}
    assert list(layout_mistakes(3, model=moe, parallel={"dp": 3, "ep": 3})) == [
        "parallel.ep"
    ]
    assert (
        "no experts" in layout_mistakes(4, parallel={"dp": 4, "ep": 4})["parallel.ep"]
    )
    assert list(layout_mistakes(2, model={"name": "resnet50"}, parallel={"tp": 2})) == [
        "parallel.tp"
    ]
    megatron = {"seq_len": 1024, "framework": "megatron"}
    for loads in ("zipf", (1.0, 3.0)):
        parallel = {"dp": 2, "imbalance": loads}
        mistakes = layout_mistakes(2, parallel=parallel, training=megatron)
        assert "no experts" in mistakes["parallel.imbalance"]


@together("path", SCENARIOS)
def test_bundled_scenarios_are_good(path: Path) -> None:
    """Each fits its model and four GPUs, and says what was measured."""
    scenario = parse_scenario(tomllib.loads(path.read_text()), path.name)
    assert check_layout(scenario, 4, load_model(scenario.model)) == []
    assert scenario.measured.step_time


def test_load_scenario_reports_file_model_and_cluster_together(tmp_path: Path) -> None:
    """Mistakes that need the model or the cluster stand beside those of the file."""
    path = tmp_path / "bad.toml"
    path.write_text(
        '[cluster]\nname = "h200-host-4"\n[model]\nname = "llama3-1b-plain"\n[parallel]\ntp = 3\nbucket_cap = 1\n'
    )
    with pytest.raises(InputError) as caught:
        load.load_scenario(path)
    keys = {mistake.key for mistake in caught.value.mistakes}
    assert {"parallel", "parallel.bucket_cap", "model.heads"} <= keys


@pytest.mark.parametrize("content", [None, "[cluster", "\x00"])
def test_a_file_that_cannot_be_read_is_an_input_error(
    tmp_path: Path, content: str | None
) -> None:
    """Missing or not TOML."""
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="a scenario file"):
        load.load_scenario(path)


def test_overrides_drop_the_measurement() -> None:
    """A measured time belongs to the scenario as it was measured."""
    assert load.load_scenario(SCENARIOS[0]).measured.step_time
    assert (
        load.load_scenario(SCENARIOS[0], ["training.seq_len=1024"]).measured.step_time
        is None
    )


def test_schema_and_sections_have_the_same_keys() -> None:
    """The schema is made from the sections, closed, with a meaning for every key."""
    schema = grammar.json_schema()
    assert (
        set(schema["properties"]) == {*load.SECTIONS, "jobs"}
        and not schema["additionalProperties"]
    )
    for name, cls in load.SECTIONS.items():
        keys = schema["properties"][name]["properties"]
        assert list(keys) == [field.name for field in dataclasses.fields(cls)]
        assert all(entry["description"] for entry in keys.values())
    assert (
        "25 MiB"
        in schema["properties"]["parallel"]["properties"]["bucket_cap"]["description"]
    )


def test_only_sections_that_say_something_are_in_use() -> None:
    """Those of extensions have an effect, or ask for another run: a table of defaults does not."""
    made = parse(checkpoint={"every": 10}, dataload={"workers": 0})
    assert list(made.extensions) == ["checkpoint"]


@together("name", model_names())
def test_named_models_are_complete(name: str) -> None:
    """Every model that comes with prestep loads."""
    assert load_model(Model(name=name)).name == name
