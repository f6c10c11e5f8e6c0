"""A pipeline's cut in one text, as Megatron's --pipeline-model-parallel-layout has it: "Et*3|(tt|)*29,m|L".

A letter is a part of the model: E the embedding, t a layer, m a layer of multi-token prediction, L the head with the
loss. `|` ends a stage, `x*n` and `(...)*n` repeat, commas are for the eye. Stages are in the order that a microbatch
passes them: of rank 0, 1, ... and again from rank 0.

Source: megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

REPEATED = (re.compile(r"\(([^()]*)\)\*(\d+)"), re.compile(r"([^()*|])\*(\d+)"))
PARTS = "EtmL"
#: Parts as Megatron's lists of stages name them.
NAMES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
MOST = 100_000  # parts: more are a slip of the pen


@dataclass(frozen=True)
class PipelineLayout:
    """Parts of every stage, a letter each."""

    stages: tuple[str, ...]

    @property
    def layers(self) -> tuple[range, ...]:
        """The model's layers that each stage holds."""
        cuts, first = [], 0
        for stage in self.stages:
            cuts.append(range(first, first + stage.count("t")))
            first += stage.count("t")
        return tuple(cuts)

    @property
    def prediction(self) -> int:
        """The stage of multi-token prediction; the last, where there is none."""
        found = [at for at, stage in enumerate(self.stages) if "m" in stage]
        return found[0] if found else len(self.stages) - 1

    def count(self, part: str) -> int:
        """How often a part is there."""
        return sum(stage.count(part) for stage in self.stages)


@cache
def pipeline_layout(text: str) -> PipelineLayout:
    """The stages that a text says.

    Raises
    ------
    ValueError
        Saying what in the text is no layout.
    """
    spread = "".join(text.replace(",", "").split())
    for pattern in REPEATED:
        if (
            sum(int(found[2]) * len(found[1]) for found in pattern.finditer(spread))
            > MOST
        ):
            raise ValueError(f"more than {MOST} parts")
        spread = pattern.sub(lambda found: found[1] * int(found[2]), spread)
    if strange := sorted(set(spread) - {*PARTS, "|"}):
        raise ValueError(f'"{strange[0]}" is none of {", ".join(PARTS)} and |')
    made = PipelineLayout(tuple(spread.split("|")))
    for problem in _problems(made.stages):
        raise ValueError(problem)
    return made


def spelled(stages: Sequence[Sequence[str]]) -> str:
    """The text of a list of stages, each a list of its parts by name or letter.

    Raises
    ------
    KeyError
        For a part that has no such name.
    """
    letters = NAMES | {letter: letter for letter in PARTS}
    return "|".join("".join(letters[part] for part in stage) for stage in stages)


def _problems(stages: Sequence[str]) -> Iterator[str]:
    """What Megatron refuses, and where it would put a part that is not simulated there."""
    text = "".join(stages)
    if text.count("E") != 1 or not stages[0].startswith("E"):
        yield "the first stage must begin with E, the only one"
    if text.count("L") != 1 or not stages[-1].endswith("L"):
        yield "the last stage must end with L, the only one"
    if re.search("m.*t", text):
        yield "an m before a t: multi-token prediction comes after all layers"
    if sum("m" in stage for stage in stages) > 1:
        yield "m in several stages: they are one stage's"
    if "m" in text and not any("m" in stage for stage in stages[-2:]):
        yield "m before the last stage but one"
