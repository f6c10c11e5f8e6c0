"""torchtitan's recipes with context or asynchronous tensor parallelism, or with an optimizer in another implementation."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import Scenario, load_scenario

RECIPE = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 32768
[optimizer]
implementation = "@OPTIMIZER@"
[parallelism]
data_parallel_shard_degree = -1
context_parallel_degree = @CP@
context_parallel_rotate_method = "@WAY@"
tensor_parallel_degree = @TP@
enable_async_tensor_parallel = @ASYNC@
[activation_checkpoint]
mode = "full"
[compile]
enable = @COMPILE@
"""


def read(folder: Path, **words: object) -> Scenario:
    """The scenario of a recipe on eight GPUs."""
    said = {
        "cp": 4,
        "tp": 1,
        "async": "false",
        "way": "alltoall",
        "compile": "true",
        "optimizer": "fused",
    }
    text = RECIPE
    for word, value in (said | words).items():
        text = text.replace(f"@{word.upper()}@", str(value))
    path = folder / "train.toml"
    path.write_text(text)
    return load_scenario(path, ["cluster.name=dgx-h100"])


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_parts_of_sequences_are_pytorchs(tmp_path: Path, compiled: str) -> None:
    s = read(tmp_path, compile=compiled)
    name = "pytorch-compiled" if compiled == "true" else "pytorch-eager"
    assert s.training.framework == name
    assert (s.parallel.dp, s.parallel.cp, s.parallel.data_parallel) == (2, 4, "fsdp")
    assert s.pytorch.rotate_method == "alltoall"


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_products_beside_exchanges(tmp_path: Path, compiled: str) -> None:
    """A compiler puts them into blocks that count as Megatron's; eager modules call them, whatever torchtitan says."""
    s = read(tmp_path, cp=1, tp=4, compile=compiled, **{"async": "true"})
    assert s.parallel.sequence_parallel
    assert s.megatron.tp_comm_overlap == (compiled == "true")
    assert s.pytorch.async_tensor_parallel == (compiled == "false")


def test_one_replica_shards_over_the_parts(tmp_path: Path) -> None:
    s = read(tmp_path, cp=8)
    assert (s.parallel.dp, s.parallel.data_parallel) == (1, "fsdp")


def test_a_way_round_without_parts_is_no_mistake(tmp_path: Path) -> None:
    assert read(tmp_path, cp=1).pytorch.rotate_method == "allgather"


def test_an_unknown_way_round_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="allgather"):
        read(tmp_path, way="broadcast")


def test_split_compiled_blocks_stay_megatrons(tmp_path: Path) -> None:
    s = read(tmp_path, cp=2, tp=2)
    assert (s.training.framework, s.parallel.cp) == ("megatron", 2)


def test_an_optimizer_over_lists(tmp_path: Path) -> None:
    s = read(tmp_path, optimizer="foreach")
    assert (s.pytorch.fused_optimizer, s.pytorch.foreach_optimizer) == (False, True)


@pytest.mark.parametrize(
    ("policy", "blocks", "head"),
    [("default", True, False), ("always", True, True), ("never", False, False)],
)
def test_the_embedding_is_apart_from_the_head(
    tmp_path: Path, policy: str, blocks: bool, head: bool
) -> None:
    """apply_fsdp: tok_embeddings as the blocks, [norm, output] freed by "always" alone."""
    path = tmp_path / "train.toml"
    read(tmp_path, cp=1)
    key = f'fsdp_reshard_after_forward = "{policy}"'
    path.write_text(path.read_text().replace("[parallelism]", f"[parallelism]\n{key}"))
    p = load_scenario(path, ["cluster.name=dgx-h100"]).parallel
    assert p.root_groups == "split"
    assert (p.reshards, p.reshard_root) == (blocks, head)
