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
        "wide": WIDE.replace("grad_accumulation = 2", "microbatches = 4"),
    }
    made: list[Parts] = [
        (name, ".toml", text, run, {}) for name, text in scenarios.items()
    ]
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
