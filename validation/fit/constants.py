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
    file, heading = str(path.relative_to(HOME)), ""
    for text in path.read_text(encoding="utf-8").splitlines():
        if text.startswith("["):
            heading = text.partition("]")[0] + "]"
            continue
        found = KEY.match(text)
        if not found or COUNTS.match(text):
            continue
        key, plain = (
            text.partition("=")[0].strip(),
            WORDS.sub(lambda m: " " * len(m[0]), text),
        )
        value = text.partition("=")[2]
        for number in NUMBER.finditer(plain, found.start(1)) if "=" in plain else ():
            if (
                not float(number[0].replace("_", ""))
                or plain[number.start() - 1].isalpha()
            ):
                continue
            which = [
                one.start() + len(text) - len(value) for one in NUMBER.finditer(value)
            ].index(number.start())
            name = " ".join(
                filter(
                    None, (f"{path.stem}:", heading, key, str(which) if which else "")
                )
            )
            yield (
                name,
                Constant(
                    file,
                    f"^{re.escape(key)}\\s*=",
                    f"^{re.escape(heading)}" if heading else "",
                    which,
                ),
            )


def sampled(count: int) -> list[str]:
    """So many names of constants, by a checksum: always the same, and no choice of anybody's."""
    names = [name for name, _ in every_constant()]
    return sorted(
        sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))[:count]
    )
