"""Commands with options drawn at random: values that are good, and values that nobody should type.

    python -m tests.fuzz.options 5000 [--first 0]

Every command has its turn with words that are good, and up to three of its options with a value each. Prints those that
end in another way than with 0, 1 or 2 and a message, or take more than ten seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from prestep import cli
from tests.fuzz.mutants import NASTY
from tests.fuzz.running import JUDGES, ended, outcome
from tests.fuzz.seeds import Seed, seeds
from tests.workloads.recipe_examples import MEGATRON, text_with

#: Words of a command that are good; FILE, OUT and BESIDE as in seeds.
SMALL = ("--set", "model.layers=2", "--set", "training.seq_len=256")
LLAMA = ("llama1b-ddp4", *SMALL)
GOOD: tuple[tuple[str, ...], ...] = (
    ("run", *LLAMA),
    ("run", "mlp-ddp4"),
    ("run", "moe-ep4", "--set", "training.seq_len=256"),
    ("run", "BESIDE/pretrain.sh", "--cluster", "dgx-h100"),
    ("whatif", *LLAMA),
    ("whatif", "mlp-ddp4", "--set", "nvlink.bandwidth=2x"),
    ("search", "BESIDE/small.toml", "--jobs", "1", "--over", "parallel.tp=1"),
    ("collective", "--cluster", "h200-host-4", "--max-bytes", "1M"),
    ("collective", "--cluster", "mi300x", "--max-bytes", "1M"),
    ("goodput", "--step-time", "10 s", "--gpus", "1024", "--replicas", "2"),
    ("kernel", "gemm", "512,512,512"),
    ("storage", "nvme", "--cluster", "h200-host-4"),
    ("topology", "show", "dgx-h100"),
    ("topology", "check", "rail-h100"),
    ("topology", "export", "dgx-h100", "-o", "OUT.json"),
    ("list", "models"),
    ("schema",),
    (
        *("init", "--model", "llama3.2-1b", "--cluster", "dgx-h100", "--hosts", "1"),
        *("--seq-len", "512", "--global-batch", "64", "-o", "OUT", "--force"),
    ),
    ("import-recipe", "BESIDE/pretrain.sh", "--cluster", "dgx-h100"),
    ("replay", "BESIDE/trace.json"),
    ("convert", "BESIDE/trace.json", "-o", "OUT.et"),
    ("explain", "BESIDE/result.json"),
    ("doctor", "nccl", "BESIDE/log.txt", "--cluster", "rail-h100"),
    ("submit", "BESIDE/submission.jsonl"),
    (
        *("sweep", "mlp-ddp4", "--grid", "training.micro_batch=4,8", "-o", "OUT"),
        *("--jobs", "1", "--executor", "threads"),
    ),
    ("calibrate", "BESIDE/log.txt", "-o", "OUT", "--cluster", "rail-h100"),
)
#: Options that serve, start processes or wait for others.
LEFT_OUT = {"--jobs", "--executor", "--scheduler", "--verbose", "--help", "--explorer"}
KEYS = (
    *("training.micro_batch", "training.seq_len", "training.precision"),
    *("parallel.dp", "parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep"),
    *("parallel.schedule", "parallel.imbalance", "training.optimizer"),
    *("training.framework", "training.packed", "training.recompute"),
    *("adapter.kind", "adapter.rank", "rl.prompts", "model.layer_pattern"),
    *("model.name", "model.layers", "cluster.name", "cluster.hosts", "cluster.gpus"),
    *("nvlink.bandwidth", "gpu.flops", "gpu[0].clock", "nic.latency", "gpu", "nic[0]"),
    *("kernels.gemm", "host[0].bandwidth", "nccl.algo", "placement.hosts", "x"),
)
VALUES = (
    *("2", "4", "1", "0.5x", "2x", "off", "fp8", "fp32", "megatron", "automodel"),
    *("lora", "zbv", "zipf", "mi300x", "rail-h100", "qwen3-moe", "8k", "1M", "0-3"),
    *("rank", "host", "link", "10 s", "1 GB/s", "100 us", "LL", "ring", "all_gather"),
    *("BESIDE/log.txt", "BESIDE/result.json", "BESIDE", "OUT", "full", "host0"),
    *("dp=2", "gpu=9", "r2", "r4", "parallel.dp=1,2", "h100=2.5,h200=3", "cost"),
)


def drawn(number: int) -> Seed:
    """The words of an input, as a seed that has no file of its own."""
    chance = random.Random(number)
    words = list(GOOD[number % len(GOOD)])
    options = options_of(words)
    for _ in range(chance.randrange(4)):
        words += _with_value(chance, chance.choice(options))
    if len(words) > 1 and chance.random() < 0.2:
        words[chance.randrange(1, len(words))] = _value(chance)
    return Seed("options", ".txt", "", tuple(words))


def options_of(words: Sequence[str]) -> list[click.Parameter]:
    command = cli.main.get_command(None, words[0])
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words[1])
    assert command is not None
    return [p for p in command.params if not LEFT_OUT & set(p.opts)]


def _with_value(chance: random.Random, option: click.Parameter) -> list[str]:
    name = option.opts[-1]
    if not isinstance(option, click.Option):
        return [_value(chance)]
    if option.is_flag:
        return [name]
    if isinstance(option.type, click.Choice) and chance.random() < 0.8:
        return [name, str(chance.choice([*option.type.choices]))]
    if name in ("--set", "--over", "--grid"):
        return [name, f"{chance.choice(KEYS)}={_value(chance)}"]
    return [name, _value(chance)]


def _value(chance: random.Random) -> str:
    value = chance.choice(NASTY if chance.random() < 0.4 else VALUES)
    return value.replace("\x00", "")


def prepare(folder: Path) -> None:
    """The files that good words name."""
    known = {seed.name: seed for seed in seeds()}
    (folder / "pretrain.sh").write_text(text_with(MEGATRON))
    (folder / "small.toml").write_text(known["sweep"].text)
    for name, seed in (
        ("trace.json", "trace"),
        ("result.json", "result"),
        ("log.txt", "nccl_tests"),
        ("submission.jsonl", "submission"),
    ):
        known[seed].write(known[seed].text, folder / name)


def main() -> int:
    """Run them; 1 if any was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.options")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    told = parser.parse_args()
    JUDGES.update({"run", "whatif", "topology", "replay"})
    wrong, exits = 0, Counter[int]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        os.chdir(folder)  # what is written under a strange name is written here
        for number in range(told.first, told.first + told.count):
            seed = drawn(number)
            begun = time.process_time()
            found = outcome(seed, folder / "x.txt", folder / "out")
            exits[ended.code] += 1
            seconds = time.process_time() - begun
            if found or seconds > 8:
                wrong += 1
                print(f"{number} {seconds:.1f} s: {seed.words}\n{found}", flush=True)
    print(f"{told.count} inputs, {wrong} wrong; exits {dict(exits)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
