"""Laws of how experts of transformers run where nobody says it: by its release, PyTorch's, the GPU, and what is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import load_scenario
from prestep.workloads import recipes
from tests.workloads.small import ops

MODEL = """kind = "transformer"
hidden = 256
layers = 2
heads = 4
ffn = 512
vocab = 1024
experts = 8
experts_per_token = 2
"""
AXOLOTL = """base_model: Qwen/Qwen3-30B-A3B
sequence_len: 2048
micro_batch_size: 1
bf16: true
"""


def grouped(folder: Path, cluster: str, *changes: str) -> bool:
    """Whether the experts' products are grouped in a step of transformers' modules; they are there either way."""
    path = folder / "job.toml"
    path.write_text(
        f'[cluster]\nname = "{cluster}"\ngpus = 2\n[model]\n{MODEL}[training]\nframework = "pytorch-eager"\n'
        'seq_len = 128\nmicro_batch = 1\n[parallel]\ndp = 2\ndata_parallel = "fsdp"\n[pytorch]\nmodules = "transformers"\n'
    )
    scenario = load_scenario(path, changes)
    low = lowered_on(scenario, load_fabric(scenario))
    kinds = {op.kernel.kind for op in ops(low) if op.kernel}
    assert "aten mm" in kinds
    return "aten _grouped_mm" in kinds


@pytest.mark.parametrize(
    ("cluster", "changes", "expected"),
    [
        ("dgx-h100", (), True),
        ("dgx-a100", (), True),
        ("dgx-h100", ("pytorch.transformers=4",), False),
        ("dgx-h100", ("pytorch.modules=plain",), False),
        ("dgx-h100", ("pytorch.experts=loop",), False),
        ("dgx-h100", ("pytorch.transformers=4", "pytorch.experts=grouped"), True),
        # torch.nn.functional.grouped_mm is younger than 2.7, and autocast leaves fp32 weights as they are.
        ("dgx-h100", ("pytorch.version=2.7",), False),
        ("dgx-h100", ("pytorch.master_weights=true",), True),
        (
            "dgx-h100",
            ("pytorch.master_weights=true", "parallel.data_parallel=ddp"),
            False,
        ),
        # Adapters of experts are PEFT's, beside modules; beside attention alone they leave experts as they are.
        ("dgx-h100", ("adapter.kind=lora", 'adapter.targets=["fc1"]'), False),
        ("dgx-h100", ("adapter.kind=lora", 'adapter.targets=["qkv"]'), True),
    ],
)
def test_experts_run_as_the_release_has_them(
    tmp_path: Path, cluster: str, changes: tuple[str, ...], expected: bool
) -> None:
    assert grouped(tmp_path, cluster, *changes) is expected


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", None), ("eager", "loop"), ("grouped_mm", "grouped"), ("null", None)],
)
def test_a_recipe_that_names_the_experts_is_obeyed(
    tmp_path: Path, named: str, expected: str | None
) -> None:
    path = tmp_path / "axolotl.yaml"
    line = f"experts_implementation: {named}\n" if named else ""
    path.write_text(AXOLOTL + line)
    setting = recipes.read(recipes.document_of(path)).settings.get("pytorch.experts")
    assert (setting and setting.value) == expected


def test_experts_of_other_libraries_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL + "experts_implementation: sonicmoe\n")
    with pytest.raises(InputError, match="experts_implementation: found sonicmoe"):
        load_scenario(path, ["cluster.name=dgx-h100"])
