"""Good recipes and scenarios of further kinds: adapters, packs, hybrids, reinforcement learning, uneven experts, AMD."""

from __future__ import annotations

import json
from pathlib import Path

from tests.workloads.recipe_examples import EXAMPLES, text_with

ROOT = Path(__file__).parents[2]
#: Name, suffix, text, words, texts of files beside it.
Parts = tuple[str, str, str, tuple[str, ...], dict[str, str]]
SMALL = """kind = "transformer"
hidden = 256
layers = 4
heads = 8
kv_heads = 4
ffn = 512
vocab = 1000
"""
LORA = f"""[cluster]
name = "dgx-h100"
[model]
{SMALL}[training]
framework = "megatron"
seq_len = 512
micro_batch = 1
packed = 128
global_batch = 8
precision = "fp8"
[parallel]
dp = 2
tp = 2
cp = 2
data_parallel = "zero1"
sequence_parallel = true
[adapter]
kind = "lora"
rank = 8
targets = ["linear_qkv", "fc1"]
dropout = 0.1
fp8_weights = true
all_to_all = false
[megatron]
tp_comm_overlap = true
cp_comm_type = "a2a"
"""
HYBRID = """[cluster]
name = "rail-mi300x"
hosts = 1
[model]
kind = "transformer"
layer_pattern = "M-GEK-*E"
hidden = 256
heads = 8
kv_heads = 4
ffn = 512
vocab = 1000
activation = "relu2"
gated = false
experts = 8
experts_per_token = 2
moe_ffn = 256
shared_experts = 1
mamba_heads = 8
mamba_head_dim = 64
mamba_state = 64
mamba_groups = 4
conv_width = 4
linear_key_heads = 4
linear_value_heads = 8
linear_key_dim = 64
linear_value_dim = 64
attention_gate = true
[training]
framework = "megatron"
seq_len = 512
micro_batch = 1
microbatches = 4
optimizer = "muon"
[parallel]
dp = 4
tp = 2
ep = 4
etp = 1
data_parallel = "ddp"
imbalance = "zipf 0.5"
sequence_parallel = true
"""
RL = f"""[cluster]
name = "dgx-h100"
[model]
{SMALL}[training]
framework = "megatron"
[parallel]
tp = 2
data_parallel = "zero1"
[rl]
algorithm = "dapo"
prompts = 16
generations = 8
batch_multiplier = 1.5
prompt_length = 64
mean_length = 400
max_length = 1024
max_new_tokens = 900
lengths = "lognormal"
spread = 0.5
train_global_batch = 64
train_pack = 2
off_policy_steps = 1
generation_gpus = 4
generation_tp = 2
generation_memory = 0.5
max_num_seqs = 64
environment_time = "1 s"
"""
EXPERTS = f"""[cluster]
name = "dgx-h100"
[model]
{SMALL}experts = 8
experts_per_token = 2
moe_ffn = 256
[training]
framework = "megatron"
seq_len = 256
micro_batch = 1
microbatches = 2
[parallel]
dp = 8
ep = 4
imbalance = "FILE"
[megatron]
moe_token_dispatcher = "allgather"
"""
AUTOMODEL = f"""[cluster]
name = "mi300x"
[model]
{SMALL}[training]
framework = "automodel"
seq_len = 256
micro_batch = 1
microbatches = 4
recompute = "full"
[parallel]
dp = 4
pp = 2
vpp = 2
schedule = "interleaved"
data_parallel = "fsdp"
fsdp_shards = 2
[pytorch]
reduce_dtype = "fp32"
clip_gradients = true
"""
DATA = f"""[cluster]
name = "aws-p5"
hosts = 1
gpus = 4
host_factor = 1.5
numa = "wrong"
routing = "ecmp"
routing_seed = 3
set = {{ "gpu.power_limit" = "500 W", "gpu[1].clock" = "0.9x", "nic.latency" = "2x" }}
[model]
{SMALL}[training]
seq_len = 256
micro_batch = 2
optimizer = "adamw8bit"
[parallel]
dp = 4
data_parallel = "fsdp"
fsdp_shards = 2
[pytorch]
master_weights = true
reduce_dtype = "fp32"
[dataload]
workers = 2
prefetch = 2
decode = "1 ms"
sample = "100 kB"
storage = "nvme"
cpus = 16
copy = "pinned"
[checkpoint]
every = 100
mode = "sharded"
storage = "nvme"
[placement]
by = "order"
slots = 4
[nccl]
min_channels = 2
max_channels = 8
cross_nic = 1
pxn_disable = true
dp = {{ max_ctas = 4 }}
net_speed = "50 GB/s"
[faults]
slow_rank = 1
slow_factor = 1.5
jitter = 0.1
[measured]
step_time = "1 ms"
source = "nobody"
"""
CONTEXT = f"""[cluster]
name = "dgx-b200"
[model]
{SMALL}[training]
framework = "pytorch-compiled"
seq_len = 512
micro_batch = 1
precision = "nvfp4"
recompute = "full"
[parallel]
dp = 4
cp = 2
data_parallel = "fsdp"
[pytorch]
bf16_layers = 1
rotate_method = "alltoall"
clip_gradients = true
"""
DEEPEP = f"""[cluster]
name = "rail-h100"
hosts = 2
[model]
{SMALL}experts = 16
experts_per_token = 4
moe_ffn = 256
[training]
framework = "megatron"
seq_len = 512
micro_batch = 1
microbatches = 4
[parallel]
dp = 8
pp = 2
ep = 8
imbalance = "gini 0.2"
routing = "consecutive"
[megatron]
moe_token_dispatcher = "flex"
moe_flex_dispatcher_backend = "deepep"
moe_deepep_num_sms = 24
overlap_grad_reduce = true
cuda_graph_scope = ["attn"]
recompute_modules = ["moe_act"]
"""
WIDE = f"""[cluster]
name = "mi355x"
[model]
{SMALL}[training]
seq_len = 256
micro_batch = 2
grad_accumulation = 2
precision = "tf32"
optimizer = "sgd-momentum"
[parallel]
dp = 4
pp = 2
schedule = "v-half"
vpp = 2
data_parallel = "ddp"
"""


def jobs() -> list[Parts]:
    """All of them."""
    run = ("run", "FILE", "--json")
    scenarios = {
        "lora": LORA,
        "hybrid": HYBRID,
        "rl": RL,
        "automodel": AUTOMODEL,
        "context": CONTEXT,
        "deepep": DEEPEP,
        "wide": WIDE.replace("grad_accumulation = 2", "microbatches = 4"),
    }
    made: list[Parts] = [
        (name, ".toml", text, run, {}) for name, text in scenarios.items()
    ]
    made.append(("data", ".toml", DATA, ("run", "FILE", "--energy", "--json"), {}))
    counts = json.dumps([[40, 30, 20, 10, 40, 30, 20, 10]] * 4)
    beside = {"experts.toml": EXPERTS.replace('imbalance = "FILE"\n', "")}
    routed = ("run", "BESIDE/experts.toml", "--set", "parallel.imbalance=FILE")
    made += [
        ("routed_json", ".json", counts, (*routed, "--json"), beside),
        (
            "routed_csv",
            ".csv",
            "layer,expert,tokens\n"
            + "".join(f"{n // 8},{n % 8},{n + 1}\n" for n in range(32)),
            (*routed, "--json"),
            beside,
        ),
        (
            "whatif_lora",
            ".toml",
            LORA,
            ("whatif", "FILE", "--set", "nic.bandwidth=2x", "--json"),
            {},
        ),
        (
            "search",
            ".toml",
            LORA,
            (
                "search",
                "FILE",
                *("--over", "parallel.tp=1,2", "--over", "parallel.cp=1"),
                *(
                    "--over",
                    "training.micro_batch=1",
                    "--over",
                    "training.recompute=none",
                ),
                *("--over", "parallel.data_parallel=zero1", "--jobs", "1", "--json"),
            ),
            {},
        ),
        ("report", ".toml", LORA, ("run", "FILE", "--report", "OUT.html"), {}),
    ]
    return [*made, *recipes()]


def recipes() -> list[Parts]:
    """A recipe of every format, run and imported."""
    made: list[Parts] = []
    for name, example in EXAMPLES.items():
        options = tuple(
            word for option in example.options for word in ("--set", option)
        )
        at = ("--cluster", "dgx-h100", *options, "--lenient")
        for way, words in (
            ("run", ("run", "FILE", *at, "--json")),
            ("import", ("import-recipe", "FILE", *at, "-o", "OUT", "--force")),
        ):
            suffix = f"_{example.name}"
            made.append((f"recipe_{name}_{way}", suffix, text_with(example), words, {}))
    return made
