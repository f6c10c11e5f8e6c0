"""`python -m lab.report.cards CHECKOUT`: predicts Megatron-Bridge's verification cards by the commands that they print.

A card (`examples/model_verification_cards/*/card.yaml`) has the command line of a run and its mean step. CHECKOUT is
that repository; each command becomes one `prestep run` on the recipe's own function, in the layout and batch that the
card says the run had: recipes change after a run. `--old ROWS` compares.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

#: Systems: the cluster, and GPUs of a host. Jobs take 16 trays of a rack.
CLUSTERS = {
    "H100": ("dgx-h100-superpod", 8),
    "GB200": ("gb200-nvl64", 4),
    "GB300": ("gb300-nvl64", 4),
}
MEASURED, STEPS = "last_10_steps_step_time_ms_avg", 10
#: Arguments of scripts/training/run_recipe.py (COMMON_OVERRIDE_FIELDS) that change a step.
ARGUMENTS = {
    "global_batch_size": ("train.global_batch_size",),
    "micro_batch_size": ("train.micro_batch_size",),
    "max_steps": ("train.train_iters",),
    "seq_length": ("dataset.seq_length", "model.seq_length"),
    **{
        name: (f"model.{name}",)
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        )
    },
}
#: Degrees of parallelism in a card's words.
DEGREES = {
    "TP": "tensor_model",
    "PP": "pipeline_model",
    "CP": "context",
    "EP": "expert_model",
    "ETP": "expert_tensor",
}
#: What `--deterministic` sets (megatron/bridge/recipes/utils/determinism_utils.py).
DETERMINISTIC = {
    "model.deterministic_mode": "true",
    "model.cross_entropy_loss_fusion": "false",
    "env_vars.NCCL_ALGO": "Ring",
    "env_vars.NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
#: Text data sets, whose samples are packed only where the command says so; others have pictures.
TEXT = ("tulu3", "openmathinstruct2", "squad", "gsm8k")
#: Keys of data, runs and files, which no step depends on and values of which are no YAML.
IDLE = re.compile(
    r"(dataset\.(blend|path|hf_|random_seed|seed|num_workers|source|task_encoder|do_)|\+|'|logger|checkpoint|scheduler"
    r"|validation|tokenizer|rng|dist\.|rerun|optimizer\.lr|ddp\.check_for_large|model\.hf_model|model\.bos)"
)


@dataclass
class Row:
    """A measured item of a card, and what is predicted for it."""

    name: str
    measured: float
    arguments: list[str]
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str = ""
    lenient: bool = False
    cold: bool = (
        False  # the first step, which compiles and allocates, is one of those timed
    )

    @property
    def error(self) -> float | None:
        """Signed, over the measured step."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the predicted interval."""
        return bool(self.low and self.high and self.low <= self.measured <= self.high)


def items(
    tree: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a card with a command and a measured step, by its dotted path."""
    if isinstance(tree, Mapping):
        if (tree.get("metrics") or {}).get(MEASURED) and tree.get("command"):
            yield ".".join(path), dict(tree)
        for key, value in tree.items():
            yield from items(value, (*path, str(key)))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from items(value, (*path, str(number)))


def cards(checkout: Path) -> Iterator[Row]:
    """The rows of all cards."""
    for card in sorted(checkout.glob("examples/model_verification_cards/*/card.yaml")):
        tree = yaml.safe_load(card.read_text())["items"]
        words = {
            path: str(item.get("expected_result", "")) for path, item in items(tree)
        }
        for path, item in items(tree):
            name = f"{card.parent.name} {path}"
            system = next(part for part in path.split(".") if part in CLUSTERS)
            # A run that was resumed has the layout of the one before.
            before = words.get(f"{item.get('depends_on')}.{system}", "")
            said = layout_of(before) | layout_of(words[path])
            arguments = command_of(checkout, item["command"], system, said)
            if whole := re.search(r"single-sequence, ([\d,]+)-token", words[path]):
                arguments += ["--set", f"training.packed={whole[1].replace(',', '')}"]
            steps = re.search(r"--max_steps (\d+)", item["command"])
            cold = steps is not None and int(steps[1]) <= STEPS
            yield Row(name, item["metrics"][MEASURED] / 1e3, arguments, cold=cold)


def layout_of(text: str) -> dict[str, str]:
    """Degrees and batch that a card's words say, by the recipe's keys.

    Examples
    --------
    >>> layout_of("with TP1/PP2/CP1/EP8/ETP1, DP8, SP off, GBS/MBS 512/1")["train.global_batch_size"]
    '512'
    """
    keys: dict[str, str] = {}
    for axis, key in DEGREES.items():
        if found := re.search(rf"(?<![A-Z]){axis}(\d+)", text):
            keys[f"model.{key}_parallel_size"] = found[1]
    if found := re.search(r"\bSP (on|off)\b", text):
        keys["model.sequence_parallel"] = str(found[1] == "on").lower()
    both = re.search(r"GBS/MBS\s+([\d,]+)/(\d+)", text)
    either = re.search(r"MBS(\d+)/GBS([\d,]+)", text)
    batch = both.groups() if both else either.groups()[::-1] if either else ()
    for key, number in zip(("global", "micro"), batch, strict=False):
        keys[f"train.{key}_batch_size"] = number.replace(",", "")
    if keys.get("model.tensor_model_parallel_size") == "1":
        keys.setdefault("model.sequence_parallel", "false")
    return keys


def command_of(
    checkout: Path, command: str, system: str, layout: Mapping[str, str]
) -> list[str]:
    """Arguments of `prestep run` for a command of scripts/training/train.sh."""
    words = shlex.split(command.replace("\n", " "))
    said = {
        word.lstrip("-").replace("-", "_"): following
        for word, following in zip(words, [*words[1:], ""], strict=True)
        if word.startswith("--")
    }
    function = said["recipe"]
    keys: dict[str, str] = {}
    file = file_of(checkout, function)
    if "perf_recipes" in str(file) and "_bf16" in function:
        # scripts/training/run_recipe.py, _apply_benchmark_runtime_defaults
        keys["optimizer.use_precision_aware_optimizer"] = "true"
    if (corpus := said.get("dataset")) in TEXT:
        keys |= {"dataset.enable_offline_packing": "false"}
        keys |= {"dataset.hf_dataset.dataset_name": corpus}
    if "deterministic" in said:
        keys |= DETERMINISTIC
    for name, fields in ARGUMENTS.items():
        keys |= {one: said[name] for one in fields if name in said}
    keys |= dict(
        re.sub(r"(?<=\w):(?=\w)", ": ", word).split("=", 1)
        for word in words
        if "=" in word and not word.startswith("--") and not IDLE.match(word)
    )
    keys = {**layout, **keys}
    cluster, each = CLUSTERS[system]
    nodes, gpus = int(said["nodes"]), int(said["gpus_per_node"])
    made = [str(file), "--function", function, "--cluster", cluster]
    made += [
        "--hosts",
        str(nodes),
        *(["--set", f"cluster.gpus={nodes * gpus}"] * (gpus < each)),
    ]
    for key, value in keys.items():
        made += ["--set", f"recipe.{key}={value}"]
    return made


def file_of(checkout: Path, function: str) -> Path:
    """The file of a recipe: the benchmark's where both have one, but for fine-tuning and names without GPUs."""
    root = checkout / "src/megatron/bridge"
    folders = ["perf_recipes", "recipes"]
    if re.search("sft|peft", function) or not re.search(r"_\d+gpu_", function):
        folders.reverse()
    for words in (rf"def {function}\(", rf"\w+ as {function}\b"):
        for folder in folders:
            for file in sorted((root / folder).rglob("*.py")):
                if re.search(words, file.read_text()):
                    return file
    raise SystemExit(f"{checkout}: no function {function}")


def predict(row: Row, seconds: int, lenient: bool = False) -> Row:
    """Fills in what `prestep run` says of a row; a second time with `--lenient` where it refuses."""
    command = [
        "-m",
        "prestep",
        "run",
        "--json",
        *(["--lenient"] * lenient),
        *row.arguments,
    ]
    try:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        row.refused = f"longer than {seconds} s"
        return row
    if done.returncode and not done.stdout:
        row.refused = row.refused or done.stderr.strip()[-600:]
        return row if lenient else predict(row, seconds, lenient=True)
    found = json.loads(done.stdout)
    row.predicted, row.lenient = found["step_time"], lenient
    if interval := found.get("uncertainty"):
        row.low, row.high = interval["low"], interval["high"]
    return row


def line(row: Row, old: Mapping[str, Row]) -> str:
    """A row of the table."""
    before = old.get(row.name)
    past = f"{before.error:+7.1%}" if before and before.error is not None else " " * 7
    if row.predicted is None or row.error is None:
        return f"{row.name:58} {row.measured:8.2f}  {past}  {row.refused.splitlines()[0][:90] if row.refused else ''}"
    words = ("inside" if row.inside else "OUTSIDE") + (
        " lenient" if row.lenient else ""
    )
    words += " with its first step" if row.cold else ""
    return f"{row.name:58} {row.measured:8.2f} {row.predicted:8.2f} {past} {row.error:+7.1%}  {words}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument(
        "--only", default="", help="part of a name, a regular expression"
    )
    parser.add_argument("--rows", type=Path, help="where to write JSON lines")
    parser.add_argument("--old", type=Path, help="JSON lines to compare with")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=300, help="of one prediction")
    said = parser.parse_args(arguments)
    old = {row.name: row for row in read(said.old)} if said.old else {}
    wanted = [row for row in cards(said.checkout) if re.search(said.only, row.name)]
    rows = []
    with ThreadPoolExecutor(said.jobs) as pool:
        for row in pool.map(lambda one: predict(one, said.seconds), wanted):
            rows.append(row)
            print(line(row, old), flush=True)
            if said.rows:
                said.rows.write_text("\n".join(json.dumps(asdict(r)) for r in rows))
    strict = [row for row in rows if row.predicted and not row.lenient]
    warm = [row for row in strict if not row.cold]
    every = [row for row in rows if row.predicted]
    for words, some in (("warm", warm), ("strict", strict), ("all", every)):
        errors = sorted(abs(row.error or 0.0) for row in some)
        median = errors[len(errors) // 2] if errors else 0.0
        print(
            f"{words}: {len(some)} of {len(rows)}, {sum(r.inside for r in some)} inside, median {median:.1%}"
        )


def read(path: Path) -> Iterator[Row]:
    """Rows that were written before."""
    for text in path.read_text().splitlines():
        yield Row(**json.loads(text))


if __name__ == "__main__":
    main()
