"""Dense transformers in fp32 and TF32: everything takes 4 bytes, and nothing is priced as 16-bit numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.api import simulate
from prestep.sim.costs.kinds import STREAM_PASSES
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Comm
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.lower import lower
from tests.workloads.small import EXPERTS, HIDDEN, LAYERS, SEQ, TRANSFORMER

LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"dp": 4, "data_parallel": "ddp"},
    "ddp-no-overlap": {"dp": 4, "data_parallel": "ddp-no-overlap"},
    "zero1": {"dp": 4, "data_parallel": "zero1"},
    "fsdp": {"dp": 4, "data_parallel": "fsdp"},
    "hsdp": {"dp": 4, "data_parallel": "fsdp", "fsdp_shards": 2},
    "tp": {"tp": 4, "sequence_parallel": True},
    "pp": {"pp": 4, "schedule": "1f1b"},
    "zero-bubble": {"pp": 4, "schedule": "zero-bubble"},
}
LARGE = {"hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 8192, "vocab": 8192}
# One number of each row is read; elements are counted by the bytes of their states (optimizer_step.py).
ALIKE = ("nll_loss_fwd", "nll_loss_bwd", "adamw")


def scenario(
    precision: str,
    layout: str = "ddp",
    model: dict[str, Any] | None = None,
    pytorch: dict[str, Any] | None = None,
    **training: Any,
) -> Scenario:
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER | (model or {}),
        "training": {
            "precision": precision,
            "seq_len": SEQ,
            "micro_batch": 2,
            "global_batch": 32,
            **training,
        },
        "parallel": LAYOUTS[layout],
        "pytorch": pytorch or {},
    }
    return parse_scenario(tables, "wide.toml")


def recorded(precision: str, layout: str = "ddp", **more: Any) -> Lowered:
    s = scenario(precision, layout, **more)
    return lower(s, load_model(s.model))


def sent(low: Lowered) -> list[tuple[str, float]]:
    return [(comm.op, comm.size) for comm in low.graph.comms if isinstance(comm, Comm)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_links_carry_twice_the_bytes(layout: str) -> None:
    """Activations, gradients and parameters are sent in 4 bytes an element, in TF32 too.

    Buckets of DDP close at a size, so they are others: what they carry together is twice as much.
    """
    narrow, *wide = (
        sum(size for _, size in sent(recorded(p, layout)))
        for p in ("bf16", "fp32", "tf32")
    )
    assert narrow > 0
    assert wide == pytest.approx([2 * narrow] * 2)


@pytest.mark.parametrize("fsdp", ["1", "2"])
def test_gradients_are_reduced_in_their_own_type(fsdp: str) -> None:
    """`reduce_dtype = "fp32"` changes nothing where gradients are in fp32."""
    own, said = (
        sent(recorded("fp32", "fsdp", pytorch={"fsdp": fsdp, **more}))
        for more in ({}, {"reduce_dtype": "fp32"})
    )
    assert own == said


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_no_kernel_is_priced_as_16_bits(layout: str, norm: str) -> None:
    """Kernels say fp32, TF32 or integers; or they are streams that say their bytes, by which alone these are priced."""
    for kernel in recorded("tf32", layout, model={"norm": norm}).graph.kernels:
        assert isinstance(kernel, Kernel)
        if kernel.dtype == "bf16" and kernel.kind not in ALIKE:
            assert kernel.kind in STREAM_PASSES, kernel
            assert kernel.bytes > 0, kernel


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "pp", "tp"])
def test_memory_is_twice_that_of_16_bits(layout: str) -> None:
    """Parameters, gradients, states and, but for statistics in fp32 and keys of all heads, activations.

    Segments grow, so that every block is as large as was asked.
    """
    narrow, wide = (
        recorded(
            p,
            layout,
            model={"kv_heads": 8},
            pytorch={"expandable_segments": True},
        ).memory
        for p in ("bf16", "fp32")
    )
    for rank, memory in wide.items():
        for owner in ("parameters", "optimizer"):
            most = 2 * narrow[rank].at_peak[owner]
            assert memory.at_peak[owner] == pytest.approx(most, rel=0.02)
        ratio = memory.at_peak["activations"] / narrow[rank].at_peak["activations"]
        assert 1.7 < ratio <= 2.0


def test_wider_products_take_longer() -> None:
    """Of large products fp32 takes longest, then TF32, then bf16, by at least as much as bytes alone."""
    fp32, tf32, bf16 = (
        simulate(scenario(p, model=LARGE, seq_len=2048)).step_time
        for p in ("fp32", "tf32", "bf16")
    )
    assert fp32 > tf32 > 1.5 * bf16


def test_keys_are_copied_for_every_head() -> None:
    """Forward reads the keys of a group and writes them for each of its heads; values too, in every layer."""
    low = recorded("fp32")
    program = low.graph.programs[0]
    per_head = 2 * SEQ * HIDDEN * 4.0
    wanted = Kernel(
        "aten copy", (2 * SEQ * HIDDEN,), "fp32", "row", per_head + per_head / 2
    )
    at = low.graph.kernels.index(wanted)
    copies = sum(
        int(payload == at and name == "aten.clone.default")
        for payload, name in zip(program.payload, program.names, strict=True)
    )
    microbatches = 32 // (2 * 4)
    assert copies == 2 * LAYERS * microbatches


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": EXPERTS}, "prestep capture"),
        ({"model": {"name": "resnet50"}}, "prestep capture"),
        ({"model": TRANSFORMER | {"head_dim": 30}}, "model.head_dim"),
        ({"pytorch": {"attention": "flash2"}}, "pytorch.attention"),
        ({"pytorch": {"master_weights": True}}, "pytorch.master_weights"),
        ({"training": {"optimizer": "muon"}}, "training.optimizer"),
        ({"training": {"framework": "pytorch-compiled"}}, "training.precision"),
    ],
)
def test_what_is_refused(
    changes: dict[str, dict[str, Any]], named: str, tmp_path: Path
) -> None:
    """What has no kernels in 32 bits is refused, by name."""
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER,
        "training": {"seq_len": SEQ, "micro_batch": 2, "precision": "fp32"},
        "parallel": {"dp": 4, "data_parallel": "ddp"},
    }
    for table, values in changes.items():
        tables[table] = values if table == "model" else tables.get(table, {}) | values
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in table.items())
        for name, table in tables.items()
    ]
    file = tmp_path / "wide.toml"
    file.write_text("\n".join(lines))
    result = CliRunner().invoke(main, ["run", str(file)])
    assert result.exit_code == 2 and named in result.output, result.output


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
