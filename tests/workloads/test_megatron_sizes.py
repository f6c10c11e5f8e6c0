"""What Megatron's arguments say of sizes: the vocabulary by its tokenizer, and cuts of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.workloads import recipes
from prestep.workloads.megatron.schedule import layers_by_stage
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model

PLAIN = (
    "torchrun pretrain_gpt.py --num-layers {layers} --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
    "--position-embedding-type rope --micro-batch-size 1 --global-batch-size 64 --bf16 {more}"
)


def script(folder: Path, more: str, layers: int = 24) -> Path:
    """A file of Megatron's arguments, with more of them."""
    path = folder / "run.sh"
    path.write_text(PLAIN.format(layers=layers, more=more))
    return path


@pytest.mark.parametrize(
    ("words", "entries"),
    [
        ("HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B", 128256),
        (
            "HuggingFaceTokenizer --tokenizer-model mistralai/Mistral-Nemo-Base-2407",
            131072,
        ),
        ("GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt", 50257),
        ("TikTokenizer --tokenizer-model vocab.json --tiktoken-pattern v2", 131072),
        ("HuggingFaceTokenizer --tokenizer-model /data/o200k", 200019),
    ],
)
def test_a_tokenizer_says_the_vocabulary(
    words: str, entries: int, tmp_path: Path
) -> None:
    """The lengths are those of the published tokenizers, and the reader is told which one was taken."""
    path = script(tmp_path, f"--tokenizer-type {words}")
    recipe = recipes.read(recipes.document_of(path))
    assert {one.key: one.value for one in recipe.settings.values()}[
        "model.vocab"
    ] == entries
    assert any(f"{entries:,}" in note for note in recipe.assumed)


def test_the_vocabulary_of_an_unknown_tokenizer_is_asked_for(tmp_path: Path) -> None:
    """Another's would be a smaller model: 8.05B parameters become 7.39B."""
    words = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model some-org/some-tokenizer"
    path = script(tmp_path, words)
    with pytest.raises(InputError, match=r"--set model\.vocab=N"):
        load_scenario(path, ("cluster.name=dgx-h100",))
    scenario = load_scenario(path, ("cluster.name=dgx-h100", "model.vocab=131072"))
    assert scenario.model.vocab == 131072


def test_a_published_model_has_its_parameters(tmp_path: Path) -> None:
    """32 layers of Llama's shape with 131,072 entries are 8.05B parameters (Swiss AI's 8B)."""
    more = (
        "--ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --normalization RMSNorm --swiglu "
        "--untie-embeddings-and-output-weights --disable-bias-linear --tokenizer-type HuggingFaceTokenizer "
        "--tokenizer-model mistralai/Mistral-Nemo-Base-2407"
    )
    text = PLAIN.format(layers=32, more=more)
    text = text.replace("hidden-size 1024", "hidden-size 4096", 1)
    path = tmp_path / "run.sh"
    path.write_text(text.replace("heads 16", "heads 32"))
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    assert round(total_parameters(load_model(scenario.model)) / 1e9, 2) == 8.05


def stages(path: Path, *options: str) -> list[int]:
    """Layers of each stage, in the order that a microbatch passes them."""
    scenario = load_scenario(path, ("cluster.name=dgx-h100-superpod", *options))
    p = scenario.parallel
    layers = load_model(scenario.model).layers
    return [len(cut) for cut in layers_by_stage(scenario, layers, p.pp * p.vpp)]


def test_embedding_and_loss_count_as_layers(tmp_path: Path) -> None:
    """Of 94 layers and two that are counted 96 stages have one each, but for the first and the last."""
    more = (
        "--pipeline-model-parallel-size 32 --num-virtual-stages-per-pipeline-rank 3 --vocab-size 1000 "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    )
    path = script(tmp_path, more, layers=94)
    assert stages(path, "cluster.hosts=4") == [0, *[1] * 94, 0]
    said = more.replace(
        "--num-virtual-stages-per-pipeline-rank 3",
        "--num-layers-per-virtual-pipeline-stage 1",
    )
    assert stages(script(tmp_path, said, layers=94), "cluster.hosts=4") == [
        0,
        *[1] * 94,
        0,
    ]


def test_ends_of_a_pipeline_have_layers_of_their_own(tmp_path: Path) -> None:
    """61 layers with 13 on the last of four ranks are 16 on each other one; numbers that do not fit are refused."""
    more = "--pipeline-model-parallel-size 4 --vocab-size 1000 --decoder-last-pipeline-num-layers {}"
    path = script(tmp_path, more.format(13), layers=61)
    assert stages(path, "cluster.hosts=1") == [16, 16, 16, 13]
    twice = "--decoder-first-pipeline-num-layers 10 " + more.format(11)
    path = script(tmp_path, twice, layers=61)
    assert stages(path, "cluster.hosts=1") == [10, 20, 20, 11]
    with pytest.raises(InputError, match="decoder-last-pipeline-num-layers"):
        stages(script(tmp_path, more.format(12), layers=61), "cluster.hosts=1")


def test_a_layout_says_the_virtual_stages(tmp_path: Path) -> None:
    """Eight stages on four ranks are two of each rank."""
    more = '--pipeline-model-parallel-size 4 --vocab-size 1000 --pipeline-model-parallel-layout "Et*3|(tt|)*6,tL"'
    path = script(tmp_path, more, layers=16)
    assert stages(path, "cluster.hosts=1") == [3, 2, 2, 2, 2, 2, 2, 1]
