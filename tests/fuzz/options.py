"""Commands with options drawn at random: values that are good, values that nobody should type, options of another command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from prestep import cli
from tests.fuzz.damage import Chance
from tests.fuzz.running import command
from tests.fuzz.seeds import seeds
from tests.fuzz.values import KEYS, NASTY, OPTIONS
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
    ("doctor", "cluster", "rail-h100", "BESIDE/log.txt"),
    ("submit", "BESIDE/submission.jsonl"),
    (
        *("sweep", "mlp-ddp4", "--grid", "training.micro_batch=4,8", "-o", "OUT"),
        *("--jobs", "1", "--executor", "threads"),
    ),
    ("calibrate", "BESIDE/log.txt", "-o", "OUT", "--cluster", "rail-h100"),
)
#: Options that serve, start processes or wait for others.
LEFT_OUT = {"--jobs", "--executor", "--scheduler", "--verbose", "--help", "--explorer"}


def strange_options(chance: Chance, folder: Path) -> str:
    """The good words of a command with up to three of its options, and now and then another word."""
    words = list(chance.choice(GOOD))
    options = options_of(words)
    for _ in range(chance.randrange(4)):
        words += _with_value(chance, chance.choice(options))
    if len(words) > 1 and chance.random() < 0.2:
        words[chance.randrange(1, len(words))] = _value(chance)
    return command(words, folder)


def mixed_commands(chance: Chance, folder: Path) -> str:
    """The options of one command with another."""
    one, two = (list(chance.choice(GOOD)) for _ in range(2))
    at = [n for n, word in enumerate(two) if word.startswith("-")]
    taken = two[chance.choice(at) :][:2] if at else two[1:2]
    return command([*one, *taken], folder)


def options_of(words: Sequence[str]) -> list[click.Parameter]:
    known = cli.main.get_command(None, words[0])
    if isinstance(known, click.Group):
        known = known.get_command(click.Context(known), words[1])
    assert known is not None
    return [option for option in known.params if not LEFT_OUT & set(option.opts)]


def _with_value(chance: Chance, option: click.Parameter) -> list[str]:
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


def _value(chance: Chance) -> str:
    value = chance.choice(NASTY if chance.random() < 0.4 else OPTIONS)
    return value.replace("\x00", "")


def prepare(folder: Path) -> None:
    """The files that good words name, and what is none."""
    (folder / "pretrain.sh").write_text(text_with(MEGATRON))
    for name, seed in (
        ("small.toml", "sweep"),
        ("trace.json", "trace"),
        ("result.json", "result"),
        ("log.txt", "nccl_tests"),
        ("submission.jsonl", "submission"),
    ):
        (folder / name).write_bytes(seeds()[seed].data)
    (folder / "a folder").mkdir()
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "dangling.toml").symlink_to(folder / "nowhere")
