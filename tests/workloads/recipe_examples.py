"""A small recipe of every format, written for these tests, and the scenario that a person would write for it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Example(NamedTuple):
    """A recipe's file: its name, its text, options that it needs, and the scenario beside which it stands."""

    name: str
    text: str
    scenario: dict[str, Any]
    options: tuple[str, ...] = ()
    lost: str = ""  # a line that changes a step and is not simulated
    strange: str = ""  # a line that nobody knows


CLUSTER = "cluster.name=dgx-h100"
HOST = {"name": "dgx-h100", "gpus": 8}

TORCHTITAN = Example(
    "train.toml",
    """
[job]
description = "an example"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 2
seq_len = 4096
max_norm = 1.0
steps = 10
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3-8b"},
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 4096,
            "micro_batch": 2,
            "recompute": "full",
        },
        "parallel": {"dp": 8, "data_parallel": "fsdp", "root_groups": "split"},
        "pytorch": {
            "attention": "flash2",
            "master_weights": True,
            "clip_gradients": True,
            "expandable_segments": True,
            "reduce_dtype": "fp32",
            "loss": "fp32",
        },
    },
    lost="[fault_tolerance]\nenable = true",
    strange="[new_section]\nnew_key = 3",
)
AUTOMODEL = Example(
    "pretrain.yaml",
    """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 32
  local_batch_size: 2
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 1
  cp_size: 1
  activation_checkpointing: true
dataset:
  seq_len: 2048
optimizer:
  _target_: torch.optim.AdamW
  lr: 1.0e-5
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3.2-1b"},
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 2048,
            "micro_batch": 2,
            "global_batch": 32,
            "recompute": "full",
            "optimizer": "adam",
        },
        "parallel": {"dp": 8, "data_parallel": "fsdp"},
        "pytorch": {"attention": "flash2", "clip_gradients": True},
    },
    lost="qat:\n  enabled: true",
    strange="new_section:\n  new_key: 3",
)
BRIDGE = Example(
    "bridge.py",
    '''
"""A recipe."""
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

LENGTH = 4 * 1024


def llama3_8b_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = LENGTH
    cfg.train.global_batch_size = 16
    cfg.train.micro_batch_size = 1
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.overlap_param_gather = False
    cfg.logger.log_interval = 5
    return cfg
''',
    {
        "cluster": HOST,
        "model": {"name": "llama3-8b"},
        "training": {
            "framework": "megatron",
            "seq_len": 4096,
            "micro_batch": 1,
            "global_batch": 16,
        },
        "parallel": {
            "dp": 4,
            "tp": 2,
            "data_parallel": "zero1",
            "sequence_parallel": True,
        },
        "megatron": {"overlap_grad_reduce": True},
    },
    lost="",
)
NEMO = Example(
    "nemo.py",
    """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.api import pretrain
from nemo.collections.llm.gpt.model.llama import Llama3Config8B, LlamaModel


def model():
    return run.Config(LlamaModel, config=run.Config(Llama3Config8B))


def trainer(tensor_parallelism: int = 2, num_nodes: int = 1, num_gpus_per_node: int = 8):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor_parallelism,
        sequence_parallel=True,
    )
    return run.Config(nl.Trainer, num_nodes=num_nodes, devices=num_gpus_per_node, strategy=strategy)


def pretrain_recipe(num_nodes: int = 1, performance_mode: bool = False):
    recipe = run.Partial(
        pretrain,
        model=model(),
        trainer=trainer(num_nodes=num_nodes),
        data=run.Config(MockDataModule, seq_length=4096, global_batch_size=16, micro_batch_size=1),
    )
    if performance_mode:
        recipe.trainer.strategy.tensor_model_parallel_size = 8
    return recipe
""",
    {
        **BRIDGE.scenario,
        "megatron": {"overlap_grad_reduce": False},
    },
)
MEGATRON = Example(
    "pretrain.sh",
    """
#!/bin/bash
TP=2
torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 4 --hidden-size 1024 --num-attention-heads 16 \\
  --seq-length 1024 --max-position-embeddings 1024 \\
  --micro-batch-size 2 --global-batch-size 32 \\
  --tensor-model-parallel-size $TP --sequence-parallel \\
  --use-distributed-optimizer --bf16 --lr 1e-4 --train-iters 10 @LINE@
""",
    {
        "cluster": HOST,
        "model": {
            "kind": "transformer",
            "layers": 4,
            "hidden": 1024,
            "heads": 16,
            "ffn": 4096,
            "vocab": 50304,
            "gated": False,
            "activation": "gelu",
            "norm": "layer",
            "bias": True,
            "tied_embeddings": True,
            "positions": "learned",
            "max_positions": 1024,
        },
        "training": {
            "framework": "megatron",
            "seq_len": 1024,
            "micro_batch": 2,
            "global_batch": 32,
        },
        "parallel": {
            "dp": 4,
            "tp": 2,
            "data_parallel": "zero1",
            "sequence_parallel": True,
        },
        "megatron": {
            "hidden_dropout": 0.1,
            "cross_entropy_fusion": False,
        },
    },
    lost="--cpu-offloading",
    strange="--new-key 3",
)
PRIMUS = Example(
    "primus.yaml",
    """
work_group: ${TEAM:a}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3_8B.yaml
    overrides:
      micro_batch_size: 1
      global_batch_size: ${BATCH:16}
      seq_length: 4096
      max_position_embeddings: 4096
      tensor_model_parallel_size: 2
      overlap_grad_reduce: true
      lr: 1.0e-5
""",
    {
        **BRIDGE.scenario,
        "megatron": {
            "overlap_grad_reduce": True,
            "cross_entropy_fusion": False,
            "moe_grouped_gemm": False,
            "moe_permute_fusion": False,
            "moe_token_dispatcher": "allgather",
        },
        "model": {"name": "llama3-8b"},
    },
    lost="      cpu_offloading: true",
    strange="      new_key: 3",
)
DEEPSPEED = Example(
    "ds_config.json",
    """
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 1, "overlap_comm": true}@LINE@}
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3.2-1b"},
        "training": {
            "framework": "deepspeed",
            "seq_len": 2048,
            "micro_batch": 2,
            "microbatches": 2,
        },
        "parallel": {"dp": 8, "data_parallel": "zero1"},
    },
    ("model.name=llama3.2-1b", "training.seq_len=2048"),
    lost=', "sparse_attention": {"mode": "fixed"}',
    strange=', "new_key": 3',
)
HUGGING_FACE = Example(
    "sft.yaml",
    """
model_name_or_path: meta-llama/Llama-3.2-1B
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
gradient_checkpointing: true
max_seq_length: 2048
learning_rate: 1.0e-5
fsdp: full_shard auto_wrap
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3.2-1b"},
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 2048,
            "micro_batch": 2,
            "grad_accumulation": 2,
            "recompute": "full",
        },
        "parallel": {"dp": 8, "data_parallel": "fsdp"},
        "pytorch": {
            "modules": "transformers",
            "master_weights": True,
            "clip_gradients": True,
            "fsdp": "1",
        },
    },
    lost="load_in_8bit: true",
    strange="new_key: 3",
)
AXOLOTL = Example(
    "axolotl.yaml",
    """
base_model: NousResearch/Llama-3.2-1B
bf16: auto
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 2
gradient_checkpointing: true
optimizer: adamw_torch_fused
learning_rate: 0.0002
adapter: lora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3.2-1b"},
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 2048,
            "micro_batch": 2,
            "grad_accumulation": 2,
            "recompute": "full",
        },
        "parallel": {"dp": 8, "data_parallel": "ddp"},
        "pytorch": {"modules": "transformers", "clip_gradients": True},
        "adapter": {"kind": "lora", "rank": 32, "dropout": 0.05, "fp32": True},
    },
    lost="cut_cross_entropy: true",
    strange="new_key: 3",
)
LLAMA_FACTORY = Example(
    "sft.yaml",
    """
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: q_proj,v_proj
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3.2-1b"},
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 1024,
            "micro_batch": 1,
            "grad_accumulation": 8,
            "recompute": "full",
        },
        "parallel": {"dp": 8, "data_parallel": "ddp"},
        "pytorch": {"modules": "transformers", "clip_gradients": True},
        "adapter": {"kind": "lora", "rank": 8, "targets": ["qkv"], "fp32": True},
    },
    lost="quantization_bit: 4",
    strange="new_key: 3",
)
MLPERF = Example(
    "config_DGXH100_1x8_8b.sh",
    """
export MODEL_SIZE=8b
export MINIBS=4
export TENSOR_MODEL_PARALLEL=2
export PIPELINE_MODEL_PARALLEL=1
export INTERLEAVED_PIPELINE=null
export CONTEXT_PARALLEL=1
export MICRO_BATCH_SIZE=1
export FP8=True
export DGXNNODES=1
export DGXNGPU=8
export WALLTIME=$((5 + ${NEXP:-1} * 10))
""",
    {
        "cluster": HOST,
        "model": {"name": "llama3-8b", "vocab": 128256},
        "training": {
            "framework": "megatron",
            "precision": "fp8",
            "seq_len": 8192,
            "micro_batch": 1,
            "microbatches": 4,
        },
        "pytorch": {"cuda": "13"},
        "parallel": {
            "dp": 4,
            "tp": 2,
            "data_parallel": "zero1",
            "sequence_parallel": True,
            "uneven_stages": True,
        },
        "megatron": {
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "main_grads": "bf16",
            "bucket_size": 128 * 1024 * 1024,
        },
    },
    lost="export CPU_OFFLOADING=1",
    strange="export NEW_KEY=3",
)
LAUNCH = Example(
    "run.sh",
    """
#!/bin/bash
OUTPUT=$1
if [ "$OUTPUT" == "" ]; then
  OUTPUT=./out
fi
torchrun --nproc_per_node 8 run_clm.py \\
  --model_name_or_path meta-llama/Llama-3.2-1B \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 2 \\
  --max_seq_length 2048 --bf16 --gradient_checkpointing @LINE@ \\
  --fsdp full_shard --output_dir $OUTPUT
""",
    HUGGING_FACE.scenario,
    lost="--load_in_8bit",
    strange="--new_key 3",
)

EXAMPLES = {
    "torchtitan": TORCHTITAN,
    "automodel": AUTOMODEL,
    "megatron_bridge": BRIDGE,
    "nemo": NEMO,
    "megatron": MEGATRON,
    "primus": PRIMUS,
    "deepspeed": DEEPSPEED,
    "hugging_face": HUGGING_FACE,
    "launch": LAUNCH,
    "axolotl": AXOLOTL,
    "llama_factory": LLAMA_FACTORY,
    "mlperf": MLPERF,
}


def text_with(example: Example, line: str = "") -> str:
    """The recipe with one more line, where the format has its place for it."""
    if "@LINE@" in example.text:
        return example.text.replace("@LINE@", line)
    return f"{example.text.rstrip()}\n{line}\n"
