"""DistributedDataParallel: buckets as PyTorch's reducer logs them, each reduced while backward goes on.

The logged figures are `_get_ddp_logging_data()` of PyTorch 2.11 on 4x H200, field `ddp_log` of the training rows of the
same name (lab/cases/h200): rebuilt_bucket_sizes and rebuilt_per_bucket_param_indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.workloads.job.model import Model
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.tensor import ExpertParallel
from prestep.workloads.sharding.buckets import BucketPolicy
from prestep.workloads.sharding.ddp import DistributedDataParallel
from prestep.workloads.torch import aten
from prestep.workloads.torch.convnet import MultilayerPerceptron, ResNet, mse_loss
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer
from tests.workloads.small import MLP, communications, lowered, ops, volume

MIB = 2.0**20
WORLD = (0, 1, 2, 3)
HEAD, WIDE, REST = (
    525336576,
    33554432,
    54534144,
)  # 1b: the output head; w1, w2 or w3; attention, two norms and a w2


class Logged(DistributedDataParallel):
    """Writes down what every bucket holds: (bytes, indices of its parameters in the order they came)."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log: list[tuple[float, list[int]]] = []

    def _reduce(self, members: Sequence[Tensor], size: float) -> None:
        index = {id(p): i for i, p in enumerate(self.parameters)}
        self.log.append((size, [index[id(p)] for p in members]))
        super()._reduce(members, size)


def net_of(t: Tape, m: ModelSpec, ep: int) -> tuple[list[Tensor], Tensor]:
    """What DDP averages, and the loss."""
    if m.kind == "mlp":
        mlp = MultilayerPerceptron(t, m)
        return mlp.parameters, mse_loss(t, mlp.forward(t, 4))
    if m.kind == "resnet":
        convnet = ResNet(t, m)
        return convnet.parameters, aten.cross_entropy(t, convnet.forward(t, 1))
    parallel = (
        ExpertParallel(Group("ep", WORLD[:ep], [WORLD[:ep]], 1)) if ep > 1 else None
    )
    net = Transformer(t, m, range(m.layers), True, True, parallel)
    local = {
        id(p)
        for b in net.blocks
        for p in (b.parts[-1].expert_parameters if ep > 1 else [])
    }  # type: ignore[attr-defined]
    loss = aten.cross_entropy(
        t, net.outputs(t, (1, 64), lambda block, x: block.forward(t, x))[0]
    )
    return [p for p in net.parameters if id(p) not in local], loss


def buckets(
    m: ModelSpec, cap: float, first: float, ep: int = 1
) -> list[tuple[float, list[int]]]:
    """The buckets of one backward pass."""
    t, policy = Tape(0, Shared(), defaultdict(float)), BucketPolicy(cap, first)
    parameters, loss = net_of(t, m, ep)
    wrapped = Logged(t, parameters, Group("dp", WORLD, [WORLD], 1), policy, True)
    t.backward(loss, Tensor(None, loss.shape))
    wrapped.after_backward()
    return wrapped.log


def runs(text: str) -> list[list[int]]:
    """Descending runs: "146 145-144" is [[146], [145, 144]]."""
    ends = [[int(n) for n in word.split("-")] for word in text.split()]
    return [list(range(run[0], run[-1] - 1, -1)) for run in ends]


@pytest.mark.parametrize(
    ("model", "megabytes", "sizes", "indices"),
    [
        # 1b-ddp4-b2: the first bucket closes at 25 MiB too, because the script says bucket_cap_mb = 25.
        (
            "llama3-1b-plain",
            25,
            [HEAD, 33558528, WIDE, WIDE, *[REST, WIDE, WIDE] * 15, 546316288],
            "146 145-144 143 142 141-135 134 133 132-126 125 124 123-117 116 115 114-108 107 106 105-99 98 97 96-90 89 88 "
            "87-81 80 79 78-72 71 70 69-63 62 61 60-54 53 52 51-45 44 43 42-36 35 34 33-27 26 25 24-18 17 16 15-9 8 7 6-0",
        ),
        (
            "llama3-1b-plain",
            100,
            [
                HEAD,
                109060096,
                113250304,
                *[121643008] * 14,
                546316288,
            ],  # 1b-ddp4-b4-bk100
            "146 145-140 139-133 132-124 123-115 114-106 105-97 96-88 87-79 78-70 69-61 60-52 51-43 42-34 33-25 24-16 15-7 "
            "6-0",
        ),
        (
            "llama3-125m-plain",
            25,
            [
                49152000,
                *[27138048] * 3,
                27136512,
                28317696,
                28317696,
                53873664,
            ],  # 125m-ddp4-b4
            "110 109-93 92-76 75-59 58-43 42-25 24-7 6-0",
        ),
        ("mlp-1024", 25, [4200450], "5-0"),  # seed-ddp4
        ("mlp-8192", 25, [134250498, 134234112], "5-2 1-0"),  # seedbig-ddp4
    ],
)
def test_buckets_are_those_pytorch_logs(
    model: str, megabytes: int, sizes: list[int], indices: str
) -> None:
    """After the first iteration: gradients in the order they become ready, closed when the cap is reached."""
    found = buckets(load_model(Model(name=model)), megabytes * MIB, megabytes * MIB)
    assert [size for size, _ in found] == sizes
    assert [members for _, members in found] == runs(indices)


def test_small_buckets_are_those_pytorch_logs() -> None:
    """1b-ddp4-b4-bk1: with 1 MiB every matrix has a bucket of its own, norms go with the matrix after them."""
    block = [33558528, WIDE, WIDE, 8392704, 2097152, 2097152, 8388608]
    found = buckets(load_model(Model(name="llama3-1b-plain")), MIB, MIB)
    assert [size for size, _ in found] == [HEAD, *block * 16, 525340672]


@pytest.mark.parametrize(
    ("model", "ep", "count", "sizes"),
    [
        (
            "moe8x-plain",
            1,
            106,
            {131072000, 33558528, 33554432, 33591296, 131076096},
        ),  # moe-ddp4-ep1-b4
        (
            "moe8x-plain",
            4,
            10,
            {131072000, 33595392, 131076096},
        ),  # moe-ddp4-ep4-b4: experts are ignored
        ("resnet50", 1, 2, {28256208, 22857856}),  # rn50-ddp4-b128
    ],
)
def test_bucket_sizes_of_other_models(
    model: str, ep: int, count: int, sizes: set[int]
) -> None:
    """Experts that are spread over ranks are not averaged; convolutions and batch norms come as they were logged."""
    found = [
        size
        for size, _ in buckets(load_model(Model(name=model)), 25 * MIB, 25 * MIB, ep)
    ]
    assert len(found) == count and set(found) == sizes


widths = st.lists(st.integers(1, 3000), min_size=2, max_size=8)


@given(widths, st.floats(1.0, 40 * MIB), st.floats(1.0, 4 * MIB))
def test_every_parameter_is_in_one_bucket_in_reverse_order(
    sizes: list[int], cap: float, first: float
) -> None:
    """A bucket closes with the gradient that reaches its cap, the first at its own; only the last may stay below."""
    m = ModelSpec(
        name="mlp", kind="mlp", sizes=tuple(sizes), activation="relu", bias=True
    )
    found = buckets(m, cap, first)
    members = [i for _, bucket in found for i in bucket]
    assert members == list(reversed(range(2 * (len(sizes) - 1))))
    shapes = [n for a, b in pairwise(sizes) for n in (a * b, b)]
    for at, (size, bucket) in enumerate(found):
        limit = first if at == 0 else cap
        assert size == sum(2.0 * shapes[i] for i in bucket)
        assert size - 2.0 * shapes[bucket[-1]] < limit
        assert size >= limit or at == len(found) - 1


def test_a_bucket_that_just_reaches_its_cap_is_closed() -> None:
    """Equal is enough: a cap of one layer's bytes gives every layer a bucket."""
    layer = 2.0 * (512 * 512 + 512)
    found = buckets(
        ModelSpec(
            name="mlp", kind="mlp", sizes=(512,) * 5, activation="relu", bias=True
        ),
        layer,
        layer,
    )
    assert found == [(layer, [2 * at + 1, 2 * at]) for at in reversed(range(4))]


def test_the_first_bucket_is_small_unless_a_cap_is_said() -> None:
    """Without bucket_cap the first bucket closes at 1 MiB and the others at 25; a cap that is said holds for all."""
    wide = {"kind": "mlp", "sizes": [1024] * 16}

    def sizes(**parallel: Any) -> list[float]:
        return [c.size for op in ops(lowered(wide, dp=4, **parallel)) for c in op.comms]

    assert sizes()[0] == 1024 * 1024 * 2 + 1024 * 2 and len(sizes()) == 3
    assert (
        sizes(bucket_cap="25 MiB")[0] >= 25 * MIB
        and len(sizes(bucket_cap="25 MiB")) == 2
    )
    assert (
        sum(sizes()) == sum(sizes(bucket_cap="25 MiB")) == 15 * (1024 * 1024 + 1024) * 2
    )


def test_buckets_are_reduced_in_the_last_backward_pass_only() -> None:
    """no_sync: gradient accumulation sends as much as one pass (1b-ddp4-b2-ga4 logs the same 50 buckets)."""
    one, four = (lowered(dp=4, training={"grad_accumulation": n}) for n in (1, 4))
    assert (
        communications(one) == communications(four)
        and volume(one, "dp all_reduce") == 2.0 * one.parameters
    )
    assert {op.microbatch for op in ops(four) if op.comms} == {3}


def test_all_reduces_overlap_backward() -> None:
    """A full bucket is sent while backward goes on; the optimizer waits for the last one."""
    rows = ops(lowered(dp=4, bucket_cap="0.1 MiB"))
    sent = [op.index for op in rows if op.comms]
    last_backward = max(op.index for op in rows if op.phase == "backward" and op.kernel)
    first_update = next(op for op in rows if op.phase == "optimizer")
    assert (
        len(sent) > 4 and sum(index < last_backward for index in sent) >= len(sent) - 1
    )
    assert sent[-1] in first_update.deps


def test_without_overlap_every_parameter_is_reduced_after_backward() -> None:
    """One all-reduce per parameter, each waited for, after the last gradient; then a division."""
    low = lowered(MLP, dp=4, data_parallel="ddp-no-overlap")
    rows = ops(low)
    sent = [op for op in rows if op.comms]
    assert len(sent) == 4 and sum(op.size for op in sent) == 2.0 * low.parameters
    backward = [
        op.index
        for op in rows
        if op.phase == "backward" and op.kernel and op.kernel.kind == "aten mm"
    ]
    assert sent[0].index > max(backward)
    for op in sent:
        after = rows[op.index + 1]
        assert (
            after.kernel is not None
            and after.kernel.kind == "aten div"
            and op.index in after.deps
        )


def test_gradients_outside_the_buckets_are_copied_back() -> None:
    """gradient_as_bucket_view = false: one copy per parameter more, and a gradient's memory more."""
    inside, outside = (
        lowered(MLP, dp=4, gradient_as_bucket_view=view) for view in (True, False)
    )
    copies = [
        sum(op.kernel.kind == "aten copy" for op in ops(low) if op.kernel)
        for low in (inside, outside)
    ]
    assert copies[1] - copies[0] == 4
    assert outside.memory[0].peak > inside.memory[0].peak
