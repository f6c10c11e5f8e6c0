"""Files of Megatron-LM's arguments are scenarios: text, shell and YAML; what is not understood is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.workloads.arguments.megatron import sections_of
from prestep.workloads.job.model import Model
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model

LLAMA = """\
#!/bin/bash
# --num-layers 1 is a comment
TP_SIZE=4
export PP=${PP:-2}
DISTRIBUTED_ARGS=(
    --nproc_per_node 8   # GPUs
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads=32
    --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --position-embedding-type rope
    --disable-bias-linear --untie-embeddings-and-output-weights
    --vocab-size 128256 --attention-dropout 0.0 --hidden-dropout 0.0
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size ${TP_SIZE} --pipeline-model-parallel-size $PP --sequence-parallel \\
    --seq-length 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer \\
    --lr 3e-4 --data-path "$DATA" 2>&1 | tee log
"""
GPT = "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --vocab-size 50257 --seq-length 2048"
QWEN = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 94
  --hidden-size: 4096
  --ffn-hidden-size: 12288
  --num-attention-heads: 64
  --group-query-attention: true
  --num-query-groups: 4
  --kv-channels: 128
  --qk-layernorm: true
  --swiglu: true
  --normalization: RMSNorm
  --disable-bias-linear: true
  --position-embedding-type: rope
  --untie-embeddings-and-output-weights: true
  --vocab-size: 151936
  --num-experts: 128
  --moe-ffn-hidden-size: 1536
  --moe-router-topk: 8
  --moe-token-dispatcher-type: flex
  --moe-grouped-gemm: true
  --overlap-grad-reduce: false
"""
DEEPSEEK = """\
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu --normalization RMSNorm
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 129280
--multi-latent-attention --qk-layernorm --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
--v-head-dim 128 --num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-ffn-hidden-size 2048
--moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-router-enable-expert-bias
"""


def shape(model: Model) -> dict[str, object]:
    """Keys but for the name, and for the type of a router's weights, which transformers' layers alone have."""
    left_out = ("name", "router_narrow")
    return {k: v for k, v in vars(load_model(model)).items() if k not in left_out}


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("llama3-8b", "pretrain.sh", LLAMA),
        ("gpt3-175b", "args.txt", GPT),
        ("qwen3-235b-a22b", "model.yaml", QWEN),
        ("deepseek-v3", "args.txt", DEEPSEEK),
    ],
)
def test_arguments_are_the_named_model(
    tmp_path: Path, name: str, file: str, text: str
) -> None:
    """Both say the same layers; what Megatron takes for granted (GPT-3's kind of layer) need not be said."""
    (tmp_path / file).write_text(text)
    assert shape(Model(file=str(tmp_path / file))) == shape(Model(name=name))


def scenario(folder: Path, text: str, more: str = "") -> str:
    (folder / "args.sh").write_text(text)
    path = folder / "scenario.toml"
    path.write_text(f'[cluster]\nname = "dgx-h100"\n[model]\nfile = "args.sh"\n{more}')
    return str(path)


def test_training_and_layout_come_from_the_file(tmp_path: Path) -> None:
    """The scenario's own keys come first, then the file's, then defaults; variables of the script are put in."""
    s = load_scenario(scenario(tmp_path, LLAMA, "[training]\nmicro_batch = 2\n"))
    assert (s.training.framework, s.training.seq_len, s.training.global_batch) == (
        "megatron",
        8192,
        128,
    )
    assert s.training.micro_batch == 2 and s.parallel.data_parallel == "zero1"
    assert (s.parallel.tp, s.parallel.pp, s.parallel.sequence_parallel) == (4, 2, True)
    assert s.megatron.hidden_dropout == 0.0 and not s.megatron.cross_entropy_fusion


def test_a_scenario_with_arguments_runs(tmp_path: Path) -> None:
    """As a user types it, with an override on top."""
    path = scenario(tmp_path, LLAMA)
    found = CliRunner().invoke(main, ["run", path, "--set", "training.global_batch=8"])
    assert found.exit_code == 0 and "pp 2 x tp 4" in found.output


def test_mistakes_are_told_together(tmp_path: Path) -> None:
    """Unknown arguments with a guess, missing and wrong values; never a traceback."""
    wrong = "--num-layer 32 --hidden-size wide --fancy-thing 3 --normalization BatchNorm --recompute-modules mlp"
    path = scenario(tmp_path, wrong)
    found = CliRunner().invoke(main, ["run", path])
    assert found.exit_code != 0 and "Traceback" not in found.output
    for text in (
        "--num-layer",
        'did you mean "num-layers"',
        "--hidden-size",
        "--fancy-thing",
        "BatchNorm",
        "--num-layers",
        "mlp",
    ):
        assert text in found.output


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("([0]*3+[1]*58)", "([1]*3+[0]*58)"), "dense layers first"),
        (("([0]*3+[1]*58)", "([0]*3+[1]*57)"), "61 zeros and ones"),
        (
            (
                "--moe-shared-expert-intermediate-size 2048",
                "--moe-shared-expert-intermediate-size 2000",
            ),
            "a multiple",
        ),
        (
            (
                "--num-layers 61",
                "--num-layers 61 --num-layers-per-virtual-pipeline-stage 2",
            ),
            "a divisor of 61",
        ),
        (("--moe-router-topk 8", "--moe-router-topk"), "--moe-router-topk"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, change: tuple[str, str], text: str
) -> None:
    """Patterns that are no dense layers first, shared experts of another width, stages that do not divide."""
    (tmp_path / "args.txt").write_text(DEEPSEEK.replace(*change))
    with pytest.raises(InputError, match=text):
        load_model(Model(file=str(tmp_path / "args.txt")))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """And what would be read."""
    with pytest.raises(InputError, match="no such file"):
        load_model(Model(file=str(tmp_path / "gone.sh")))


def test_inline_keys_replace_the_files(tmp_path: Path) -> None:
    """Beside file, keys of [model] come first."""
    (tmp_path / "args.txt").write_text(GPT)
    small, whole = (
        load_model(Model(file=str(tmp_path / "args.txt"), layers=n)) for n in (2, 96)
    )
    assert total_parameters(small) < total_parameters(whole)


GPT_OSS = (
    "--num-layers 24 --hidden-size 2880 --num-attention-heads 64 --group-query-attention --num-query-groups 8 "
    "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --num-experts 32 --moe-router-topk 4 "
    "--quick-geglu --position-embedding-type rope --activation-func-clamp-value 7.0 --softmax-type learnable "
)


@pytest.mark.parametrize(
    "words",
    [
        "--window-size " + "9" * 5000 + ",0",
        "--window-size 127,0 --window-attn-skip-freq " + "9" * 5000,
        "--window-size 127,0 --window-attn-skip-freq [1]*999999999",
        "--moe-layer-freq [1]*999999999",
        "--moe-layer-freq [" + "1" * 5000 + "]",
    ],
)
def test_numbers_without_end_are_refused(words: str) -> None:
    """Neither a window nor a list of layers takes all memory, or ends as a mistake of prestep."""
    with pytest.raises(InputError):
        sections_of("torchrun pretrain_gpt.py " + GPT_OSS + words, "run.sh")


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ("--window-size 127,0 --window-attn-skip-freq 2", 2),
        ("--window-size 127,0 --window-attn-skip-freq [1,0]*12", 2),
        ("--window-size 127,0 --window-attn-skip-freq [1,0]*3+[0]*18", None),
        ("--window-size 127,0 --window-attn-skip-freq [" + "1,0," * 11 + "1,0]", 2),
        ("--window-size (127,0)", 0),
    ],
)
def test_windows_and_sinks_of_gpt_oss(words: str, every: int | None) -> None:
    """A window of 128 tokens is the token itself and 127 before it; a list is read where whole layers come regularly."""
    text = "torchrun pretrain_gpt.py " + GPT_OSS + words
    if every is None:
        with pytest.raises(InputError, match="window-attn-skip-freq"):
            sections_of(text, "run.sh")
        return
    model = sections_of(text, "run.sh")["model"]
    assert model["window"] == 128 and model["sinks"] and model["clamped"]
    assert model.get("window_every", 0) == every and model["gated"]
