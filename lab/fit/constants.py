"""Where the numbers of the package's tables stand: every one that a prediction may rest on."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[2]
TABLES = (
    "sim/costs/hardware/*.toml",
    "workloads/frameworks/*.toml",
    "sim/costs/storage/*.toml",
    "sim/costs/*.toml",
    "sim/collectives/*.toml",
    "topologies/clusters/*.toml",
)
KERNELS = "sim/costs/hardware/*-kernels.csv", "sim/costs/hardware/*-published.csv"
NUMBER = re.compile(r"\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?")
KEY = re.compile(r"^\"?[\w .-]+\"?\s*=\s*(.*)$")
# What a value holds beside numbers of its own: words, remarks, and the words of a number's source.
WORDS = re.compile(r"(evidence|source)\s*=\s*\"[^\"]*\"|#.*$")
# Counts, names and formats: a tenth more of them is another machine, or none.
COUNTS = re.compile(
    r"^(sms|threads|hosts\w*|gpus\w*|nics\w*|nvmes|sockets|nvlinks|spines\w*|leaves|ports|racks|trays|cores|version|"
    r"\w*channels|dims|shape|table|format|like|name|description|source|gpu|family|nccl|serial|generation|counts?)\b"
)


@dataclass(frozen=True)
class Constant:
    """A number of a file: the `which`th on the line that `line` finds, behind the first line that `after` finds."""

    file: str
    line: str
    after: str = ""
    which: int = 0


def every_constant() -> Iterator[tuple[str, Constant]]:
    """Name and place of every number of the tables, and of every kind of kernel of the measured ones."""
    for pattern in TABLES:
        for path in sorted(HOME.glob(pattern)):
            yield from _of_toml(path)
    for pattern in KERNELS:
        for path in sorted(HOME.glob(pattern)):
            file = str(path.relative_to(HOME))
            lines = path.read_text(encoding="utf-8").splitlines()[1:]
            for kind in sorted({",".join(line.split(",")[:3]) for line in lines}):
                yield f"{path.stem}: {kind}", Constant(file, f"^{re.escape(kind)},")


def _of_toml(path: Path) -> Iterator[tuple[str, Constant]]:
    """Name and place of every number of a TOML file."""
    heading = ""
    for text in path.read_text(encoding="utf-8").splitlines():
        if text.startswith("["):
            heading = text.partition("]")[0] + "]"
        elif KEY.match(text) and not COUNTS.match(text):
            yield from _of_line(path, heading, text)


def _of_line(path: Path, heading: str, text: str) -> Iterator[tuple[str, Constant]]:
    """The numbers of one line `key = value` that is no count."""
    key = text.partition("=")[0].strip()
    file = str(path.relative_to(HOME))
    line, after = f"^{re.escape(key)}\\s*=", f"^{re.escape(heading)}" if heading else ""
    for which in _places(text):
        words = (f"{path.stem}:", heading, key, str(which) if which else "")
        name = " ".join(word for word in words if word)
        yield name, Constant(file, line, after, which)


def _places(text: str) -> Iterator[int]:
    """Which of the numbers of a line's value are constants: not zero, and no part of a word or of a remark."""
    plain = WORDS.sub(lambda words: " " * len(words[0]), text)
    if "=" not in plain:
        return
    value = text.index("=") + 1
    starts = [number.start() for number in NUMBER.finditer(text[value:])]
    for number in NUMBER.finditer(plain, KEY.match(text).start(1)):  # type: ignore[union-attr]
        is_zero = not float(number[0].replace("_", ""))
        in_word = plain[number.start() - 1].isalpha()
        if not (is_zero or in_word):
            yield starts.index(number.start() - value)


def sampled(count: int) -> list[str]:
    """So many names of constants, by a checksum: always the same, and no choice of anybody's."""
    names = [name for name, _ in every_constant()]
    return sorted(
        sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))[:count]
    )
