"""What a key of a recipe is about, by its words: whether it can be passed over, or decides what a step computes.

A key that sets a degree, a size, a layout or a number format makes another job. It is understood or refused, never
taken not to change a step. Words are those of all trainers: `pipeline_model_parallel_layout`, `EXPERT_PARALLEL` and
`--num-query-groups` are read alike.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words of degrees, sizes, layouts and number formats.
DECIDING = _set("""
parallel parallelism degree shard sharded sharding shards replicas tp pp cp ep etp vpp vp dp fsdp zero
pipeline stage stages virtual interleaved interleave layout
layers layer depth hidden ffn intermediate width dim dims head heads kv groups experts expert topk vocab vocabulary
embedding seq sequence seqlen length tokens window context batch microbatch microbatches accumulation
mtp nextn chunk state pattern recompute recomputation remat
dtype precision fp8 fp4 fp16 bf16 fp32 tf32 int8 mxfp8 nvfp4 float8 bits 4bit 8bit 16bit quantize quantization quantized
""")
#: Words of what no degree, size or format depends on; they come before the others (`eval_batch_size`, `log_layers`).
PASSING = _set("""
log logs logging logger logged wandb tensorboard mlflow mllog comet swanlab monitor metrics report print verbose debug
profile profiler profiling nsys nvtx trace timing timers timeout save saves saving load loading resume restore ckpt
dir path paths file files folder url name names project entity user seed rng random init initializer std
lr learning scheduler decay warmup beta betas eps epsilon momentum clip loss coeff dropout
eval evaluation valid validation val test tests inference generation sampling temperature prompt prompts
tokenizer template dataset data blend cache workers worker shuffle buffer
master port addr address host hostname rdzv elastic launcher slurm ray docker container download upload hub token
license version revision description author env interval frequency freq steps iters epochs early patience best keep
cuda cudnn nccl ucx sharp ib nvte te ub ck atomic overlap comm kernel kernels fusion fused async backend router
tflop tflops flops
amax algo tiktoken special ambiguous rope rotary mscale interpolation otel
""")
#: Words that make a checkpoint one of activations.
AGAIN = frozenset(("activation", "activations", "gradient"))
CHECKPOINTS = frozenset(("checkpoint", "checkpoints", "checkpointing", "ac"))
#: Data of a step whose words pass elsewhere.
SAMPLES = frozenset(("seq", "sequence", "seqlen", "length", "batch", "microbatch"))
#: Values that leave a key off.
OFF = ("null", "none", "false", "empty", "", "off", "no")
#: Numbers of degrees that leave them off.
ALONE = ("0", "1", "-1")


def words_of(key: str) -> tuple[str, ...]:
    """The words of a key, in lower case.

    Examples
    --------
    >>> words_of("model.pipelineModelParallel_size")
    ('model', 'pipeline', 'model', 'parallel', 'size')
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", key)
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)


def decides(key: str, value: Any = True) -> bool:
    """Whether a key with that value sets a degree, a size, a layout or a number format of a step.

    Examples
    --------
    >>> decides("EXPERT_PARALLEL", 8), decides("EXPERT_PARALLEL", 1)
    (True, False)
    >>> decides("model.new_layout", "Et|tL"), decides("logger.log_layers", True)
    (True, False)
    >>> decides("dataset.seq_length", 4096), decides("eval_batch_size", 4)
    (True, False)
    >>> decides("split", "100,0,0"), decides("fp8_amax_history_len", 1024)
    (False, False)
    """
    text = str(value).strip().lower()
    words = set(words_of(key))
    if value is None or text in OFF:
        return False
    if words & CHECKPOINTS:
        return bool(words & AGAIN)
    passing = words & PASSING
    if passing and not (passing <= {"dataset", "data"} and words & SAMPLES):
        return False
    degree = words & {"parallel", "parallelism", "degree"}
    return bool(words & DECIDING) and not (degree and text in ALONE)


def nearest(key: str, names: list[str]) -> str:
    """The known name that is most like a key, with what is before its last part left out; "" for none."""
    last = key.rpartition(".")[2]
    plain = {name.rpartition(".")[2].strip("*"): name for name in names}
    close = get_close_matches(last, [name for name in plain if name], n=1, cutoff=0.75)
    return close[0] if close else ""
