"""Every schedule under Megatron's and DeepSpeed's engines: refused, or run to its end."""

from __future__ import annotations

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.tools import catalog

MODEL = {
    "kind": "transformer",
    "hidden": 256,
    "heads": 8,
    "ffn": 512,
    "vocab": 1000,
    "layers": 8,
}


def step(framework: str, schedule: str, vpp: int, microbatches: int) -> float:
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 4},
        "model": MODEL,
        "training": {
            "framework": framework,
            "seq_len": 128,
            "micro_batch": 1,
            "microbatches": microbatches,
        },
        "parallel": {"dp": 1, "pp": 4, "schedule": schedule, "vpp": vpp},
    }
    return predict(parse_scenario(tables, "x")).step_time


@pytest.mark.parametrize("framework", ("megatron", "deepspeed"))
@pytest.mark.parametrize("schedule", catalog.names("schedules"))
def test_none_waits_for_itself(framework: str, schedule: str) -> None:
    """With one or two chunks, and with microbatches that are no multiple of the ranks."""
    for vpp in (1, 2):
        for microbatches in (4, 5, 8):
            try:
                assert step(framework, schedule, vpp, microbatches) > 0
            except InputError as error:
                assert error.mistakes


@pytest.mark.parametrize(
    ("framework", "vpp", "key"),
    [("megatron", 1, "parallel.vpp"), ("deepspeed", 2, "parallel.schedule")],
)
def test_chunks_are_refused_where_none_are(framework: str, vpp: int, key: str) -> None:
    """Megatron interleaves two chunks or more, DeepSpeed none; both waited for themselves."""
    with pytest.raises(InputError, match=key):
        step(framework, "interleaved", vpp, 8)
