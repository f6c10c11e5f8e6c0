"""Kernels of models that look at pictures: convolutions, norms, resampling, losses of pixels."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prestep.sim.costs import load_gpu
from prestep.sim.costs.convolutions import products
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.convolution import scratch
from prestep.workloads.operators.rules import kernels_of

PICTURE = Operand("bf16", (8, 320, 64, 64))
FILTER = Operand("bf16", (640, 320, 3, 3))
RESULT = Operand("bf16", (8, 640, 64, 64))
BIAS = Operand("bf16", (640,))


def last(operand: Operand) -> Operand:
    """The same with its channels next to each other."""
    _, channels, height, width = operand.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return replace(operand, strides=strides)


def convolution(
    image: Operand, weight: Operand, bias: Operand | None = None
) -> tuple[Kernel, ...]:
    numbers: tuple[Argument, ...] = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    arguments = (image, weight, bias, *numbers)
    return kernels_of(Operation("aten.convolution.default", arguments, (), (RESULT,)))


def gradients(
    gradient: Operand, image: Operand, weight: Operand, of_bias: bool = False
) -> tuple[Kernel, ...]:
    numbers: tuple[Argument, ...] = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    mask = (True, True, of_bias)
    sizes = (640,) if of_bias else None
    arguments = (gradient, image, weight, sizes, *numbers, mask)
    name = "aten.convolution_backward.default"
    return kernels_of(Operation(name, arguments, (), (image, weight)))


def kinds(kernels: tuple[Kernel, ...]) -> list[str]:
    return [kernel.kind for kernel in kernels]


def test_one_operand_with_channels_last_has_the_others_copied() -> None:
    alone = convolution(PICTURE, FILTER)
    assert kinds(alone) == ["aten convolution"] and alone[0].layout == ""
    mixed = convolution(PICTURE, last(FILTER))
    assert kinds(mixed) == ["aten copy", "aten convolution"]
    assert mixed[0].shape == (PICTURE.elements,)
    assert mixed[1].layout == "channels_last"
    assert kinds(convolution(last(PICTURE), last(FILTER))) == ["aten convolution"]
    both = gradients(RESULT, PICTURE, last(FILTER))
    assert kinds(both) == ["aten copy"] * 2 + ["aten convolution_backward"]


@given(st.integers(1, 64), st.integers(2, 64))
def test_filters_of_one_pixel_lie_in_both_formats(out: int, channels: int) -> None:
    image = Operand("bf16", (2, channels, 8, 8))
    narrow = Operand("bf16", (out, channels, 1, 1))
    assert kinds(convolution(image, narrow)) == ["aten convolution"]
    assert kinds(convolution(last(image), narrow)) == ["aten convolution"]
    single = Operand("bf16", (channels, 1, 3, 3))
    assert kinds(convolution(last(image), single)) == ["aten convolution"]


def test_a_bias_is_a_kernel_of_its_own_and_so_is_its_gradient() -> None:
    convolved, added = convolution(PICTURE, FILTER, BIAS)
    without = convolution(PICTURE, FILTER)[0]
    assert (convolved.kind, convolved.shape) == (without.kind, without.shape)
    assert added.shape == (RESULT.elements,)
    computed, summed = gradients(RESULT, PICTURE, FILTER, of_bias=True)
    assert computed == gradients(RESULT, PICTURE, FILTER)[0]
    assert summed.kind == "aten sum" and summed.bytes >= RESULT.bytes


def test_group_norms_copy_gradients_whose_channels_lie_last() -> None:
    def norm(gradient: Operand) -> list[str]:
        arguments = (gradient, PICTURE, BIAS, BIAS, BIAS, 8, 320, 4096, 32, (True,) * 3)
        name = "aten.native_group_norm_backward.default"
        return kinds(kernels_of(Operation(name, arguments, (), (PICTURE,))))

    assert norm(PICTURE) == ["aten native_group_norm_backward"]
    assert norm(last(PICTURE)) == ["aten copy", "aten native_group_norm_backward"]


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("size", [(8192, 1152), (32768, 320), (4096, 4096)])
def test_layer_norms_whose_weights_are_not_trained_sum_nothing(
    gpu: str, size: tuple[int, int]
) -> None:
    def norm(mask: tuple[bool, bool, bool]) -> Kernel:
        rows, scales = Operand("bf16", size), Operand("bf16", size[1:])
        statistics = Operand("fp32", (size[0], 1))
        arguments = (
            *(rows, rows, size[1:], statistics, statistics),
            *(scales, scales, mask),
        )
        name = "aten.native_layer_norm_backward.default"
        (kernel,) = kernels_of(Operation(name, arguments, (), (rows,)))
        return kernel

    times = load_gpu(gpu)
    trained, frozen = norm((True, True, True)), norm((True, False, False))
    assert times.duration(frozen) < 0.8 * times.duration(trained)


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("nll_loss2d_forward", 1),
        ("nll_loss2d_backward", 2),
    ],
)
def test_pixels_have_a_score_of_every_class(name: str, operands: int) -> None:
    scores = Operand("bf16", (8, 19, 512, 512))
    (kernel,) = kernels_of(
        Operation(f"aten.{name}.default", (scores,) * operands, (), (scores,))
    )
    assert kernel.shape == (8 * 512 * 512, 19)


@pytest.mark.parametrize("name", ["upsample_nearest2d", "upsample_bilinear2d"])
def test_larger_pictures_take_longer(name: str) -> None:
    source, times = Operand("bf16", (8, 256, 32, 32)), load_gpu("h100")

    def seconds(side: int) -> float:
        result = Operand("bf16", (8, 256, side, side))
        arguments = (source, (side, side), False)
        (kernel,) = kernels_of(
            Operation(f"aten.{name}.default", arguments, (), (result,))
        )
        assert kernel.shape == (8 * 256, 32 * 32, side * side)
        return times.duration(kernel)

    assert seconds(64) < seconds(128) < seconds(256)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_groups_of_odd_widths_take_longer_for_as_many_flops(gpu: str) -> None:
    """cuDNN has no kernels of their own for groups of 24 channels."""

    def seconds_a_flop(width: int) -> float:
        groups = 44
        channels = groups * width
        image = last(Operand("bf16", (32, channels, 14, 14)))
        weight = last(Operand("bf16", (channels, width, 3, 3)))
        numbers: tuple[Argument, ...] = ((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
        call = Operation(
            "aten.convolution.default", (image, weight, None, *numbers), (), (image,)
        )
        (kernel,) = kernels_of(call)
        return load_gpu(gpu).duration(kernel) / kernel.flops

    assert seconds_a_flop(24) > 2 * seconds_a_flop(32)


def normalised(shape: tuple[int, ...], training: bool, name: str) -> Kernel:
    image, weight = Operand("fp32", shape), Operand("fp32", shape[1:2])
    arguments = (image, weight, weight, weight, weight, training, 0.1, 1e-5)
    (kernel,) = kernels_of(Operation(f"aten.{name}.default", arguments, (), (image,)))
    return kernel


@pytest.mark.parametrize("name", ["native_batch_norm", "cudnn_batch_norm"])
def test_batch_norms_with_statistics_of_the_past_read_once(name: str) -> None:
    gpu, shape = load_gpu("h200"), (64, 128, 28, 28)
    past, own = (normalised(shape, training, name) for training in (False, True))
    assert past.bytes == 2 * 4 * past.shape[0] < own.bytes * 1.01
    assert gpu.duration(past) < gpu.duration(own)


def test_a_norm_of_many_small_channels_waits_for_its_blocks() -> None:
    """Instance norms have a channel for every picture: as many elements in 64 times as many channels take longer."""
    few = normalised((64, 128, 16, 16), True, "cudnn_batch_norm")
    many = normalised((1, 64 * 128 * 4, 8, 8), True, "cudnn_batch_norm")
    assert few.shape[0] == many.shape[0]
    assert load_gpu("h200").duration(many) > 5 * load_gpu("h200").duration(few)


def _sum_of_pictures(pictures: int) -> tuple[Kernel, ...]:
    """The filter's gradient of a gradient: pictures are the channels of an image and of a filter as large as it."""
    image = Operand("fp32", (8, pictures, 66, 66), (4356, 8 * 4356, 66, 1))
    weight = Operand("fp32", (64, pictures, 64, 64), (4096, 64 * 4096, 64, 1))
    numbers: tuple[Argument, ...] = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    arguments = (image, weight, None, *numbers)
    options = (("allow_tf32", True),)
    result = Operand("fp32", (8, 64, 3, 3))
    name = "aten.convolution.default"
    return kernels_of(Operation(name, arguments, options, (result,)))


def test_pictures_are_summed_one_after_the_other() -> None:
    """Both operands are made contiguous first; one block of threads then adds up a result, so twice the pictures take twice.

    262,144 places of a filter in slices of 16, each a step of at least 60 cycles at 1.98 GHz, are half a millisecond.
    """
    gpu = load_gpu("h200")
    *copies, few = _sum_of_pictures(64)
    assert kinds(tuple(copies)) == ["aten copy", "aten copy"]
    many = _sum_of_pictures(128)[-1]
    assert gpu.running(few) > 64 * 4096 / 16 * 60 / 1.98e9
    assert gpu.running(many) / gpu.running(few) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("dtype", ["fp16", "tf32"])
def test_tensor_cores_read_copies_of_pictures(dtype: str) -> None:
    """Gradients of a layer of 32 channels over 2 volumes of 80 a side took 135.1 MB (fp16) and 272.6 MB of an H200 (tf32)."""
    stored, options = (
        ("fp32", (("allow_tf32", True),)) if dtype == "tf32" else (dtype, ())
    )
    volume, weight = (
        Operand(stored, shape) for shape in ((2, 32, 80, 80, 80), (32, 32, 3, 3, 3))
    )
    ones = (1, 1, 1)
    numbers = (ones, ones, ones, False, (0, 0, 0), 1, (True, True, False))
    arguments: tuple[Argument, ...] = (volume, volume, weight, None, *numbers)
    name = "aten.convolution_backward.default"
    call = Operation(name, arguments, options, (volume, weight))
    measured = {"fp16": 135.14e6, "tf32": 272.63e6}[dtype]
    assert scratch(call) == pytest.approx(measured, rel=0.05)
    lying = replace(volume, strides=(32 * 80**3, 1, 32 * 6400, 32 * 80, 32))
    single = replace(weight, shape=(32, 1, 3, 3, 3))
    for other in ((lying, lying, weight), (volume, volume, single)):
        groups = 32 if other[2] is single else 1
        rest = (None, ones, ones, ones, False, (0, 0, 0), groups, (True, True, False))
        assert not scratch(replace(call, arguments=(*other, *rest)))


SIDES = st.tuples(*[st.sampled_from((1, 2, 4, 16))] * 3)


@given(SIDES, SIDES)
def test_patches_are_rows_of_a_product(
    patch: tuple[int, ...], patches: tuple[int, ...]
) -> None:
    """As many as results, and as deep as a patch: of a video's, whose strides differ, as of a picture's."""
    video = tuple(a * b for a, b in zip(patch, patches, strict=True))
    image, weight = Operand("bf16", (8, 3, *video)), Operand("bf16", (768, 3, *patch))
    numbers: tuple[Argument, ...] = (patch, (0,) * 3, (1,) * 3, False, (0,) * 3, 1)
    result = Operand("bf16", (8, 768, *patches))
    arguments = (image, weight, None, *numbers)
    name = "aten.convolution.default"
    (kernel,) = kernels_of(Operation(name, arguments, (), (result,)))
    assume(len(set(patch)) > 1)
    ((rows, columns, depth),) = products(kernel)
    assert (rows, columns, depth) == (8 * prod(patches), 768, 3 * prod(patch))
