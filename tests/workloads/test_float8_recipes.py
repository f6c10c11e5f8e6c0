"""Compiled linears in float8 and MXFP8 of torchtitan's recipes: compiled blocks where they are simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import Scenario, load_scenario

RECIPE = """
[model]
name = "llama3"
flavor = "8B"
converters = ["@CONVERTER@"]
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = @TP@
[activation_checkpoint]
mode = "full"
[compile]
enable = @COMPILE@
"""


def read(
    folder: Path,
    more: str = "",
    converter: str = "float8",
    tp: int = 1,
    compiled: bool = True,
    cluster: str = "dgx-h100",
) -> Scenario:
    """The scenario of a recipe with these lines."""
    text = RECIPE.replace("@CONVERTER@", converter).replace("@TP@", str(tp))
    path = folder / "train.toml"
    path.write_text(text.replace("@COMPILE@", str(compiled).lower()) + more)
    return load_scenario(path, [f"cluster.name={cluster}"])


@pytest.mark.parametrize(
    ("lines", "scaling", "gathers"),
    [
        ("", "dynamic", False),
        ("[float8]\nenable_fsdp_float8_all_gather = true\n", "dynamic", True),
        ('[float8]\nrecipe_name = "rowwise"\n', "rowwise", False),
    ],
)
def test_float8_is_that_of_compiled_blocks(
    tmp_path: Path, lines: str, scaling: str, gathers: bool
) -> None:
    s = read(tmp_path, lines)
    assert (s.training.framework, s.training.precision) == ("pytorch-compiled", "fp8")
    assert (s.pytorch.fp8_scaling, s.pytorch.fp8_param_gather) == (scaling, gathers)


def test_mxfp8_is_that_of_compiled_blocks(tmp_path: Path) -> None:
    s = read(tmp_path, converter="quantize.linear.mx", cluster="dgx-b200")
    assert s.training.framework == "pytorch-compiled"
    assert s.pytorch.fp8_scaling == "mx"


def test_other_mx_formats_are_said_by_their_key(tmp_path: Path) -> None:
    lines = '[quantize.linear.mx]\nrecipe_name = "mxfp4_cutlass"\n'
    with pytest.raises(InputError, match=r"quantize\.linear\.mx\.recipe_name"):
        read(tmp_path, lines, "quantize.linear.mx", cluster="dgx-b200")


@pytest.mark.parametrize(
    ("lines", "tp"),
    [
        ("", 2),
        (
            '[float8]\nrecipe_name = "rowwise"\nenable_fsdp_float8_all_gather = true\n',
            1,
        ),
    ],
)
def test_what_compiled_blocks_refuse_is_left_to_megatrons_layers(
    tmp_path: Path, lines: str, tp: int
) -> None:
    """Split ones, and gathers in float8 of rows."""
    s = read(tmp_path, lines, tp=tp)
    assert (s.training.framework, s.training.precision) == ("megatron", "fp8")
    assert s.megatron.fp8_scaling == ("rowwise" if lines else "dynamic")
