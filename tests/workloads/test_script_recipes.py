"""Shell scripts as recipes: branches, variables that only the job has, commands on one line, forks and launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep import cli
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.openers import tables_of, unchanged
from prestep.sim.spec.sections import Scenario
from prestep.topologies import load_cluster

ROOT = Path(cli.__file__).parent
SIZES = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512"
BATCH = "--micro-batch-size 1 --global-batch-size 16 --bf16"


def load(folder: Path, text: str, *options: str, name: str = "run.sh") -> Scenario:
    path = folder / name
    path.write_text(text)
    return load_scenario(path, ("cluster.name=dgx-h100", *options))


@pytest.mark.parametrize(("switch", "recompute"), [("true", "full"), ("false", "none")])
def test_a_branch_that_is_ruled_out_is_not_read(
    switch: str, recompute: str, tmp_path: Path
) -> None:
    text = f"""
again="{switch}"
args="--tensor-model-parallel-size 2"
if [ "${{again}}" = "true" ]; then
  args="$args --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
fi
torchrun pretrain_gpt.py {SIZES} {BATCH} $args
"""
    scenario = load(tmp_path, text)
    assert scenario.training.recompute == recompute
    assert scenario.parallel.tp == 2


def test_a_number_of_the_environment_is_asked_for(tmp_path: Path) -> None:
    """It is named with the key that gives it, which loads."""
    text = f"torchrun pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size $TP"
    with pytest.raises(InputError, match=r"--set parallel\.tp=N"):
        load(tmp_path, text)
    assert load(tmp_path, text, "parallel.tp=4").parallel.tp == 4


def test_a_model_without_sizes_is_asked_for_by_name(tmp_path: Path) -> None:
    text = f"torchrun pretrain_gpt.py --num-layers $LAYERS --seq-length 512 {BATCH}"
    with pytest.raises(InputError, match=r"--set model\.name=NAME"):
        load(tmp_path, text)
    assert load(tmp_path, text, "model.name=llama3-8b").model.name == "llama3-8b"


def test_megatron_deepspeed_is_deepspeed_around_megatrons_layers(
    tmp_path: Path,
) -> None:
    """Its own words mean what Megatron's and the engine's do."""
    text = f"""
deepspeed pretrain_gpt.py {SIZES} {BATCH} --normalization rmsnorm --num-key-value-heads 4 \\
  --deepspeed --zero-stage=2 --checkpoint-activations --num-experts 1 --topk 2
"""
    scenario = load(tmp_path, text)
    assert scenario.training.framework == "deepspeed"
    assert scenario.parallel.data_parallel == "zero2"
    assert scenario.training.recompute == "full"
    assert (scenario.model.norm, scenario.model.kv_heads) == ("rms", 4)
    assert not scenario.model.experts


def test_a_stage_that_there_is_not_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="zero-stage"):
        load(
            tmp_path, f"deepspeed x.py {SIZES} {BATCH} --deepspeed --zero-stage deep\n"
        )


def test_several_commands_of_a_line_are_all_read(tmp_path: Path) -> None:
    text = """
export DGXNNODES=1; export DGXNGPU=8; export MINIBS=4 && export MODEL_SIZE=8b
export NCCL_MIN_CTAS=32; export NCCL_P2P_NET_CHUNKSIZE=2097152
export TENSOR_MODEL_PARALLEL=2; export NVTE_FWD_LAYERNORM_SM_MARGIN=8
"""
    scenario = load(tmp_path, text, name="config_DGXH100_1x8x4.sh")
    assert (scenario.nccl.min_ctas, scenario.nccl.p2p_net_chunksize) == (32, 2097152)
    assert (scenario.parallel.tp, scenario.training.microbatches) == (2, 4)
    assert any("NVTE_FWD_LAYERNORM_SM_MARGIN" in note for note in scenario.notes)


@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_chat_is_deepspeeds_stage(stage: int, tmp_path: Path) -> None:
    text = f"""
ZERO_STAGE=$1
if [ "$ZERO_STAGE" == "" ]; then
  ZERO_STAGE={stage}
fi
deepspeed main.py --model_name_or_path facebook/opt-1.3b --per_device_train_batch_size 4 \\
  --max_seq_len 512 --deepspeed --dtype bf16 --zero_stage $ZERO_STAGE &> out.log
"""
    scenario = load(tmp_path, text)
    assert scenario.parallel.data_parallel == f"zero{stage}"
    assert scenario.training.seq_len == 512
    assert scenario.model.name == "opt-1.3b"


def test_larger_chunks_hold_more_of_a_message_until_the_buffer_is_full() -> None:
    fabric = load_cluster("rail-h100")
    ranks = [fabric.gpus[0], fabric.gpus[8]]

    def buffered(chunk: int | None) -> float:
        settings = Nccl(p2p_net_chunksize=chunk)
        return plan_collective("send", 2.0**30, ranks, fabric, settings).buffered

    assert buffered(None) == buffered(1 << 17) < buffered(1 << 18)
    assert buffered(1 << 19) == buffered(1 << 21)


def test_the_last_place_of_a_recipe_counts() -> None:
    """A cluster's name takes the place of its file, and the other way round; what-ifs keep the first."""
    script = ROOT / "examples" / "pretrain_llama3_70b.sh"
    file = f"cluster.file={ROOT / 'examples' / 'clusters' / 'hall.toml'}"
    name, hosts = "cluster.name=dgx-b200-superpod", "cluster.hosts=32"
    by_name = load_scenario(script, (file, name, hosts)).cluster
    by_file = load_scenario(script, (name, file, hosts)).cluster
    assert by_name == load_scenario(script, (name, hosts)).cluster
    assert by_file == load_scenario(script, (file, hosts)).cluster
    assert by_name != by_file
    assert unchanged(tables_of(script), (file, name, hosts)) == (file, hosts)
