"""Kernels of captured operations, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.costs import load_gpu as load
from prestep.sim.costs.gpu import Gpu
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import ELEMENT_BYTES, Argument, Operand, Operation
from prestep.workloads.operators import rules
from prestep.workloads.operators.rules import RULES, kernels_of
from prestep.workloads.operators.tensors import layout_beside
from tests.sample import together

GPUS = ("h100", "h200", "a100", "b200")
SEQUENCE = Operand("bf16", (2, 2048, 1024))
ROWS = Operand("bf16", (4096, 1024))
SCORES = Operand("fp32", (4096, 32000))
IMAGE = Operand("bf16", (8, 64, 56, 56), (200704, 1, 3584, 64))
INDICES = Operand("int64", (2, 2048))
HEADS = Operand("bf16", (2, 16, 2048, 64))
#: Share by which a quicker time of a larger operation is noise of the table (repetitions differ by 3.5 % on the mean).
NOISE = 0.12


def call(
    name: str, *arguments: Argument, results: tuple[Operand, ...] = ()
) -> Operation:
    return Operation(f"aten.{name}.default", arguments, (), results)


COMMON = [
    call(
        "mm",
        ROWS,
        Operand("bf16", (1024, 512), (1, 1024)),
        results=(Operand("bf16", (4096, 512)),),
    ),
    call(
        "addmm",
        Operand("bf16", (512,)),
        ROWS,
        Operand("bf16", (1024, 512)),
        results=(Operand("bf16", (4096, 512)),),
    ),
    call(
        "bmm",
        Operand("fp32", (32, 128, 64)),
        Operand("fp32", (32, 64, 128)),
        results=(Operand("fp32", (32, 128, 128)),),
    ),
    call(
        "_scaled_dot_product_flash_attention",
        HEADS,
        HEADS,
        HEADS,
        0.0,
        True,
        results=(HEADS,),
    ),
    call(
        "_scaled_dot_product_cudnn_attention",
        HEADS,
        HEADS,
        HEADS,
        None,
        True,
        0.0,
        True,
        results=(HEADS,),
    ),
    call(
        "convolution",
        IMAGE,
        Operand("bf16", (64, 64, 3, 3)),
        None,
        (1, 1),
        (1, 1),
        (1, 1),
        False,
        (0, 0),
        1,
        results=(IMAGE,),
    ),
    call(
        "native_layer_norm",
        SEQUENCE,
        (1024,),
        Operand("bf16", (1024,)),
        results=(SEQUENCE,),
    ),
    call("_softmax", SCORES, -1, False, results=(SCORES,)),
    call("_log_softmax", SCORES, 1, False, results=(SCORES,)),
    call(
        "nll_loss_forward",
        SCORES,
        Operand("int64", (4096,)),
        None,
        1,
        -100,
        results=(Operand("fp32", ()),),
    ),
    call("embedding", Operand("bf16", (32000, 1024)), INDICES, results=(SEQUENCE,)),
    call(
        "embedding_dense_backward",
        SEQUENCE,
        INDICES,
        32000,
        -1,
        False,
        results=(Operand("bf16", (32000, 1024)),),
    ),
    call("add", SEQUENCE, SEQUENCE, results=(SEQUENCE,)),
    call("mul", SEQUENCE, Operand("bf16", (1024,)), results=(SEQUENCE,)),
    call("silu", SEQUENCE, results=(SEQUENCE,)),
    call(
        "pow",
        Operand("fp32", (4096, 1024)),
        2,
        results=(Operand("fp32", (4096, 1024)),),
    ),
    call(
        "mul",
        Operand("complex64", (4096, 32)),
        Operand("complex64", (4096, 32)),
        results=(Operand("complex64", (4096, 32)),),
    ),
    call("mean", SEQUENCE, (-1,), True, results=(Operand("bf16", (2, 2048, 1)),)),
    call("sum", SEQUENCE, (0, 1), results=(Operand("bf16", (1024,)),)),
    call("cumsum", SEQUENCE, -1, results=(SEQUENCE,)),
    call("_to_copy", SEQUENCE, results=(Operand("fp32", SEQUENCE.shape),)),
    call(
        "clone",
        Operand("bf16", (2, 16, 2048, 64), (2097152, 64, 1024, 1)),
        results=(HEADS,),
    ),
    call("copy_", ROWS, Operand("bf16", ROWS.shape, device="cpu"), results=(ROWS,)),
    call("cat", (ROWS, ROWS), 1, results=(Operand("bf16", (4096, 2048)),)),
    call("zeros", (4096,), results=(Operand("fp32", (4096,)),)),
    call("masked_fill", SCORES, Operand("bool", (4096, 32000)), 0.0, results=(SCORES,)),
    call(
        "index",
        ROWS,
        (Operand("int64", (77,)),),
        results=(Operand("bf16", (77, 1024)),),
    ),
    call(
        "gather",
        SCORES,
        1,
        Operand("int64", (4096, 1)),
        results=(Operand("fp32", (4096, 1)),),
    ),
    call(
        "topk",
        SCORES,
        8,
        results=(Operand("fp32", (4096, 8)), Operand("int64", (4096, 8))),
    ),
    call("sort", Operand("int64", (4096,)), results=(Operand("int64", (4096,)),)),
    call("_foreach_add_", (ROWS, ROWS), 1.0, results=()),
    call("_fused_adamw_", *((ROWS, ROWS),) * 4, results=()),
    call("_local_scalar_dense", Operand("fp32", ())),
    call("nobody_knows_it", ROWS, results=(ROWS,)),
]


def seconds(gpu: Gpu, operation: Operation) -> float:
    return sum(gpu.duration(kernel) for kernel in kernels_of(operation))


@pytest.mark.parametrize("name", ("h100", "h200"))
def test_a_list_is_scaled_at_the_speed_of_memory(name: str) -> None:
    """Gradients of fp32 that are scaled in place are read and written once, at more than 70 % of the bandwidth."""
    gpu = load(name)
    tensors = (Operand("fp32", (4096, 2048)),) * 100
    scaled = call("_foreach_mul_", tensors, Operand("fp32", ()), results=())
    size = 2 * sum(tensor.bytes for tensor in tensors)
    assert 1.0 < seconds(gpu, scaled) * gpu.bandwidth / size < 1.4


@pytest.mark.parametrize("name", ("h100", "h200"))
def test_a_number_of_another_type_makes_lists_slow(name: str) -> None:
    """Halves scaled by a number of fp32 are a launch for each tensor."""
    gpu = load(name)
    tensors = (Operand("bf16", (4096, 2048)),) * 100
    same, other = (
        call("_foreach_mul_", tensors, Operand(dtype, ()), results=())
        for dtype in ("bf16", "fp32")
    )
    assert seconds(gpu, other) > 2 * seconds(gpu, same)


@pytest.mark.parametrize("name", ("h100", "h200"))
def test_odd_rows_are_slow_and_keep_the_clock(name: str) -> None:
    """A product of one column less takes four times as long, at the GPU's highest clock."""
    gpu = load(name)
    even, odd = (
        kernels_of(
            call(
                "mm",
                Operand("bf16", (8192, 2048)),
                Operand("bf16", (2048, width), (1, 2048)),
                results=(Operand("bf16", (8192, width)),),
            )
        )[0]
        for width in (8192, 8191)
    )
    assert 3 < gpu.duration(odd) / gpu.duration(even) < 10
    assert gpu.beyond_limit(even)
    assert not gpu.beyond_limit(odd)


@pytest.mark.parametrize("name", GPUS)
def test_common_operations_cost_something(name: str) -> None:
    """Every operation that computes or copies is kernels with times, on every GPU, whether anybody measured it."""
    gpu = load(name)
    for operation in COMMON:
        assert 0.0 < seconds(gpu, operation) < 1.0, operation.name


def test_what_is_written_in_place_of_a_result_is_not_read() -> None:
    """DistributedDataParallel scales a gradient into its bucket (mul.out): one tensor read, one written."""
    bucket = Operand("bf16", ROWS.shape)
    scale, out = Operand("bf16", (), device="cpu"), (("out", bucket),)
    (kernel,) = kernels_of(Operation("aten.mul.out", (ROWS, scale), out, (bucket,)))
    assert kernel.bytes == ROWS.bytes + bucket.bytes


def test_views_launch_nothing() -> None:
    """Other views of memory, and memory without contents, launch no kernel."""
    for name in rules.VIEWS:
        assert kernels_of(call(name, ROWS, results=(ROWS,))) == ()


def test_every_rule_gives_kernels() -> None:
    """Every operation with a rule that is no view launches something for an ordinary tensor."""
    for name in sorted(set(RULES) - set(rules.VIEWS)):
        assert (
            kernels_of(call(name, ROWS, results=(ROWS,)))
            or "foreach" in name
            or "_fused" in name
        )


def test_nothing_on_the_host() -> None:
    """Operations on tensors of the host launch nothing."""
    here = Operand("fp32", (64,), device="cpu")
    assert kernels_of(call("add", here, here, results=(here,))) == ()


def test_an_unknown_operation_is_a_guess_of_its_bytes() -> None:
    """An operation that nobody knows moves all its tensors, and says that it is a guess."""
    (kernel,) = kernels_of(call("nobody_knows_it", ROWS, ROWS, results=(ROWS,)))
    assert kernel.bytes == 3 * ROWS.bytes
    for name in GPUS:
        gpu = load(name)
        assert gpu.evidence(kernel) == "guess"
        assert gpu.duration(kernel) >= kernel.bytes / 8.1e12


def test_measured_operations_say_so() -> None:
    """A row of the table is read as it was measured, and graded so."""
    gpu = load("h200")
    kernel = Kernel("aten add", (16777216,), "bf16", "", 3 * 2 * 16777216.0)
    assert gpu.evidence(kernel) == "measured"
    assert gpu.duration(kernel) == pytest.approx(24e-6, rel=0.15)


@pytest.mark.parametrize("name", ("h100", "h200"))
@given(
    kind=st.sampled_from(("add", "mul", "silu", "copy", "exp", "never")),
    layout=st.sampled_from(("", "row", "strided", "transposed")),
    dtype=st.sampled_from(("bf16", "fp32")),
    octave=st.floats(10, 30),
)
def test_more_elements_are_never_faster(
    name: str, kind: str, layout: str, dtype: str, octave: float
) -> None:
    """Twice the elements never take less time, but for the table's noise."""
    count = int(2**octave)
    size = 6 if dtype == "bf16" else 12
    small, large = (
        load(name).duration(
            Kernel(f"aten {kind}", (n,), dtype, layout, float(size * n))
        )
        for n in (count, 2 * count)
    )
    assert large >= small * (1 - NOISE)


@given(rows=st.integers(6, 14), columns=st.integers(6, 14), depth=st.integers(6, 13))
def test_larger_products_are_never_faster(rows: int, columns: int, depth: int) -> None:
    """A product of twice the depth never takes less time, but for the table's noise."""
    gpu = load("h200")
    times = [
        gpu.duration(
            Kernel(
                "aten mm",
                (m, n, k),
                "bf16",
                "nt",
                2.0 * (m * k + n * k + m * n),
                2.0 * m * n * k,
            )
        )
        for m, n, k in (
            (2**rows, 2**columns, 2**depth),
            (2**rows, 2**columns, 2 ** (depth + 1)),
        )
    ]
    assert times[1] >= times[0] * (1 - NOISE)


def test_layouts() -> None:
    """An operand's layout is how it lies in the order in which the result is written."""
    result = Operand("bf16", (4, 8, 16))
    assert layout_beside(Operand("bf16", (4, 8, 16)), result) == ""
    assert layout_beside(Operand("bf16", (16,)), result) == "row"
    assert layout_beside(Operand("bf16", (4, 8, 1)), result) == "column"
    assert layout_beside(Operand("bf16", (4, 8, 16), (256, 32, 1)), result) == "strided"
    assert (
        layout_beside(Operand("bf16", (4, 8, 16), (1, 64, 4)), result) == "transposed"
    )
    last = Operand("bf16", (2, 3, 4, 4), (48, 1, 12, 3))
    assert layout_beside(last, last) == ""


def test_rows_that_are_read_across_are_counted_whole() -> None:
    """A picture's rows are one after the other, so a channel of 16 x 16 is one row of 256, channels are rows of 64."""
    first = Operand("fp32", (8, 64, 16, 16))
    last = Operand("fp32", (8, 64, 16, 16), (64 * 256, 1, 16 * 64, 64))
    assert layout_beside(last, first) == "transposed"
    assert layout_beside(first, last) == "narrow"


def test_short_pieces_are_summed_apart() -> None:
    """A bias's gradient sums over pictures and pixels, with the channels between; a mean of rows does not."""
    whole = Operand("bf16", (64, 32, 49))
    layouts = [
        kernels_of(call("sum", whole, dims))[-1].layout
        for dims in ((0, 2), (2,), (1, 2), (0, 1))
    ]
    assert layouts == ["split", "", "", "outer"]


def test_products_have_the_layout_of_their_strides() -> None:
    """A weight stored by rows and transposed is "nt", a gradient of it "tn"."""
    weight = Operand("bf16", (1024, 512), (1, 1024))
    (forward,) = kernels_of(call("mm", ROWS, weight))
    assert (forward.kind, forward.shape, forward.layout) == (
        "aten mm",
        (4096, 512, 1024),
        "nt",
    )
    transposed = Operand("bf16", (1024, 4096), (1, 1024))
    (gradient,) = kernels_of(call("mm", transposed, Operand("bf16", (4096, 512))))
    assert (gradient.shape, gradient.layout) == ((1024, 512, 4096), "tn")


def test_tensor_cores_of_fp32_only_where_allowed() -> None:
    """A product of fp32 runs as TF32 where the program allowed it, and is then quicker."""
    sides = Operand("fp32", (4096, 4096))
    exact = Operation("aten.mm.default", (sides, sides), (), (sides,))
    allowed = Operation(
        "aten.mm.default", (sides, sides), (("allow_tf32", True),), (sides,)
    )
    gpu = load("h100")
    assert seconds(gpu, allowed) < 0.3 * seconds(gpu, exact)


def test_what_is_added_to_every_row_is_copied_first() -> None:
    """baddbmm: a row of distances for each head (Bloom) is spread over the result; a whole matrix is read in place."""
    whole = Operand("bf16", (32, 128, 128))
    left, right = Operand("bf16", (32, 128, 64)), Operand("bf16", (32, 64, 128))
    row = Operand("bf16", (32, 1, 128))
    spread = kernels_of(call("baddbmm", row, left, right, results=(whole,)))
    placed = kernels_of(call("baddbmm", whole, left, right, results=(whole,)))
    assert [kernel.kind for kernel in spread][:-1] == ["aten copy"]
    assert len(placed) == 1


def test_a_safe_softmax_looks_for_rows_that_are_hidden_whole() -> None:
    kinds = [
        kernel.kind.removeprefix("aten ")
        for kernel in kernels_of(call("_safe_softmax", SCORES, -1, results=(SCORES,)))
    ]
    assert kinds == ["_safe_softmax", "isneginf", "all", "where"]


def test_latent_attention_takes_less_than_heads_as_wide_as_its_queries() -> None:
    wide = Operand("bf16", (2, 16, 2048, 192))
    narrow = Operand("bf16", (2, 16, 2048, 128))

    def seconds(query: Operand, value: Operand) -> float:
        arguments = (query, query, value, None, True, 0.0, True)
        made = call("_scaled_dot_product_cudnn_attention", *arguments, results=(value,))
        return sum(load("h100").duration(kernel) for kernel in kernels_of(made))

    assert seconds(narrow, narrow) < seconds(wide, narrow) < seconds(wide, wide)


@pytest.mark.parametrize("gpu", GPUS)
@together("dtype", sorted(ELEMENT_BYTES))
def test_products_of_every_element_type_take_time(gpu: str, dtype: str) -> None:
    left, right = Operand(dtype, (4, 64, 32)), Operand(dtype, (4, 32, 128))
    results = (Operand(dtype, (4, 64, 128)),)
    (kernel,) = kernels_of(call("bmm", left, right, results=results))
    if not load(gpu).roofline.computes(kernel):
        with pytest.raises(InputError, match="no units"):
            load(gpu).duration(kernel)
        return
    assert 1e-7 < load(gpu).duration(kernel) < 1e-3


def test_a_complex_product_is_four_real_ones() -> None:
    """(a + ib)(c + id) is ac - bd + i(ad + bc): eight operations for each pair of elements instead of two."""

    def product(dtype: str) -> Kernel:
        left, right = Operand(dtype, (4096, 1024)), Operand(dtype, (1024, 2048))
        results = (Operand(dtype, (4096, 2048)),)
        (kernel,) = kernels_of(call("mm", left, right, results=results))
        return kernel

    whole, real = product("complex64"), product("fp32")
    assert whole.flops == 4 * real.flops == 8 * 4096 * 1024 * 2048
    assert whole.bytes == 2 * real.bytes
    seconds = [load("h200").duration(kernel) for kernel in (whole, real)]
    assert 3.5 < seconds[0] / seconds[1] < 4.5


IDS = Operand("int64", (65536,))


def test_a_transposed_convolution_does_the_work_of_the_one_that_it_turns_round() -> (
    None
):
    """Forward of one is the gradient of the other's picture: as many flops, whichever side is the larger."""
    small, large = Operand("bf16", (4, 64, 16, 16)), Operand("bf16", (4, 32, 32, 32))
    up, down = Operand("bf16", (64, 32, 2, 2)), Operand("bf16", (64, 32, 2, 2))
    numbers = (None, (2, 2), (0, 0), (1, 1))
    enlarged = call("convolution", small, up, *numbers, True, (0, 0), 1, results=(large,))  # fmt: skip
    reduced = call("convolution", large, down, *numbers, False, (0, 0), 1, results=(small,))  # fmt: skip
    assert sum(k.flops for k in kernels_of(enlarged)) == 2.0 * 4 * 16 * 16 * 64 * 32 * 4
    assert sum(k.flops for k in kernels_of(enlarged)) == sum(
        k.flops for k in kernels_of(reduced)
    )


@pytest.mark.parametrize("gpu", GPUS)
def test_sums_by_index_take_turns_where_indices_are_equal(gpu: str) -> None:
    """Rows that meet in one of ten places take longer than the same rows in places of their own."""
    rows = Operand("fp32", (65536, 64))
    few, many = (
        call("index_put_", Operand("fp32", (places, 64)), (IDS,), rows, True)
        for places in (10, 65536)
    )
    crowded, apart = (sum(map(load(gpu).running, kernels_of(o))) for o in (few, many))
    assert crowded > 5 * apart


def test_rows_of_known_indices_wait_for_the_largest_group() -> None:
    """Two thirds of the rows at one of 16 places take as long as rows that are spread over one and a half places."""
    gpu, rows = load("h200"), Operand("fp32", (12288, 64))
    ids, places = Operand("int64", (12288,)), Operand("fp32", (16, 64))
    even = call("index_put_", places, (ids,), rows, True)
    uneven = replace(even, options=(("largest_group", 8192),))
    (spread,), (met,) = kernels_of(even), kernels_of(uneven)
    assert spread.shape[2] == 768 and met.shape[2] == 8192
    assert gpu.duration(met) > 5 * gpu.duration(spread)


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=400))
def test_lists_are_launched_whole(sizes: list[int]) -> None:
    """Every element and byte is in one launch; none takes more tensors than there are, or than fit one."""
    tensors = tuple(Operand("fp32", (size,)) for size in sizes)
    kernels = kernels_of(call("_foreach_addcdiv_", tensors, tensors, tensors))
    assert sum(kernel.shape[1] for kernel in kernels) == sum(sizes)
    assert sum(k.bytes for k in kernels) == pytest.approx(16.0 * sum(sizes))
    assert len(kernels) <= len(sizes) + sum(sizes) // (320 * 65536)
    assert all(kernel.shape[0] <= len(sizes) for kernel in kernels)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_list_takes_as_long_as_its_largest_tensor(gpu: str) -> None:
    """Small tensors beside a large one, whose chunk one block of threads works through, hide nothing of it."""
    large, small = Operand("fp32", (65536,)), Operand("fp32", (64,))
    alone = kernels_of(call("_foreach_mul_", (large,)))
    beside = kernels_of(call("_foreach_mul_", (large, *[small] * 12)))
    times = [sum(map(load(gpu).duration, kernels)) for kernels in (alone, beside)]
    assert times[1] == pytest.approx(times[0], rel=0.05)


@pytest.mark.parametrize("gpu", ("h100", "h200"))
def test_a_recurrent_layer_takes_its_steps_one_after_the_other(gpu: str) -> None:
    """Twice the steps take nearly twice as long; of two layers, one has its last step when the other is done.

    Measured behind a full queue: the union of two layers' kernels is 0.55 to 1.0 of their sum.
    """

    def seconds(steps: int, layers: int) -> float:
        x = Operand("bf16", (steps, 64, 512))
        weight = Operand("bf16", (2048, 512))
        weights = (weight, weight) * layers
        rest = (None,) * 4 + (2, 512, 0, layers, False, 0.0, True, False, ())
        operation = call("_cudnn_rnn", x, weights, *rest, results=(x,))
        return sum(map(load(gpu).running, kernels_of(operation)))

    assert 1.6 < seconds(128, 1) / seconds(64, 1) < 2.2
    assert 1.1 < seconds(64, 2) / seconds(64, 1) < 2.2


def test_sparse_gradients_of_bags_leave_the_table_alone() -> None:
    """Bytes of a sparse gradient do not depend on the table's rows; those of a dense one have all of them."""

    def size(rows: int, sparse: bool) -> float:
        out = Operand("fp32", (8192, 64))
        end = Operand("int64", (8192,))
        rest = (end, end, end, end, rows, False, 0, sparse, None, -1)
        (kernel,) = kernels_of(call("_embedding_bag_backward", out, IDS, *rest))
        return kernel.bytes

    assert size(1000, True) == size(10**6, True)
    assert size(2 * 10**6, False) - size(10**6, False) == 10**6 * 64 * 4


def test_a_fourier_transform_reads_and_writes_all_once_a_dimension() -> None:
    """Two dimensions are two passes, of which one may be over half of the points."""
    x = Operand("fp32", (8, 256, 256))
    half = Operand("complex64", (8, 256, 129))
    (kernel,) = kernels_of(call("_fft_r2c", x, (1, 2), 0, True, results=(half,)))
    assert kernel.bytes == 2 * (x.bytes + half.bytes) and kernel.shape == (8, 65536)


@pytest.mark.parametrize("gpu", GPUS)
def test_an_operation_of_any_sizes_has_a_time(gpu: str) -> None:
    """Kinds that nobody measured, of one to five sizes and in types that have no peak of their own."""
    for dtype in ("complex64", "fp32", "int8", "fp8_e4m3>bf16"):
        for sizes in (
            (1000,),
            (10, 100),
            (10, 10, 10),
            (10, 10, 10, 1),
            (2, 5, 10, 10, 1),
        ):
            kernel = Kernel("aten unheard_of", sizes, dtype, "", 8e6, 1e6)
            assert 1e-6 < load(gpu).running(kernel) < 1e-3
