"""Recipes as a user types them: run, import-recipe, whatif, sweep, search; and what is said of files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.workloads import recipes
from tests.sample import together
from tests.workloads.recipe_examples import EXAMPLES, text_with

SMALL = """
[model]
name = "llama3"
flavor = "debugmodel"
[training]
local_batch_size = 2
seq_len = 512
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "none"
"""


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli.main, list(words))


def small(folder: Path, more: str = "") -> str:
    path = folder / "debug.toml"
    path.write_text(SMALL + more)
    return str(path)


def step_of(*words: str) -> float:
    result = typed("run", *words, "--json")
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["step_time"])


def test_a_recipe_runs_where_a_scenario_does(tmp_path: Path) -> None:
    """The imported scenario takes the same time as the recipe, to the last bit."""
    recipe, scenario = small(tmp_path), tmp_path / "job.toml"
    there = ("--cluster", "dgx-h100")
    made = typed("import-recipe", recipe, *there, "-o", str(scenario))
    assert made.exit_code == 0, made.output
    assert step_of(str(scenario)) == step_of(recipe, *there)


def test_a_key_has_the_argument_that_decided_it(tmp_path: Path) -> None:
    """Megatron's arguments stand beside the keys; defaults for experts are not in a dense model's scenario."""
    script = tmp_path / "pretrain.sh"
    script.write_text(
        "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --swiglu --seq-length 2048 --vocab-size 32000 "
        "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8\n"
    )
    made = typed("import-recipe", str(script), "--cluster", "dgx-h100")
    assert made.exit_code == 0, made.output
    for line in ("model.layers: --num-layers 4", "model.gated: --swiglu", "training.global_batch: --global-batch-size 8"):  # fmt: skip
        assert f"# {line}\n" in made.stdout
    for idle in ("moe_", "attention_dropout", "model.bias:"):
        assert idle not in made.stdout


def test_hosts_decide_the_replicas(tmp_path: Path) -> None:
    """Of --cluster dgx-h100 --hosts 2 become 16 ranks of its cluster of several hosts."""
    result = typed(
        "import-recipe", small(tmp_path), "--cluster", "dgx-h100", "--hosts", "2"
    )
    assert result.exit_code == 0, result.output
    assert 'name = "dgx-h100-superpod"' in result.stdout and "dp = 16" in result.stdout


def test_a_recipe_needs_a_cluster(tmp_path: Path) -> None:
    """Without one it is told what to say; so is a cluster that does not exist."""
    result = typed("run", small(tmp_path))
    assert result.exit_code == 2 and "--cluster" in result.output
    wrong = typed("run", small(tmp_path), "--cluster", "dgx-h10")
    assert wrong.exit_code == 2 and "dgx-h100" in wrong.output


def test_several_mistakes_are_told_together(tmp_path: Path) -> None:
    """A wrong number, an unknown model and what is not simulated are one report."""
    text = SMALL.replace('"debugmodel"', '"9B"').replace("512", '"many"')
    path = tmp_path / "wrong.toml"
    path.write_text(text + "[fault_tolerance]\nenable = true\n")
    result = typed("run", str(path), "--cluster", "dgx-h100")
    assert result.exit_code == 2
    for key in ("model.flavor", "training.seq_len", "fault_tolerance.enable"):
        assert key in result.output
    assert "Traceback" not in result.output


def test_lenient_leaves_out_what_is_not_simulated(tmp_path: Path) -> None:
    """And says so among the warnings; the step is that of the recipe without it."""
    strange = small(tmp_path, "[fault_tolerance]\nenable = true\n")
    there = ("--cluster", "dgx-h100")
    refused = typed("run", strange, *there)
    assert refused.exit_code == 2 and "--lenient" in refused.output
    shown = typed("run", strange, *there, "--lenient")
    assert (
        shown.exit_code == 0 and "not simulated: fault_tolerance.enable" in shown.output
    )
    lenient = step_of(strange, *there, "--lenient")
    assert lenient == step_of(small(tmp_path), *there)


def test_studies_take_recipes(tmp_path: Path) -> None:
    """whatif, sweep and search read the file where a scenario is read."""
    recipe, there = small(tmp_path), ("--cluster", "dgx-h100")
    whatif = typed("whatif", recipe, *there, "--set", "nvlink.bandwidth=2x")
    assert whatif.exit_code == 0, whatif.output
    grid = ("--grid", "cluster.name=dgx-h100,dgx-h200", "-o", str(tmp_path / "out"))
    sweep = typed("sweep", recipe, *grid, "--executor", "threads")
    assert sweep.exit_code == 0 and "refused" not in sweep.output, sweep.output
    over = ("--over", "parallel.data_parallel=fsdp", "--over", "parallel.tp=1")
    search = typed("search", recipe, *there, *over, "--top", "2", "--jobs", "1")
    assert search.exit_code == 0, search.output


def test_python_recipes_are_never_executed(tmp_path: Path) -> None:
    """What a file would do when it is imported or called does not happen; the function's values are read all the same."""
    trap = f"open({str(tmp_path / 'trap')!r}, 'w').write('x')"
    example = EXAMPLES["megatron_bridge"]
    path = tmp_path / example.name
    path.write_text(f"{trap}\n{example.text}\n    {trap}\n")
    assert (
        step_of(
            str(path),
            "--cluster",
            "dgx-h100",
            "--function",
            "llama3_8b_pretrain_config",
        )
        > 0
    )
    assert not (tmp_path / "trap").exists()


def test_a_function_has_to_be_chosen_among_several(tmp_path: Path) -> None:
    """The error names them; a wrong name is told what there is."""
    example = EXAMPLES["megatron_bridge"]
    path = tmp_path / example.name
    path.write_text(
        example.text + example.text.replace("llama3_8b_pretrain", "other_pretrain")
    )
    result = typed("run", str(path), "--cluster", "dgx-h100")
    assert result.exit_code == 2 and "other_pretrain_config" in result.output
    wrong = typed("run", str(path), "--cluster", "dgx-h100", "--function", "other")
    assert wrong.exit_code == 2 and "other_pretrain_config" in wrong.output


def test_files_of_one_job_are_read_together(tmp_path: Path) -> None:
    """TrainingArguments, accelerate's YAML, DeepSpeed's JSON and the model's config.json."""
    arguments, model = tmp_path / "args.yaml", tmp_path / "config.json"
    arguments.write_text(
        "bf16: true\nper_device_train_batch_size: 2\nmax_seq_length: 512\n"
    )
    shape = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"intermediate_size": 512, "vocab_size": 1024}
    model.write_text(json.dumps({"model_type": "llama", **shape}))
    engine = tmp_path / "ds.json"
    engine.write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    with_all = ("--with", str(model), "--with", str(engine))
    made = typed("import-recipe", str(arguments), *with_all, "--cluster", "dgx-h100")
    assert made.exit_code == 0, made.output
    for line in (
        'framework = "deepspeed-eager"',
        'data_parallel = "zero2"',
        "config.json",
    ):
        assert line in made.stdout


@together(
    ("name", "text", "said"),
    [
        ("a.yaml", "model: [1, 2\nother: 3", "a.yaml:2"),
        ("a.yaml", "- 1\n- 2", "no keys"),
        ("a.yaml", "a: !include other.yaml\n", "a.yaml:1"),
        ("a.yaml", "a: &a [1,1]\n" + "".join(f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)), "20000 values"),
        ("a.yaml", "a: " + "[" * 3000, "a.yaml"),
        ("a.json", '{"zero_optimization": ', "a.json"),
        ("a.json", "[1]", "an object"),
        ("a.json", "{}", "nothing that a format knows"),
        ("a.toml", "[job\n", "a.toml"),
        ("a.py", "import megatron.bridge\ndef f(:\n", "a.py:2"),
        ("a.py", "x = 1", "nothing that a format knows"),
        ("a.sh", "echo hello", "nothing that a format knows"),
        ("a.sh", "source other.sh\nexport MINIBS=1", "other.sh"),
        ("a.sh", "source a.sh\nexport MINIBS=1", "circle"),
        ("a.txt", "\x00\x01", "nothing that a format knows"),
    ],
)  # fmt: skip
def test_damaged_files_are_explained(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """The error has the file, its line where there is one, and what was expected; never a traceback."""
    path = tmp_path / name
    path.write_text(text)
    result = typed("run", str(path), "--cluster", "dgx-h100")
    assert result.exit_code == 2, result.output
    assert name in result.output and said in result.output


def test_large_files_and_others_are_no_recipes(tmp_path: Path) -> None:
    """A file of megabytes is refused before it is parsed; so are bytes that are no text, and folders."""
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: 1\n" * 2**20)
    assert "more than" in typed("run", str(large)).output
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "no text" in typed("run", str(binary)).output
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert "a folder" in typed("run", str(folder)).output


def test_scenarios_take_no_recipe_options(tmp_path: Path) -> None:
    """--with beside a scenario is a mistake, and import-recipe has nothing to import."""
    path = tmp_path / "x.yaml"
    path.write_text(text_with(EXAMPLES["hugging_face"]))
    result = typed("run", "llama1b-ddp4", "--with", str(path))
    assert result.exit_code == 2 and "a scenario" in result.output
    imported = typed("import-recipe", "examples/superpod-fsdp.toml")
    assert imported.exit_code == 2 and "a scenario" in imported.output


def test_import_recipe_does_not_write_over_a_file(tmp_path: Path) -> None:
    """Unless it is told to."""
    target = tmp_path / "job.toml"
    target.write_text("mine")
    there = ("--cluster", "dgx-h100", "-o", str(target))
    result = typed("import-recipe", small(tmp_path), *there)
    assert result.exit_code == 2 and target.read_text() == "mine"
    assert typed("import-recipe", small(tmp_path), *there, "--force").exit_code == 0


@pytest.mark.parametrize(
    "word", ["--tensor-model-parallel-size 0", "--pipeline-model-parallel-size -2"]
)
def test_no_ranks_of_an_axis_are_refused(word: str, tmp_path: Path) -> None:
    """The replicas that fill the cluster are not counted with an axis that is none."""
    path = tmp_path / "pretrain.sh"
    path.write_text(text_with(EXAMPLES["megatron"], word))
    result = typed("run", str(path), "--cluster", "dgx-h100")
    assert result.exit_code == 2, result.output
    assert "expected at least 1" in result.stderr


def test_a_models_config_alone_says_what_it_takes(tmp_path: Path) -> None:
    """Nobody wrote a job beside it: bf16 and one sample, and who writes a job."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 64}')
    recipe = recipes.read(recipes.document_of(path))
    assert recipe.get("training.precision") == "bf16"
    assert recipe.get("training.micro_batch") == 1
    assert any("prestep init --model" in text for text in recipe.assumed)
