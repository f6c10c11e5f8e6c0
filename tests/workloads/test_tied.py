"""A tied embedding: two uses, one gradient."""

from __future__ import annotations

import pytest

from prestep.sim.predict import predict
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding.buckets import BucketPolicy
from prestep.workloads.sharding.ddp import DistributedDataParallel
from prestep.workloads.torch import aten
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer
from tests.workloads.small import TRANSFORMER, lowered, ops, scenario

VOCAB, HIDDEN = 4096, 256
TABLE = 2.0 * VOCAB * HIDDEN
TIED = TRANSFORMER | {"tied_embeddings": True}


class Costs(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return 0.0


class Recorded:
    """A small GPT on a tape, with the order in which its parameters' gradients became final."""

    def __init__(self, tied: bool) -> None:
        self.tape = t = Tape(0, Shared(), Costs())
        spec = ModelSpec(
            name="gpt",
            kind="transformer",
            hidden=HIDDEN,
            layers=2,
            heads=4,
            kv_heads=4,
            head_dim=64,
            ffn=512,
            vocab=VOCAB,
            activation="gelu",
            tied_embeddings=tied,
            norm="rms",
        )
        self.net = Transformer(t, spec, range(2), True, True)
        self.arrived: list[Tensor] = []
        for p in self.net.parameters:
            p.on_grad = self.arrived.append

    def step(self) -> None:
        t = self.tape
        loss = aten.cross_entropy(
            t, self.net.outputs(t, (2, 64), lambda block, x: block.forward(t, x))[0]
        )
        t.backward(loss, Tensor(None, loss.shape))


def test_the_hook_fires_once_and_last() -> None:
    """AccumulateGrad's hook fires when the lookup's gradient has joined the head's: after all other parameters."""
    made = Recorded(tied=True)
    made.step()
    assert sorted(map(id, made.arrived)) == sorted(map(id, made.net.parameters))
    assert made.arrived[-1] is made.net.token is made.net.head


def test_an_untied_head_is_first_and_the_embedding_last() -> None:
    """Two matrices, two gradients, at both ends of backward."""
    made = Recorded(tied=False)
    made.step()
    assert made.arrived[0] is made.net.head and made.arrived[-1] is made.net.token
    assert made.net.head is not made.net.token


def test_every_backward_pass_fires_the_hook_once() -> None:
    """With accumulation the two gradients are joined in each pass, then added to the kept one."""
    made = Recorded(tied=True)
    made.step()
    made.step()
    assert made.arrived.count(made.net.token) == 2  # type: ignore[arg-type]
    adds = [
        k
        for k in made.tape.shared.kernels
        if k.kind == "aten add" and k.shape == (VOCAB * HIDDEN,)
    ]
    launched = sum(
        made.tape.columns.payload.count(made.tape.shared.kernels[k]) for k in adds
    )
    assert launched == 2 + 1  # joined twice, accumulated once


def test_one_gradient_of_the_table_is_left_in_memory() -> None:
    """The second gradient is added in place: after backward one is alive, owned by the gradients, and goes with them."""
    made = Recorded(tied=True)
    before = made.tape.memory.now
    made.step()
    assert made.tape.memory.alive["gradients"] == sum(
        p.size for p in made.net.parameters
    )
    assert made.tape.memory.now - before == made.tape.memory.alive["gradients"]
    for p in made.net.parameters:
        p.grad = None
    made.arrived.clear()
    assert made.tape.memory.now == before


def test_both_gradients_of_the_table_are_alive_when_they_are_joined() -> None:
    """The head's waits from the start of backward to its end, so the peak holds it beside all other gradients."""
    made = Recorded(tied=True)
    made.tape.memory.reset_peak()
    before = made.tape.memory.now
    made.step()
    others = sum(p.size for p in made.net.parameters) - TABLE
    assert made.tape.memory.peak - before >= 2 * TABLE + others


def test_ddp_reduces_the_table_in_the_last_bucket() -> None:
    """It closes the bucket that is open at the end of backward; no bucket holds it twice."""
    made = Recorded(tied=True)
    t, group = made.tape, Group("dp", (0, 1), [(0, 1)], 1)
    ddp = DistributedDataParallel(
        t, made.net.parameters, group, BucketPolicy(2.0**20), view=True
    )
    made.step()
    ddp.after_backward()
    sizes = [c.size for c in t.shared.rendezvous.comms]
    assert sum(sizes) == sum(p.size for p in made.net.parameters)
    assert sizes[-1] >= TABLE and all(size < TABLE for size in sizes[:-1])


@pytest.mark.parametrize(("model", "sparse"), [(TIED, 0), (TRANSFORMER, 1)])
def test_adam_finds_no_rows_of_zeros_in_a_tied_embedding(
    model: dict[str, object], sparse: int
) -> None:
    """The head gives every row a gradient; only an embedding of its own has rows that no token touched."""
    layouts = [
        op.kernel.layout
        for op in ops(lowered(model))
        if op.kernel and op.kernel.kind == "aten _fused_adamw_"
    ]
    rows = [layout.endswith("embedding") for layout in layouts]
    assert rows.count(True) == sparse and rows.count(False) == 1


def test_a_tied_embedding_over_pipeline_stages_is_warned_of() -> None:
    """The last stage has a copy, whose gradient nobody adds to the first stage's: said, not hidden."""
    said = predict(scenario(TIED, {"microbatches": 2}, pp=2)).warnings
    assert any("tied embeddings" in warning for warning in said)
    assert not predict(scenario(TIED)).warnings
