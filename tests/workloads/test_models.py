"""Models launch the kernels that PyTorch's traces show, and hold and free the same memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from prestep.sim.errors import InputError
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import load_model
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.tensor import ExpertParallel
from prestep.workloads.torch import aten
from prestep.workloads.torch.convnet import ResNet, broadcast_buffers
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer
from tests.sample import together
from tests.workloads.recorded import (
    ATTENTION,
    ATTENTION_BACK,
    BOTH,
    EXPERT,
    EXPERT_BACK,
    MIB,
    STEPS,
    eager,
    experts,
    record,
    resnet,
    short,
    transformer,
    words,
)


@together("name", STEPS)
def test_gradients_arrive_once_and_memory_returns(name: str) -> None:
    """Every parameter gets one gradient of its own shape; without gradients, memory is back where it began."""
    step = STEPS[name]()
    assert Counter(map(id, step.arrived)) == Counter(map(id, step.module.parameters))
    for p in step.module.parameters:
        assert p.grad is not None and p.grad.shape == p.shape
        p.grad = None
    step.arrived.clear()
    assert step.tape.memory.now == step.base


def test_llama_block() -> None:
    """A Llama block launches what trace 1b-single-b2 shows: 32 and 54 CUDA kernels, memsets included."""
    step = STEPS["llama"]()
    assert step.kernels(2, False) == words(f"{ATTENTION} {EXPERT} add")
    assert step.kernels(2, True) == words(f"{EXPERT_BACK} {ATTENTION_BACK}")
    forward, backward = len(step.kernels(2, False)), len(step.kernels(2, True))
    # Memsets: attention and two GEMMs; backward attention and four GEMMs, five more parts of attention, two norms.
    assert (forward + 3, backward + 5 + 4 + 2) == (32, 54)


def test_expert_block() -> None:
    """A block of experts over four ranks launches what trace moe-ddp4-ep4-b4 shows: 92 CUDA kernels forward."""
    step = STEPS["experts over four ranks"]()
    assigned = "remainder add remainder stack"
    assert step.kernels(2, False) == words(
        f"{ATTENTION} mm _softmax arange {assigned} sort floor_divide index all_to_all clone "
        f"{EXPERT} {EXPERT} stack clone all_to_all zeros_like {assigned} gather index floor_divide mul index_add "
        f"index_add add"
    )
    put = "new_zeros _index_put_impl_"
    select = "select_backward select_backward"  # zeros, and a part of them
    assert step.kernels(2, True) == words(
        f"index_select mul mul sum {put} new_zeros scatter_add_ all_to_all clone {EXPERT_BACK}_ {select} {EXPERT_BACK}_ "
        f"{select} add_ clone all_to_all {put} _softmax_backward_data {BOTH} add_ {ATTENTION_BACK}"
    )
    # CUDA kernels of one sort, a copy among them; GEMMs of more than two waves, and attention.
    sort, memsets = 22, 4 + 6 + 1
    assert len(step.kernels(2, False)) - 1 + sort + memsets == 92


def test_experts_on_one_rank_need_no_exchange() -> None:
    """Without expert parallelism there are eight experts, no all-to-all and no copies to sort rows by expert."""
    kinds = Counter(STEPS["experts"]().kernels(2, False))
    assert kinds["all_to_all"] == 0 and kinds["silu"] == 8 and kinds["clone"] == 1


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_expert_parameters_are_spread(ranks: int) -> None:
    """Each rank holds its share of the experts; the all-to-all carries tokens x choices x hidden x 2 bytes."""
    m = load_model(Model(name="moe8x-plain"))
    step = transformer("moe8x-plain", 4, eager, experts(ranks))
    one = step.module.blocks[0].parts[-1]  # type: ignore[attr-defined]
    assert (
        sum(p.elements for p in one.expert_parameters)
        == m.experts // ranks * 3 * m.hidden * m.ffn
    )
    assert one.parameter_count == one.gate.elements + sum(
        p.elements for p in one.expert_parameters
    )
    comms = step.tape.shared.rendezvous.comms
    assert len(comms) == (4 * 4 if ranks > 1 else 0)
    assert {c.size for c in comms} <= {8192 * 2 * 2048 * 2.0}


@pytest.mark.parametrize(("ranks", "peak"), [(1, 25051319808), (4, 14582267392)])
def test_expert_memory(ranks: int, peak: int) -> None:
    """Peak memory of moe-ddp4-ep1-b4 and moe-ddp4-ep4-b4 (buckets of what is averaged, two Adam states)."""
    m = load_model(Model(name="moe8x-plain"))

    def build(t: Tape) -> tuple[Module, Callable[[], Tensor]]:
        group = experts(ranks)
        net = Transformer(
            t, m, range(m.layers), True, True, ExpertParallel(group) if group else None
        )
        return net, lambda: aten.cross_entropy(
            t, net.outputs(t, (4, 2048), lambda b, x: eager(t, b, x))[0]
        )

    step = record(build)
    local = sum(
        p.size for b in step.module.blocks for p in b.parts[-1].expert_parameters
    )  # type: ignore[attr-defined]
    buckets = step.base - (local if ranks > 1 else 0)
    assert step.tape.memory.peak + 2 * step.base + buckets + 64 * MIB == pytest.approx(
        peak, rel=0.003
    )


def test_resnet_kernels() -> None:
    """ResNet-50 launches the operations of trace rn50-ddp4-b128, but for DDP's own, the loss's seed and Adam."""
    step = STEPS["resnet"]()
    kinds = Counter(map(short, step.tape.columns.names))
    expected = {
        "convolution": 53,
        "native_batch_norm": 53,
        "native_batch_norm_backward": 53,
        "convolution_backward": 53,
        "relu_": 49,
        "threshold_backward": 49,
        "add_": 85,
        "max_pool2d_with_indices": 1,
        "max_pool2d_with_indices_backward": 1,
        "mean": 1,
        "new_zeros": 1,
        "copy_": 1,
        "div": 1,
        "addmm": 1,
        "mm": 2,
        "sum": 1,
        "_log_softmax": 1,
        "_log_softmax_backward_data": 1,
        "nll_loss_forward": 1,
        "nll_loss_backward": 1,
    }
    assert kinds == expected
    norm, act = "convolution add_ native_batch_norm", "relu_"
    assert step.kernels(0, False) == words(
        f"{norm} {act} {norm} {act} {norm} {norm} add_ {act}"
    )
    back = "native_batch_norm_backward convolution_backward"
    residual = (
        f"threshold_backward {back} threshold_backward {back} threshold_backward {back}"
    )
    assert step.kernels(1, True) == words(f"{residual} add_")
    assert step.kernels(0, True) == words(
        f"threshold_backward {back} {residual.split(' ', 1)[1]} add_"
    )


@pytest.mark.parametrize(
    ("depth", "count"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)]
)
def test_resnet_parameters(depth: int, count: int) -> None:
    """Parameters as torchvision counts them."""
    assert resnet(depth, 1).module.parameter_count == count


@pytest.mark.parametrize(
    ("batch", "peak"), [(32, 1691843072), (128, 5951781888), (256, 11595245056)]
)
def test_resnet_memory(batch: int, peak: int) -> None:
    """Peak memory of rn50-ddp4 at three batch sizes (images, two Adam states, buckets, cuBLAS workspace)."""
    step = resnet(50, batch)
    parameters = sum(p.size for p in step.module.parameters)
    images = batch * 3 * 224 * 224 * 2
    assert step.tape.memory.peak + 3 * parameters + images + 64 * MIB == pytest.approx(
        peak, rel=0.01
    )


def test_resnet_of_unknown_depth_is_refused() -> None:
    """A depth that is no ResNet's is refused with the depths there are."""
    with pytest.raises(InputError, match="50, 101, 152"):
        resnet(51, 1)


def test_buffers_are_broadcast_by_type() -> None:
    """DDP sends 53,120 running statistics and 53 counters, then copies 159 buffers back (trace rn50-ddp4-b128)."""
    t = Tape(0, Shared(), defaultdict(lambda: 1e-6))
    net = ResNet(t, load_model(Model(name="resnet50")))
    base = t.memory.now
    broadcast_buffers(t, net.buffers, Group("dp", (0, 1), [(0, 1)], 1), "nccl dp")
    assert [c.size for c in t.shared.rendezvous.comms] == [53120 * 2.0, 53 * 8.0]
    assert Counter(t.columns.names) == {"aten cat": 2, "broadcast": 2, "aten copy": 159}
    assert t.memory.now == base


def test_perceptron_kernels() -> None:
    """Linear layers with biases: input gradient, weight gradient, bias sum; none for the first layer's input."""
    step = STEPS["mlp"]()
    names = [*map(short, step.tape.columns.names)]
    assert names[: step.forward_end] == words("addmm relu addmm relu addmm mse_loss")
    layer = "mm mm sum threshold_backward"
    assert names[step.forward_end :] == words(
        f"mse_loss_backward {layer} {layer} mm sum"
    )
    assert step.module.parameter_count * 2 == 4200450  # the DDP bucket of seed-ddp4
