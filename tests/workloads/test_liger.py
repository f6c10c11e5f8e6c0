"""Laws of Liger's kernels in the place of transformers' modules (`pytorch.liger`), and recipes that ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import Scenario, load_scenario, parse_scenario
from prestep.workloads.torch.liger import parts
from tests.executed import Executed, executed, step_time

FULL = ("rope", "rms_norm", "glu", "fused_linear_cross_entropy")
LLAMA = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 2,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "vocab": 32000,
    "gated": True,
    "tied_embeddings": False,
}


def scenario(*liger: str, **changes: Any) -> Scenario:
    """Transformers' Llama on one GPU, or on several."""
    pytorch = {"modules": "transformers", "liger": list(liger)}
    tables: dict[str, Any] = {
        "cluster": {
            "name": "dgx-h100",
            "gpus": changes.get("parallel", {}).get("dp", 1),
        },
        "model": LLAMA | changes.pop("model", {}),
        "training": {
            "framework": "pytorch-eager",
            "seq_len": 2048,
            "micro_batch": 2,
            **changes.pop("training", {}),
        },
        "parallel": {"dp": 1, **changes.pop("parallel", {})},
        "pytorch": pytorch | changes.pop("pytorch", {}),
        **changes,
    }
    return parse_scenario(tables, "test")


def launched(run: Executed, kind: str, *shape: int) -> int:
    """Kernels of a kind, and of a shape if one is named, that the first rank launches."""
    graph = run.lowered.graph
    program = graph.programs[0]
    numbers = program.payload[program.kind == 0].tolist()
    kernels = [graph.kernels[int(number)] for number in numbers]
    return sum(k.kind == kind and (not shape or k.shape == shape) for k in kernels)


def flops(run: Executed) -> float:
    graph = run.lowered.graph
    program = graph.programs[0]
    kernels = program.payload[program.kind == 0].tolist()
    return sum(graph.kernels[int(k)].flops for k in kernels)


def peak(run: Executed) -> float:
    """Bytes at the peak of the first rank."""
    memory = next(iter(run.lowered.memory.values()))
    return sum(memory.at_peak.values())


@given(
    tokens=st.integers(1, 1 << 18),
    hidden=st.sampled_from([768, 2048, 4096, 16384]),
    vocab=st.sampled_from([32000, 50257, 128256, 262144]),
)
def test_parts_are_all_tokens_and_no_larger_than_inputs(
    tokens: int, hidden: int, vocab: int
) -> None:
    """All but the last are of one power of two, whose logits are at most twice as large as the inputs."""
    found = parts(tokens, hidden, vocab)
    assert sum(found) == tokens and min(found) > 0
    assert len(set(found[:-1])) <= 1 and found[-1] <= found[0]
    if len(found) > 1:
        assert found[0] & (found[0] - 1) == 0
        assert found[0] * vocab <= 2 * tokens * hidden + 2 * vocab


def test_each_part_is_a_kernel_each_way() -> None:
    """Norms of both blocks and the last one; one rotation, one activation a block; one kernel of the loss a part."""
    run = executed(scenario(*FULL))
    blocks, counted = 2, len(parts(4096, 2048, 32000))
    norms = 2 * blocks + 1
    for kind, times in {
        "rms_norm": norms,
        "rms_norm_backward": norms,
        "rope": 2 * blocks,
        "glu": blocks,
        "glu_backward": blocks,
        "cross_entropy": counted,
    }.items():
        assert launched(run, f"aten liger_{kind}") == times, kind


@pytest.mark.parametrize("part", ["rope", "rms_norm", "glu", "cross_entropy"])
def test_a_part_by_liger_is_faster_and_takes_no_more_memory(part: str) -> None:
    """One kernel instead of many: the same products, less time, no more memory."""
    plain, by_liger = executed(scenario()), executed(scenario(part))
    assert step_time(by_liger) < step_time(plain)
    assert peak(by_liger) <= peak(plain)
    assert flops(by_liger) == flops(plain)


def test_a_loss_with_the_heads_product_saves_memory_and_takes_time() -> None:
    """No logits are kept; the same products; each part's gradient of the head's weights is two passes over them."""
    joined = executed(scenario("fused_linear_cross_entropy"))
    apart = executed(scenario("cross_entropy"))
    assert peak(joined) < peak(apart)
    assert flops(joined) == pytest.approx(flops(apart), rel=1e-12)
    # A larger vocabulary has more parts, and each of them more weights: its square.
    many = executed(
        scenario("fused_linear_cross_entropy", model={"vocab": 128256, "layers": 1})
    )
    usual = executed(scenario("cross_entropy", model={"vocab": 128256, "layers": 1}))
    assert step_time(many) > 1.2 * step_time(usual)


def test_a_frozen_head_has_no_gradient_to_add_up() -> None:
    """With adapters each part makes the inputs' gradient alone."""
    lora = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}
    frozen = executed(scenario(*FULL, adapter=lora))
    trained = executed(scenario(*FULL))
    weights = "aten add", 2048 * 32000
    assert launched(trained, *weights) == len(parts(4096, 2048, 32000))
    assert launched(frozen, *weights) == 0
    assert step_time(frozen) < step_time(trained)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_it_goes_with_data_parallelism(way: str) -> None:
    """Faster links are no slower, and each rank has the kernels that one GPU has."""
    several = {"dp": 4, "data_parallel": way}
    run = executed(scenario(*FULL, parallel=several))
    assert launched(run, "aten liger_rms_norm") == 5
    usual = predict(scenario(*FULL, parallel=several)).step_time
    cluster = {"name": "dgx-h100", "gpus": 4, "set": {"nvlink.bandwidth": "0.5x"}}
    slower = predict(scenario(*FULL, parallel=several, cluster=cluster)).step_time
    assert slower >= usual * (1 - 1e-9)


def test_recomputed_blocks_run_their_kernels_again() -> None:
    """Norms of blocks run again in backward, the last norm does not."""
    run = executed(scenario(*FULL, training={"recompute": "full"}))
    assert launched(run, "aten liger_rms_norm") == 2 * 4 + 1
    assert launched(run, "aten liger_glu") == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pytorch": {"modules": "plain"}}, "replace transformers' modules"),
        ({"parallel": {"tp": 2}}, "whole modules"),
        ({"pytorch": {"liger": ["cross_entropy", FULL[3]]}}, "one of the two losses"),
        ({"pytorch": {"loss": "fused"}}, "the loss is Liger's"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        scenario(*FULL, **changes)


TRAINER = """
model_name_or_path: meta-llama/Llama-3.2-1B
per_device_train_batch_size: 2
max_seq_length: 2048
bf16: true
fsdp: full_shard
"""
AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
bf16: auto
sequence_len: 2048
micro_batch_size: 2
num_epochs: 1
"""
FACTORY = """
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 2
bf16: true
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TRAINER + "use_liger_kernel: true\n", set(FULL)),
        (
            TRAINER + "use_liger_kernel: true\nliger_kernel_config:\n  rope: false\n",
            set(FULL) - {"rope"},
        ),
        (
            AXOLOTL + "liger_rms_norm: true\nliger_glu_activation: true\n"
            "liger_layer_norm: true\n",
            {"rms_norm", "glu"},
        ),
        (FACTORY + "enable_liger_kernel: true\n", set(FULL)),
        (FACTORY, set()),
    ],
)
def test_recipes_say_it(text: str, found: set[str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    assert set(scenario.pytorch.liger) == found


def test_models_with_layer_norms_keep_their_kernels(tmp_path: Path) -> None:
    """Liger has nothing for GPT-2: the step is that without it, and the reader is told."""
    path = tmp_path / "recipe.yaml"
    text = TRAINER.replace("meta-llama/Llama-3.2-1B", "openai-community/gpt2-medium")
    text = text.replace("2048", "1024")
    path.write_text(text + "use_liger_kernel: true\n")
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    assert scenario.pytorch.liger == ()
    assert any("nothing for models with layer norms" in note for note in scenario.notes)


def test_compiled_blocks_have_none(tmp_path: Path) -> None:
    """Where layers are not transformers' as they are, Liger's kernels are named as not simulated."""
    path = tmp_path / "recipe.yaml"
    path.write_text(TRAINER + "use_liger_kernel: true\ntorch_compile: true\n")
    with pytest.raises(InputError, match="use_liger_kernel"):
        load_scenario(path, ("cluster.name=dgx-h100",))
