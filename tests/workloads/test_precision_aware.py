"""Laws of Megatron's precision-aware optimizer: fewer bytes of state, a shorter update."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario
from tests.executed import Executed, executed, step_time
from tests.workloads.test_megatron_schedules import scenario

ZERO = {"pp": 1, "dp": 4, "data_parallel": "zero1"}


def job(parallel: dict[str, Any] | None = None, **megatron: Any) -> Scenario:
    return scenario("1f1b", {**ZERO, **(parallel or {})}, 1, megatron=megatron)


def aware(first: str = "fp32", second: str = "fp32", **megatron: Any) -> Scenario:
    """With moments in these types."""
    return job(
        use_precision_aware_optimizer=True,
        exp_avg_dtype=first,
        exp_avg_sq_dtype=second,
        **megatron,
    )


def states(run: Executed) -> float:
    """Bytes of the optimizer on the first rank."""
    memory = next(iter(run.lowered.memory.values()))
    return memory.at_peak["optimizer"]


def test_states_have_as_many_bytes_as_their_types() -> None:
    """12 bytes of a parameter in fp32; 10 where its upper half is the bf16 copy; less with narrower moments."""
    usual = states(executed(job()))
    for (first, second), size in {
        ("fp32", "fp32"): 10,
        ("bf16", "bf16"): 6,
        ("fp8", "fp16"): 5,
        ("fp8", "fp8"): 4,
    }.items():
        assert states(executed(aware(first, second))) == pytest.approx(
            usual * size / 12
        )


def test_a_parameter_in_fp16_lies_in_one_part() -> None:
    """Two bytes as the half of one in fp32, whose other half is read too: the update moves less."""
    half, other = aware(), aware(main_params_dtype="fp16")
    assert states(executed(other)) == states(executed(half))
    assert step_time(executed(other)) < step_time(executed(half))


def test_narrower_states_take_less_time() -> None:
    """The update moves fewer bytes, and gradients in bf16 are not copied to fp32."""
    types = ["fp32", "bf16", "fp8"]
    times = [step_time(executed(aware(one, one))) for one in types]
    usual = step_time(executed(job()))
    assert [usual, *times] == sorted([usual, *times], reverse=True)
    narrow = step_time(executed(aware(main_grads="bf16")))
    assert narrow < step_time(executed(job(main_grads="bf16")))


def test_a_type_without_the_optimizer_has_no_part() -> None:
    found = predict(job(exp_avg_dtype="bf16"))
    assert found.step_time == predict(job()).step_time
    assert any("exp_avg_dtype" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("parallel", "megatron", "words"),
    [
        ({"data_parallel": "ddp"}, {}, "the distributed optimizer"),
        ({"offload": "optimizer"}, {"exp_avg_dtype": "bf16"}, "with parallel.offload"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    parallel: dict[str, Any], megatron: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        job(parallel, use_precision_aware_optimizer=True, **megatron)
