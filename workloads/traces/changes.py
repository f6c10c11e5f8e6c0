"""What `--set` asks of a replay, read and sorted; kernels of a draft made shorter or longer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from prestep.sim.errors import InputError, Mistake, unknown
from prestep.workloads.job.limits import RANKS
from prestep.workloads.operation import words
from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.work import FAMILIES, GPU

KEYS = words(
    "parallel.dp parallel.bucket_cap parallel.data_parallel faults.slow_rank faults.slow_factor "
    "faults.slow_per_layer cluster.host_factor"
)
SECTIONS = ("parallel", "faults", "kernels", "nccl", "training", "model", "cluster")
# What ends the name of a GPU's attribute; all other changes of a cluster are those of links.
GPU_ATTRIBUTES = ("flops", "hbm_bandwidth", "clock", "power_limit")


@dataclass
class Changes:
    """What `--set` asks for, sorted by who does it."""

    links: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, float] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    fused: list[list[str]] = field(default_factory=list)

    @property
    def cluster(self) -> dict[str, str]:
        """Changes of links and GPUs, as a cluster takes them."""
        return self.links | self.gpus

    @property
    def communication(self) -> bool:
        """Whether communication cannot stay as it was recorded."""
        made = self.keys.get("parallel.data_parallel") == "ddp"
        return bool(
            any(not is_one(factor) for factor in self.links.values())
            or self.nccl
            or made
            or {"parallel.dp", "parallel.bucket_cap"} & set(self.keys)
        )


def parse(changes: Iterable[str]) -> Changes:
    """Reads `--set` texts.

    Raises
    ------
    InputError
        With every text that is no change of a replay.
    """
    asked, mistakes = Changes(), list[Mistake]()
    short = {key.partition(".")[2]: key for key in KEYS}
    for text in changes:
        key, equals, value = (part.strip().strip('"') for part in text.partition("="))
        if not equals or not value:
            mistakes.append(Mistake("--set", text, "no value", "KEY=VALUE"))
        else:
            _sort_in(asked, short.get(key, key), value, mistakes)
    InputError.check(mistakes)
    return asked


def _sort_in(asked: Changes, key: str, value: str, mistakes: list[Mistake]) -> None:
    """Puts a change where it belongs."""
    section, _, rest = key.partition(".")
    if section == "kernels":
        _kernels(asked, rest, value, mistakes)
    elif section == "nccl":
        asked.nccl[rest] = value
    elif key in KEYS:
        asked.keys[key] = value
    elif section in SECTIONS:
        hint = "a trace has no such key: its model and layout are as recorded"
        mistakes.append(replace(unknown("--set", key, key, KEYS), hint=hint))
    elif key.rpartition(".")[2] == "power_limit":
        expected = (
            "gpu.clock=0.9x: a recording does not say which kernels its limit slowed"
        )
        mistakes.append(Mistake("--set", key, f'"{value}"', expected))
    elif key.rpartition(".")[2] in GPU_ATTRIBUTES:
        asked.gpus[key] = value
    else:
        asked.links[key] = value


def _kernels(asked: Changes, rest: str, value: str, mistakes: list[Mistake]) -> None:
    """A change of a family of kernels, or a fusion of several."""
    names = [name for name, _ in FAMILIES] + ["other"]
    families = {name.replace(" ", "_"): name for name in names}
    if value == "fused":
        families.pop("communication")
        parts = [part.strip().replace("-", "_") for part in rest.split("+")]
        mistakes += [
            unknown("--set", "kernels", part, families)
            for part in parts
            if part not in families
        ]
        asked.fused.append([families[part] for part in parts if part in families])
    elif rest.replace("-", "_") not in families:
        mistakes.append(unknown("--set", "kernels", rest, families))
    else:
        family = families[rest.replace("-", "_")]
        asked.kernels[family] = factor_of(f"kernels.{rest}", value, mistakes)


def factor_of(key: str, value: str, mistakes: list[Mistake]) -> float:
    """A factor such as "0.5x"; what is none is put among the mistakes."""
    match = re.fullmatch(r"([0-9.]+)\s*x?", value)
    try:
        return float(match.group(1)) if match else _wrong(key, value, mistakes)
    except ValueError:
        return _wrong(key, value, mistakes)


def _wrong(key: str, value: str, mistakes: list[Mistake]) -> float:
    mistakes.append(Mistake("--set", key, f'"{value}"', "a factor such as 0.5x, or 0"))
    return 1.0


def is_one(text: str) -> bool:
    """Whether a value is a factor that changes nothing: "1x", "100 %"."""
    match = re.fullmatch(r"([0-9.]+)\s*(x|%)", text)
    try:
        return match is not None and float(match[1]) == (1 if match[2] == "x" else 100)
    except ValueError:
        return False


def asked_factor(changes: Changes, key: str) -> float:
    """A factor among the keys."""
    mistakes: list[Mistake] = []
    factor = factor_of(key, changes.keys[key], mistakes)
    InputError.check(mistakes)
    return factor


def integer(changes: Changes, key: str, low: int) -> int:
    """A number of ranks, or of one, among the keys."""
    stated = changes.keys[key]
    try:
        value = int(stated)
    except ValueError:
        value = low - 1
    if not low <= value <= RANKS:
        expected = f"a whole number from {low} to {RANKS}"
        raise InputError.of("--set", key, f'"{stated[:60]}"', expected)
    return value


def scale(
    draft: Draft, factor: Callable[[Node], float], only: Sequence[int] | None = None
) -> int:
    """Scales kernels, and returns how many of them changed; a factor of 0 takes their pauses too."""
    changed = 0
    for rank, nodes in draft.programs.items():
        for node in nodes:
            if node.kind == GPU and not node.comms and (only is None or rank in only):
                times = factor(node)
                node.duration *= times
                changed += times != 1.0
                if times == 0:
                    node.gap = 0.0
    return changed
