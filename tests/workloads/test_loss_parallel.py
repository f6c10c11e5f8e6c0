"""Laws of a vocabulary that is split over tensor-parallel ranks, and of the loss that is computed by parts."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import COMM
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric, plan
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.lowered import Lowered

HIDDEN, LAYERS, VOCAB, TOKENS, TP = 512, 2, 65_536, 1024, 4


def step(choice: str, tp: int = TP, **pytorch: Any) -> Lowered:
    """A step without data parallelism."""
    scenario = parse_scenario(
        {
            "cluster": {"name": "dgx-h100", "gpus": tp},
            "model": {
                "kind": "transformer",
                "hidden": HIDDEN,
                "layers": LAYERS,
                "heads": 8,
                "ffn": 2048,
                "vocab": VOCAB,
            },
            "training": {"seq_len": TOKENS, "micro_batch": 1},
            "parallel": {"tp": tp, "sequence_parallel": tp > 1},
            "pytorch": {"loss": "fp32", "vocabulary": choice} | pytorch,
        },
        "split",
    )
    return lowered_on(scenario, load_fabric(scenario))


def sent(low: Lowered, op: str, size: float) -> int:
    """How often rank 0 takes part in a collective of so many bytes."""
    program, comms = low.graph.programs[0], low.graph.comms
    rows = zip(program.kind, program.payload, strict=True)
    parts = [program.parts[payload] for kind, payload in rows if kind == COMM]
    made = [comms[c] for part in parts for c in part]
    return sum(comm.op == op and comm.size == size for comm in made)


def test_each_rank_has_its_rows() -> None:
    """Of embedding and head; everything else is as it was."""
    whole, split = (step(choice).memory[0].at_update for choice in ("whole", "split"))
    spared = 2 * VOCAB * HIDDEN * (1 - 1 / TP)
    for owner, wide in (("parameters", 2), ("gradients", 2), ("optimizer", 4)):
        assert whole[owner] - split[owner] == wide * spared


def test_ranks_agree_on_three_numbers_a_token() -> None:
    """The largest logit, the sum of exponentials, the target's logit: all-reduces of four bytes a token, forward alone."""
    number = 4.0 * TOKENS
    assert sent(step("split"), "all_reduce", number) == 3
    assert sent(step("gathered"), "all_reduce", number) == 0


def test_logits_are_gathered_where_the_loss_wants_all() -> None:
    """In 16 bits, once."""
    assert sent(step("gathered"), "all_gather", 2.0 * TOKENS * VOCAB) == 1
    assert sent(step("split"), "all_gather", 2.0 * TOKENS * VOCAB) == 0


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_the_loss_has_a_part_of_every_logit(tp: int) -> None:
    """Four numbers in fp32 for each logit of a part are alive at once in backward, three where a rank has all of them.

    By parts: the log-probabilities, what is zero but for targets, exponentials, and the sum of both; else the first, the
    second and the gradient. Layers, and what surrounds the head, keep at most 34 bytes for each
    token and hidden value (arXiv 2205.05198).
    """
    logits, layers = TOKENS * VOCAB, 34 * (LAYERS + 1) * TOKENS * HIDDEN
    parts, whole = (
        step(choice, tp).memory[0].at_peak["activations"]
        for choice in ("split", "whole")
    )
    assert 0 <= parts - 4 * 4 * logits / tp <= layers
    assert 0 <= whole - 3 * 4 * logits <= layers


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("parallel", "tp", 1, "pytorch.vocabulary"),
        ("pytorch", "loss", "fused", "pytorch.loss"),
        ("model", "positions", "learned", "pytorch.vocabulary"),
    ],
)
def test_what_cannot_be_split_is_refused(
    section: str, key: str, value: Any, named: str
) -> None:
    sections: dict[str, dict[str, Any]] = {
        "cluster": {"name": "dgx-h100", "gpus": 2},
        "model": {"name": "gpt2-small"}
        if key == "positions"
        else {"name": "llama3-8b"},
        "training": {"seq_len": 512},
        "parallel": {"tp": 2},
        "pytorch": {"vocabulary": "split"},
    }
    if key != "positions":
        sections[section][key] = value
    if key == "tp":
        sections["parallel"] = {"dp": 2}
    with pytest.raises(InputError, match=named):
        plan(parse_scenario(sections, "refused"))
