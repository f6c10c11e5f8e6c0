"""Damage that the other fuzzers do not do: the fourth fuzzer.

    python -m tests.fuzz.stranger 1000 [--first 0] [--only quantity]

Nests and repeats what a text says, writes quantities as people do, packs files badly or twice, lets files name each
other in a circle, and runs commands in surroundings that lack something.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from tests.fuzz import options
from tests.fuzz.mutants import TOKEN
from tests.fuzz.running import JUDGES, outcome
from tests.fuzz.seeds import SCENARIO, Seed, seeds
from tests.workloads.traces import synthetic

Chance = random.Random
#: What is opened thousands of times, and what closes it.
BRACKETS = (
    ("[", "]"),
    ("{", "}"),
    ('{"a":', "}"),
    ("(", ")"),
    ("- ", ""),
    ("<a>", "</a>"),
)
#: Numbers that few programs expect.
NUMBERS = (
    *("5e-324", "1e-320", "-0.0", "0e0", "1e-400", "9" * 5000, "1" + "0" * 400),
    *("0" * 5000 + "1", "1e", "1e+", "0b11", "0o17", "1.7976931348623159e308", ".5"),
    *("2147483648", "4294967297", "9007199254740993", "18446744073709551616", "+4"),
    *("1__0", "1,000", "१२", "１２", "4.0", "4.5", "1e0", "1e18", "nan", "inf"),
)  # fmt: skip


def texts(chance: Chance, folder: Path) -> str:
    """A file whose text is nested, repeated, or full of odd numbers."""
    seed = chance.choice(_seeds())
    text = seed.text
    for _ in range(chance.choice((1, 1, 2))):
        text = chance.choice((_nested, _repeated, _numbered, _numbered, _spoken))(
            text, chance
        )
    path = folder / f"x{seed.suffix}"
    seed.write(text, path)
    told = outcome(seed, path, folder / "out.json")
    return f"{seed.name}: {told}" if told else ""


@cache
def _seeds() -> list[Seed]:
    return [seed for seed in seeds() if not seed.packed and not seed.binary]


def _nested(text: str, chance: Chance) -> str:
    """Brackets within brackets in the place of a word."""
    opened, closed = chance.choice(BRACKETS)
    depth = chance.choice((50, 300, 1500, 20_000))
    made = opened * depth + chance.choice(("1", '"a"', "")) + closed * depth
    return _instead(text, chance, made)


def _repeated(text: str, chance: Chance) -> str:
    """A line, or a part from one line to another, again and again."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    first = chance.randrange(len(lines))
    part = "".join(lines[first : first + chance.choice((1, 1, 3, 10))])
    at = chance.choice((first, len(lines)))
    return "".join([*lines[:at], part * chance.choice((1, 2, 100, 3000)), *lines[at:]])


def _numbered(text: str, chance: Chance) -> str:
    found = list(re.finditer(r"\d+(?:\.\d+)?", text))
    if not found:
        return text
    one = chance.choice(found)
    return text[: one.start()] + chance.choice(NUMBERS) + text[one.end() :]


def _spoken(text: str, chance: Chance) -> str:
    """A word in letters of other alphabets, or that looks the same."""
    words = (
        "ﬁle",
        "dр",
        "ｍｏｄｅｌ",
        "İ",
        "ß",
        "a\u0301",
        "\u200b",
        "\u202e",
        "🚀",
        "\ufeff",
    )
    return _instead(text, chance, chance.choice(words))


def _instead(text: str, chance: Chance, made: str) -> str:
    found = list(TOKEN.finditer(text))
    if not found:
        return made
    one = chance.choice(found)
    return text[: one.start()] + made + text[one.end() :]


AMOUNTS = (
    *("10", "1.5", ".5", "5.", "+5", "-0", "1e3", "1E3", "1e-320", "1e300", "1_000"),
    *("1,5", "1/3", "½", "１０", "٣", "∞", "0x10", "", " 10 ", "10 10", "1 e3", "--5"),
)
UNITS = (
    *("GB/s", "GB /s", "GB / s", "gb/S", "Gbit/s", "GiB/s", "Gbps", "MB", "KiB", "B"),
    *("us", "μs", "µs", "ms", "s", "min", "h", "d", "x", "%", "W", "kW", "TFLOP/s"),
    *(
        "GHz",
        "tokens",
        "/s",
        "s/GB",
        "GB/s/s",
        "GB/us",
        "",
        "\u00a0GB/s",
        "GB/s;",
        "🐌",
    ),
)
QUANTITIES = (
    *("nvlink.bandwidth", "nvlink.latency", "nic.bandwidth", "gpu.flops", "gpu.clock"),
    *(
        "gpu.power_limit",
        "gpu.hbm_bandwidth",
        "training.seq_len",
        "parallel.bucket_cap",
    ),
    *(
        "cluster.host_factor",
        "cluster.host_memory",
        "nccl.buffsize",
        "checkpoint.every",
    ),
    *("faults.slow_factor", "training.micro_batch", "nvlink.bandwidth ", "Gpu.Flops"),
)


def quantity(chance: Chance, folder: Path) -> str:
    """An amount with a unit, as people write them, in a change or in a file."""
    key = chance.choice(QUANTITIES)
    value = chance.choice(AMOUNTS) + chance.choice(("", " ")) + chance.choice(UNITS)
    words: tuple[str, ...]
    if chance.random() < 0.6:
        command = chance.choice(("run", "whatif", "whatif", "replay"))
        file = "trace.json" if command == "replay" else "small.toml"
        words = (command, f"BESIDE/{file}", "--set", f"{key}={value}", "--json")
    else:
        section, _, name = key.strip().partition(".")
        held = f"[cluster.set]\n'{key}' = '{value}'\n"
        if section not in ("nvlink", "nic", "gpu", "Gpu"):
            held = f"[{section}]\n{name} = '{value}'\n"
        text = SCENARIO if f"[{section}]" not in held or section != "cluster" else ""
        (folder / "asked.toml").write_text(f"{text}\n{held}", encoding="utf-8")
        words = ("run", "BESIDE/asked.toml", "--json")
    told = outcome(Seed("quantity", "", "", words), folder / "x", folder / "out")
    return f"{words}: {told}" if told else ""


def packed(chance: Chance, folder: Path) -> str:
    """A trace or a file that is packed twice, cut short, of several parts, with something behind, or not what it says."""
    data = _trace() if chance.random() < 0.7 else SCENARIO.encode()
    for _ in range(chance.choice((1, 1, 2))):
        data = chance.choice(PACKED)(data, chance)
    endings = (
        ".pt.trace.json.gz",
        ".json.gz",
        ".json",
        ".toml",
        ".gz",
        ".parquet",
        ".zip",
    )
    path = folder / f"packed{chance.choice(endings)}"
    path.write_bytes(data)
    words = chance.choice(
        (
            ("replay", "FILE", "--json"),
            ("convert", "FILE", "-o", "OUT.et"),
            ("run", "FILE", "--json"),
            ("calibrate", "FILE", "-o", "OUT", "--cluster", "rail-h100"),
            ("doctor", "nccl", "FILE", "--json"),
            ("plot", "FILE", "--x", "training.micro_batch", "-o", "OUT.svg"),
            ("explain", "FILE"),
            ("submit", "FILE"),
        )
    )
    told = outcome(Seed(words[0], "", "", words), path, folder / "out")
    return f"{path.name} {words}: {told}" if told else ""


@cache
def _trace() -> bytes:
    import json

    return json.dumps(synthetic.trace(0, 1, 1)).encode()


PACKED: tuple[Callable[[bytes, Chance], bytes], ...] = (
    lambda data, _: gzip.compress(data),
    lambda data, _: gzip.compress(data),
    lambda data, _: gzip.compress(data) + b"behind it",
    lambda data, _: gzip.compress(data) + gzip.compress(b"{}"),
    lambda data, _: gzip.compress(data) + b"\0" * 100,
    lambda data, chance: gzip.compress(data)[: chance.randrange(40)],
    lambda data, chance: gzip.compress(data)[: -chance.randrange(1, 9)],
    lambda data, _: gzip.compress(data)[:-8] + b"\1" * 8,
    lambda data, _: gzip.compress(b" " * 2**28),  # a quarter of a GiB of nothing
    lambda data, _: bz2.compress(data),
    lambda data, _: lzma.compress(data),
    lambda data, _: b"PAR1" + data + b"PAR1",
    lambda data, _: b"PK\3\4" + data,
    lambda data, _: b"SQLite format 3\0" + data,
    lambda data, _: b"\x28\xb5\x2f\xfd" + data,
    lambda data, _: b"",
)


def circles(chance: Chance, folder: Path) -> str:
    """Files that name themselves or each other where one names another."""
    names = ("a.toml", "b.toml", "c.toml")
    for name in names:
        other = chance.choice((*names, *names, "nowhere.toml", ".", ""))
        text = chance.choice(
            (
                f'extends = "{other}"\n',
                f'extends = "{other}"\n[gpu]\nextends = "{other}"\n',
                f'[cluster]\nfile = "{other}"\n[model]\nname = "llama3.2-1b"\n',
                f'[cluster]\nname = "dgx-h100"\n[model]\nfile = "{other}"\n',
                f'kernels = "{other}"\nextends = "dgx-h100"\n',
                f'format = 1\nbase = "{other}"\n',
                f'defaults = "{other}"\n',
            )
        )
        (folder / name).write_text(text)
    recipe = f"defaults: [{chance.choice(('a', 'recipe', './recipe.yaml'))}]\nx: ${{x}}\ny: ${{z}}\nz: ${{y}}\n"
    (folder / "recipe.yaml").write_text(recipe)
    words = chance.choice(
        (
            ("run", "BESIDE/a.toml", "--json"),
            ("run", "mlp-ddp4", "--cluster", "BESIDE/a.toml", "--json"),
            ("topology", "show", "BESIDE/a.toml"),
            ("run", "BESIDE/recipe.yaml", "--cluster", "BESIDE/b.toml", "--json"),
            ("import-recipe", "BESIDE/recipe.yaml", "--cluster", "dgx-h100"),
            ("collective", "--cluster", "BESIDE/c.toml", "--max-bytes", "1M"),
        )
    )
    JUDGES.update({"topology", "collective"})
    told = outcome(Seed("circles", "", "", words), folder / "x", folder / "out")
    return f"{words}: {told}" if told else ""


SURROUNDINGS: tuple[dict[str, str | None], ...] = (
    *({"COLUMNS": value} for value in ("0", "1", "-5", "10", "x", "1000000", "")),
    *({"LC_ALL": value, "LANG": value} for value in ("C", "POSIX", "tr_TR.UTF-8")),
    {"HOME": None, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None},
    {"HOME": "/dev/null", "MPLCONFIGDIR": "/dev/null/x"},
    *({"TERM": value} for value in ("dumb", "", "nonsense")),
    {"TMPDIR": "/nowhere", "TEMP": "/nowhere"},
    *({"TZ": "Nowhere/Else"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}),
    {"OMP_NUM_THREADS": "x", "OPENBLAS_NUM_THREADS": "-1"},
)


@contextmanager
def _surrounded(variables: dict[str, str | None]) -> Iterator[None]:
    kept = {k: v for k, v in os.environ.items() if k not in variables}
    kept |= {key: value for key, value in variables.items() if value is not None}
    with patch.dict(os.environ, kept, clear=True):
        yield


def surroundings(chance: Chance, folder: Path) -> str:
    """A good command where the terminal, the language or a folder is not as usual."""
    words = chance.choice(options.GOOD)
    variables = chance.choice(SURROUNDINGS)
    JUDGES.update({"run", "whatif", "topology", "replay", "calibrate", "convert"})
    with _surrounded(variables):
        told = outcome(Seed("around", "", "", words), folder / "x", folder / "out")
    return f"{variables} {words}: {told}" if told else ""


KINDS = {
    kind.__name__: kind for kind in (texts, quantity, packed, circles, surroundings)
}

if __name__ == "__main__":
    from tests.fuzz.others import main

    sys.exit(main(KINDS))
