"""The symbolic PyTorch: what it launches, in which order, and what memory is alive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.workloads.memory.account import Memory, Storage
from prestep.workloads.operation import Operand
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.activation_checkpoint import checkpoint
from prestep.workloads.torch.attention import rope
from prestep.workloads.torch.recorder import Recorder, Shared
from prestep.workloads.torch.tape import Tape, Tensor

width = st.integers(1, 2048)


def tape() -> Tape:
    """Every host operation costs another power of two, so that no two sums are alike by chance."""
    costs: dict[str, float] = defaultdict(lambda: 2.0 ** len(costs) * 1e-9)
    return Tape(0, Shared(), costs)


def launched(t: Tape) -> list[Kernel]:
    """Kernels in the order of their launch, without memsets."""
    p, kernels = t.program(), tuple(t.shared.kernels)
    found = [
        kernels[i]
        for i, kind in zip(p.payload.tolist(), p.kind.tolist(), strict=True)
        if kind == KERNEL
    ]
    return [k for k in found if k.kind != "memset"]


def sample(t: Tape, *shape: int, grad: bool = False) -> Tensor:
    """An input of its own memory."""
    x = t.empty(shape)
    x.requires_grad, x.name = grad, "detached" if grad else ""
    return x


def backward(t: Tape, y: Tensor) -> None:
    t.backward(y, Tensor(None, y.shape))


def test_autograd_calls_each_node_of_a_rotary_embedding_once() -> None:
    """Backward: halves of the concatenation, the sum, six nodes that call an operator, and two sums of gradients."""
    t = tape()
    y = rope(t, sample(t, 2, 4, 8, 16, grad=True))
    t.counts.clear()
    backward(t, y)
    operators = (
        1 + 4 + 1
    )  # the difference's negative, four products, the concatenation of both halves
    expected = {
        "view_backward": 2 + 1,
        "aten_elementwise_backward": operators + 2,
    }
    assert {name: t.counts[name] for name in expected} == expected


@given(width, width, width, st.booleans())
@settings(deadline=None)
def test_a_linear_layer_does_2mnk_forward_and_4mnk_backward(
    m: int, n: int, k: int, bias: bool
) -> None:
    """One product forward, two backward, 2mnk flops each; the bias adds none that counts."""
    t = tape()
    w, b = t.parameter(n, k), t.parameter(n) if bias else None
    y = F.linear(t, sample(t, m, k, grad=True), w, b)
    assert sum(kernel.flops for kernel in launched(t)) == 2 * m * n * k
    backward(t, y)
    assert sum(kernel.flops for kernel in launched(t)) == 6 * m * n * k
    assert w.grad is not None and w.grad.shape == (n, k)


@pytest.mark.parametrize(
    ("input_grad", "weight_grad", "expected"),
    [
        (True, True, ["tn", "nn"]),
        (True, False, ["nn"]),
        (False, True, ["tn"]),
        (False, False, []),
    ],
)
def test_data_and_weight_gradients_are_products_of_their_own(
    input_grad: bool, weight_grad: bool, expected: list[str]
) -> None:
    """The weight's gradient is (n, k, m) and comes first, the input's (m, k, n); each only where it is wanted."""
    t = tape()
    w = t.parameter(96, 64)
    w.requires_grad = weight_grad
    backward(t, F.linear(t, sample(t, 32, 64, grad=input_grad), w))
    shapes = {"tn": (96, 64, 32), "nn": (32, 64, 96)}
    assert [(k.layout, k.shape) for k in launched(t)[1:]] == [
        (way, shapes[way]) for way in expected
    ]


def test_a_layer_with_a_bias_computes_the_inputs_gradient_first() -> None:
    """addmm(bias, mat1, mat2): autograd goes by the names of the arguments, so the bias's sum comes last."""
    t = tape()
    backward(
        t,
        F.linear(t, sample(t, 32, 64, grad=True), t.parameter(96, 64), t.parameter(96)),
    )
    assert [(k.kind, k.layout) for k in launched(t)[1:]] == [
        ("aten mm", "nn"),
        ("aten mm", "tn"),
        ("aten sum", "outer"),
    ]


def chain(t: Tape, depth: int, recompute: bool = False) -> tuple[list[Tensor], Tensor]:
    """Linear layers and activations in a row, each pair in a checkpoint if asked for."""
    weights = [t.parameter(64, 64, name=f"w{i}") for i in range(depth)]
    x = sample(t, 512, 64, grad=True)
    for w in weights:
        t.layer += 1

        def layer(x: Tensor, w: Tensor = w) -> Tensor:
            return F.linear(
                t, aten.activation(t, "gelu", aten.activation(t, "silu", x)), w
            )

        x = checkpoint(t, layer, x) if recompute else layer(x)
    t.layer = -1
    return weights, x


@given(st.integers(1, 12))
@settings(deadline=None)
def test_gradients_arrive_in_the_reverse_order_of_the_layers(depth: int) -> None:
    """Autograd runs the node that was made last first, and every leaf once."""
    t = tape()
    weights, y = chain(t, depth)
    arrived: list[str] = []
    for w in weights:
        w.on_grad = lambda p: arrived.append(p.name)
    backward(t, y)
    assert arrived == [f"w{i}" for i in reversed(range(depth))]


def test_layers_of_backward_are_those_of_forward() -> None:
    """A backward kernel carries the layer of the operator it belongs to, whatever layer is set when it runs."""
    t = tape()
    _, y = chain(t, 3)
    before = len(launched(t))
    backward(t, y)
    layers = t.program().layer.tolist()
    assert layers[:before] == sorted(layers[:before])
    assert layers[before:] == sorted(layers[before:], reverse=True) and set(
        layers[before:]
    ) == {0, 1, 2}


@given(st.integers(2, 8))
@settings(deadline=None)
def test_gradients_of_several_users_are_added_before_they_go_on(users: int) -> None:
    """An output used n times gets n gradients, n - 1 additions, and its own backward once."""
    t = tape()
    h = F.linear(t, sample(t, 8, 64), t.parameter(64, 64))
    branches = [aten.activation(t, "silu", h) for _ in range(users)]
    total = branches[0]
    for branch in branches[1:]:
        total = aten.add(t, total, branch)
    before = len(launched(t))
    backward(t, total)
    kinds = [k.kind for k in launched(t)[before:]]
    assert (
        kinds.count("aten add") == users - 1
        and kinds.count("aten mm") == 1
        and kinds[-1] == "aten mm"
    )


def test_a_parameter_used_twice_gets_one_gradient() -> None:
    """Its gradients are added up first, as in PyTorch's input buffers; the hook runs once."""
    t = tape()
    w = t.parameter(64, 64)
    arrived: list[Tensor] = []
    w.on_grad = arrived.append
    backward(t, F.linear(t, F.linear(t, sample(t, 8, 64), w), w))
    assert [k.kind for k in launched(t)].count("aten add") == 1 and arrived == [w]
    assert t.memory.alive["gradients"] == w.size


def test_nothing_is_recorded_without_gradients() -> None:
    """Under no_grad an output has no history, and backward from it does nothing."""
    t = tape()
    with t.no_grad():
        y = F.linear(t, sample(t, 8, 64), t.parameter(64, 64))
    assert y.node is None and not y.requires_grad
    before = len(launched(t))
    backward(t, y)
    assert len(launched(t)) == before and t.grad_enabled


def test_backward_runs_once() -> None:
    """A second backward through the same graph is an error, as in PyTorch without retain_graph."""
    t = tape()
    y = F.linear(t, sample(t, 8, 64), t.parameter(64, 64))
    backward(t, y)
    with pytest.raises(RuntimeError, match="twice"):
        backward(t, y)


@given(st.lists(st.integers(0, 10**6), max_size=20))
@settings(deadline=None)
def test_memory_is_given_out_in_blocks_and_counted_at_its_peak(
    sizes: list[int],
) -> None:
    """Every block is the next multiple of 512 bytes; the peak is the most ever alive, by owner; all of it comes back."""
    memory = Memory()
    blocks = [Storage(memory, size, "activations") for size in sizes]
    assert memory.now == memory.peak == sum(-(-size // 512) * 512 for size in sizes)
    assert memory.at_peak["activations"] == memory.peak
    peak = memory.peak
    blocks.clear()
    assert memory.now == 0 and memory.peak == peak
    memory.reset_peak()
    assert memory.peak == 0


def test_memory_lives_as_long_as_its_last_view() -> None:
    """Views share a storage; the last reference frees it."""
    t = tape()
    x = t.empty((1024,))
    view = x.view(32, 32)
    del x
    assert t.memory.now == 2048
    del view
    assert t.memory.now == 0


def test_what_backward_needs_is_alive_until_it_has_run() -> None:
    """A layer holds its input for the weight's gradient, and frees it with the node."""
    t = tape()
    w, x = t.parameter(64, 64), sample(t, 512, 64)
    size, y = x.size, F.linear(t, x, w)
    del x
    assert t.memory.alive["activations"] == size + y.size
    backward(t, y)
    assert t.memory.alive["activations"] == y.size


def deep(recompute: bool) -> Tape:
    """A training step of ten layers: forward, backward, gradients dropped."""
    t = tape()
    weights, y = chain(t, 10, recompute)
    assert t.memory.peak >= sum(w.size for w in weights)
    backward(t, y)
    assert t.memory.alive["gradients"] == sum(w.size for w in weights)
    for w in weights:
        w.grad = None
    del y
    assert t.memory.now == sum(w.size for w in weights)
    return t


def test_recomputation_repeats_the_forward_and_lowers_the_peak() -> None:
    """The region runs again up to the last tensor it saves: its activations twice, its product once (early stop)."""
    plain, again = deep(False), deep(True)
    assert again.memory.peak < plain.memory.peak
    kinds = [[k.kind for k in launched(t)] for t in (plain, again)]
    for kind in ("silu", "gelu"):
        assert kinds[1].count(kind) == 2 * kinds[0].count(kind)
    assert kinds[1].count("aten mm") == kinds[0].count("aten mm")


def test_events_of_recomputation_point_backwards() -> None:
    """What early stop takes away is not waited for."""
    p = deep(True).program()
    assert all(d < i for i, deps in enumerate(p.deps) for d in deps)


def count(run: Callable[[Tape], object]) -> tuple[dict[str, float], float, float]:
    """Host operations, their time in the program, and their time by the counts."""
    t = tape()
    run(t)
    spent = float(t.program().host.sum()) + t.host_pending
    return (
        dict(t.counts),
        spent,
        sum(t.costs[name] * times for name, times in t.counts.items()),
    )


def test_host_operations_are_counted_where_they_cost() -> None:
    """Three layers forward and backward: three linears, a launch per kernel; counts times costs are the host's time."""

    def run(t: Tape) -> None:
        backward(t, chain(t, 3)[1])

    counts, spent, said = count(run)
    assert (
        counts["linear"] == counts["linear_backward"] == counts["accumulate_grad"] == 3
    )
    assert counts["aten_product"] == 3 and counts["aten_product_backward"] == 6
    assert counts["aten_elementwise"] == counts["aten_elementwise_backward"] == 6
    assert counts["launch"] == 3 + 6 + 2 * 3 + 6
    assert spent == pytest.approx(said)
    counts, spent, said = count(lambda t: backward(t, chain(t, 3, recompute=True)[1]))
    assert counts["launch"] == 3 + 6 + 6 + 2 * 3 + 6 and spent == pytest.approx(said)


def test_a_stream_waits_only_for_its_events() -> None:
    """An operation depends on what was recorded when it waited, once; other streams go on."""
    t = tape()
    first = t.launch(Kernel("aten fill", (1,)))
    t.wait(t.record(), "side")
    second = t.launch(Kernel("aten fill", (2,)))
    other = t.launch(Kernel("aten fill", (3,)), "side")
    last = t.launch(Kernel("aten fill", (4,)), "side")
    deps = t.program().deps
    assert deps[other] == (first,) and deps[second] == () and deps[last] == ()


def test_an_event_of_a_stream_not_yet_used_is_that_of_the_step_before() -> None:
    """It becomes a negative index: the stream's last operation, counted from the end of the previous step."""
    t = tape()
    t.wait(t.record("side"))
    waiting = t.launch(Kernel("aten fill", (1,)))
    t.launch(Kernel("aten fill", (2,)), "side")
    assert t.program().deps[waiting] == (-1,)
    t.launch(Kernel("aten fill", (3,)))
    assert t.program().deps[waiting] == (-2,)


def test_waiting_again_for_the_same_adds_nothing() -> None:
    """A stream that launches nothing while it records events and waits for its own does not forget, nor count twice."""
    recorder = Recorder(0, Shared(), {"launch": 0.0})
    first = recorder.launch(Kernel("aten add", (8,), "bf16"), "side", "add")
    recorder.wait(recorder.record("side"), "compute")
    for _ in range(60):
        recorder.wait(recorder.record("compute"), "compute")
    last = recorder.launch(Kernel("aten add", (8,), "bf16"), "compute", "add")
    waited = recorder.columns.deps[last]
    assert first in waited
    assert len(waited) == len(set(waited)) <= 2


def test_a_wait_at_the_end_of_a_step_holds_in_the_next() -> None:
    """The stream's first operation waits, and so does whoever waits for the stream before that one."""
    t = tape()
    t.wait(t.record(), "other")
    behind = t.launch(Kernel("aten fill", (1,)), "other")
    first = t.launch(Kernel("aten fill", (2,)))
    later = t.launch(Kernel("aten fill", (3,)))
    gathered = t.launch(Kernel("aten fill", (4,)), "side")
    t.wait(t.record("side"))
    deps, end = t.program().deps, t.issued
    assert deps[first] == (gathered - end,)
    assert deps[later] == ()
    assert set(deps[behind]) == {later - end, gathered - end}


def test_what_is_taken_back_waits_for_nothing_and_leaves_its_waits() -> None:
    """A wait made before the last saved tensor holds for what is issued instead; one made after it is gone."""
    t = tape()
    side = t.launch(Kernel("aten fill", (1,)), "side")
    t.wait(t.record("side"))
    t.saves()
    t.launch(Kernel("aten fill", (2,)))
    t.launch(Kernel("aten fill", (3,)), "side")
    t.wait(t.record("side"))
    t.forget()
    again = t.launch(Kernel("aten fill", (4,)))
    assert t.program().deps[again] == (side,)


def sums_of(parallel: bool) -> list[str]:
    """Sums of gradients of a residual with two branches, one beside the other or one after the other."""
    t = tape()
    w = [t.parameter(16, name=f"w{i}") for i in range(2)]
    x = aten.mul(t, sample(t, 8, 16, grad=True), t.parameter(16, name="first"))
    if parallel:
        x = aten.add(t, x, aten.add(t, *(aten.mul(t, x, each) for each in w)))
    else:
        for each in w:
            x = aten.add(t, x, aten.mul(t, x, each))
    before = t.issued
    y = t.empty(x.shape)
    t.backward(x, y)
    names = t.columns.names[before:]
    return [name for name in names if name.startswith("aten.add")]


def test_a_gradient_that_others_wait_for_is_not_overwritten() -> None:
    """The first branch's gradient comes while the second still waits for its own (can_accumulate_inplace)."""
    assert sums_of(parallel=False) == ["aten.add_.Tensor"] * 2
    assert sums_of(parallel=True) == ["aten.add.Tensor", "aten.add_.Tensor"]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_a_dimension_of_one_element_has_no_say(
    shape: list[int], data: st.DataObject
) -> None:
    """Tensors whose elements lie in the same places are equal, whatever such dimensions' strides are."""
    strides = [data.draw(st.integers(1, 9)) for _ in shape]
    other = [
        data.draw(st.integers(1, 9)) if n == 1 else s
        for n, s in zip(shape, strides, strict=True)
    ]
    one, two = (Operand("bf16", tuple(shape), tuple(each)) for each in (strides, other))
    assert one == two
    kept = zip(shape, one.strides, strides, strict=True)
    assert all(n == 1 or step == said for n, step, said in kept)
