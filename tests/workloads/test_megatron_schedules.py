"""Laws of Megatron's pipeline schedules: what they compute is the same, when and what they keep is not."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.schedules import names
from tests.executed import Executed, executed, step_time

WIDE = {
    "kind": "transformer",
    "layers": 16,
    "hidden": 4096,
    "heads": 32,
    "ffn": 16384,
    "vocab": 1024,
    "tied_embeddings": False,
}
EXPERTS = {"experts": 16, "experts_per_token": 4, "moe_ffn": 2048}
TWO_CHUNKS = ("interleaved", "zbv", "v-half", "v-min", "dualpipe")
PLAIN = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipe")


def scenario(
    schedule: str,
    parallel: dict[str, Any] | None = None,
    microbatches: int = 12,
    **changes: Any,
) -> Scenario:
    megatron = changes.pop("megatron", {})
    layout = {
        "pp": 4,
        "schedule": schedule,
        "vpp": 2 if schedule in TWO_CHUNKS else 1,
    }
    layout |= parallel or {}
    gpus = layout["pp"] * layout.get("dp", 1) * layout.get("tp", 1)
    return parse_scenario(
        {
            "cluster": {"name": "rail-h100", "hosts": -(-gpus // 8), "gpus": gpus},
            "model": WIDE | changes,
            "training": {
                "framework": "megatron",
                "seq_len": 2048,
                "micro_batch": 1,
                "microbatches": microbatches,
            },
            "parallel": layout,
            "megatron": megatron,
        },
        "test",
    )


def computed(s: Executed) -> float:
    """Flops of all simulated ranks."""
    g = s.lowered.graph
    return sum(
        g.kernels[int(k)].flops
        for p in g.programs
        for k in p.payload[p.kind == 0].tolist()
    )


def kept(s: Executed) -> list[float]:
    """GiB of activations at the peak, by stage."""
    return [m.at_peak["activations"] / 2**30 for m in s.lowered.memory.values()]


@pytest.fixture(scope="module")
def runs() -> dict[str, Executed]:
    return {name: executed(scenario(name)) for name in PLAIN}


@pytest.mark.parametrize("name", sorted(names()))
def test_every_schedule_runs(name: str) -> None:
    """Whatever `prestep list schedules` shows runs in Megatron too, with and without data parallelism."""
    for parallel in ({}, {"dp": 2, "data_parallel": "zero1"}):
        assert (
            step_time(
                executed(scenario(name, parallel, layers=8, hidden=1024, ffn=4096))
            )
            > 0
        )


def test_all_compute_the_same(runs: dict[str, Executed]) -> None:
    """The order changes no product: a backward pass in two halves has the flops of the whole."""
    flops = {name: computed(run) for name, run in runs.items()}
    assert max(flops.values()) == pytest.approx(min(flops.values()), rel=1e-9)


def test_bubbles(runs: dict[str, Executed]) -> None:
    """Weight gradients in the bubble make a step shorter, the V of zero bubble shortest; GPipe gains nothing."""
    time = {name: step_time(run) for name, run in runs.items()}
    assert time["gpipe"] == pytest.approx(time["1f1b"], rel=0.03)
    assert time["zbv"] < time["zero-bubble"] < time["1f1b"]
    assert time["interleaved"] < time["1f1b"]


def test_stashes(runs: dict[str, Executed]) -> None:
    """GPipe keeps every microbatch, 1F1B as many as stages are left, the others about the same on every stage."""
    peaks = {name: kept(run) for name, run in runs.items()}
    one = peaks["gpipe"][1] / 12
    assert peaks["1f1b"][1:] == pytest.approx(
        [3 * one, 2 * one, one], rel=0.15
    )  # and the head's
    for name in (
        "zero-bubble",
        "zbv",
    ):  # never more than 1F1B's first stage, and so on all
        assert peaks[name] == pytest.approx([4 * one] * 4, rel=0.2)
    assert peaks["dualpipe"] == pytest.approx(
        [4.5 * one] * 4, rel=0.2
    )  # one chunk more: 2P + 1 of halves


def test_what_waits_for_its_weight_gradient_is_kept() -> None:
    """Between the halves the products' operands stay, and no more than the whole activations."""
    run = executed(scenario("zero-bubble"))
    unit = executed(scenario("1f1b"))
    assert max(kept(run)) > min(kept(unit))
    full = scenario("zero-bubble", microbatches=24)
    assert max(kept(executed(full))) == pytest.approx(max(kept(run)), rel=1e-6)


def test_out_of_memory_names_what_is_too_much() -> None:
    """GPipe with many microbatches does not fit where 1F1B does."""
    large = {"hidden": 8192, "ffn": 32768, "heads": 64, "layers": 16}
    fits, bursts = (
        predict(scenario(name, {"tp": 2}, 48, **large)) for name in ("1f1b", "gpipe")
    )
    worst = max(bursts.peak_memory.values(), key=lambda m: m.total)
    assert (
        max(m.total for m in fits.peak_memory.values())
        < fits.memory_capacity
        < worst.total
    )
    assert worst.activations > worst.parameters + worst.gradients


def test_dualpipe_hides_the_exchange_of_tokens() -> None:
    """Its pairs send tokens of one microbatch beside the other's computation; the V alone does not."""
    parallel = {"dp": 16, "ep": 16, "data_parallel": "zero1"}
    changes = {"hidden": 4096, "ffn": 8192, **EXPERTS}
    pairs, apart = (
        predict(scenario(name, parallel, 16, **changes)) for name in ("dualpipe", "zbv")
    )
    alone = predict(scenario("1f1b", parallel, 16, **changes))
    assert pairs.step_time < apart.step_time
    assert pairs.step_time < 0.95 * alone.step_time


def test_uneven_stages_and_tied_embeddings() -> None:
    """Layers that do not divide, a head that shares the embedding: in a V both are on the first rank."""
    for name in ("interleaved", "zbv", "dualpipe", "gpipe", "zero-bubble"):
        s = scenario(
            name,
            {"uneven_stages": True},
            layers=13,
            tied_embeddings=True,
            hidden=1024,
            ffn=4096,
        )
        assert step_time(executed(s)) > 0


def test_pipelines_with_few_options_on_the_command_line(tmp_path: Any) -> None:
    """DualPipe needs no vpp said; too few microbatches are a mistake and no traceback."""
    text = """
[cluster]
name = "dgx-h100"
[model]
name = "llama3-8b"
[training]
framework = "megatron"
seq_len = 2048
microbatches = %d
[parallel]
pp = 4
tp = 2
schedule = "dualpipe"
"""
    file = tmp_path / "run.toml"
    file.write_text(text % 8)
    done = CliRunner().invoke(main, ["run", str(file)])
    assert done.exit_code == 0 and "step time" in done.output
    file.write_text(text % 4)
    done = CliRunner().invoke(main, ["run", str(file)])
    assert done.exit_code == 2 and "microbatches" in done.output + str(
        done.stderr_bytes or ""
    )
