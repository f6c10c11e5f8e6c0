"""Measured cases (`lab/cases/aten`) as kernels with their seconds."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.aten.results import results_of
from prestep.sim.graph.kernel import PREFIX, Kernel
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import contiguous

#: Layouts of operands that are not read in the order of the result.
READ_ACROSS = ("row", "column", "strided", "narrow", "transposed", "outer")
#: Seconds from which on the GPU, not the host, decides how long calls take back to back.
LONG = 30e-6
FOLDER = Path(__file__).parents[1] / "cases" / "aten"
DTYPES = {
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
    "c64": "complex64",
    "fp8": "fp8_e4m3",
    "tf32": "fp32",
}
TENSOR = re.compile(r"^([a-z]+\d+)\[([\d,]*)\](?::([\d,]*))?(@cpu)?$")
#: Operations that launch one kernel each, which cases call before the one that they measure.
BEFORE = frozenset(
    [
        "ones",
        "zeros",
        "zeros_like",
        "scalar_tensor",
        "where",
        "remainder",
        "eq",
        "ne",
        "_to_copy",
        "clone",
        "empty",
        "repeat",
        "_log_softmax",
    ]
)


#: Operations that sum by index.
SUMS = ("bincount", "index_put", "index_add", "scatter_add", "scatter_reduce")
#: Families whose operations copy a tensor and change the copy.
INTO_COPIES = ("along", "places")
RECURRENT = ("recurrent", "recurrent_wide", "recurrent_queued", "recurrent_small")


@dataclass(frozen=True)
class Case:
    """What one measured case says of one operation.

    Attributes
    ----------
    kernels
        What `kernels_of` makes of the operation.
    cold, warm
        Seconds of its kernels with nothing of the operands in the L2, and called in a row.
    steady
        Seconds of a call of the case back to back, without a profiler; the host's where that is slower.
    launches
        CUDA kernels, copies and sets.
    family, name
        Of the case.
    held_out
        Whether no constant may be taken from it.
    each
        Seconds of each of its kernels, cold and warm.
    """

    operation: Operation
    kernels: tuple[Kernel, ...]
    cold: float
    warm: float
    steady: float
    launches: int
    family: str
    name: str
    held_out: bool
    each: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float:
        """As in a step: half of the operands are still in the L2 (the mean of cold and warm in log).

        What is read in another order than written comes from longer ago: rotated heads, weights' gradients.

        Cases that followed a heavy one started with its clock; where calls back to back were quicker, that is the
        time at the highest clock.
        """
        own = self.kernels[0]
        if own.layout in READ_ACROSS and not own.kind.endswith("cumsum"):
            return self.cold
        between = math.sqrt(self.cold * self.warm)
        if self.launches > 2 or self.warm < LONG:
            return between
        return between * min(1.0, self.steady / self.warm)


def measured(gpu: str) -> list[Case]:
    """Cases of all files of a GPU; those beyond `.domains` were measured on the H200 alone."""
    later = (
        "domains",
        "widths",
        "biased",
        "programs",
        "kinds",
        "uneven",
        "strays",
        "small",
        "small_more",
        "indexer",
        "indexer_sort",
        "pairs",
        "pairs_more",
    )
    parts = "", *(f".{name}" for name in later)
    paths = (FOLDER / f"{gpu}{part}.jsonl.gz" for part in parts)
    return [case for path in paths if path.exists() for case in read(path)]


def read(path: Path) -> list[Case]:
    """Cases of a file that measure one operation, of which one kernel is made."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    names = {row["id"]: row["name"] for row in rows if row["kind"] == "kernel"}
    return [
        case
        for row in rows
        if row["kind"] == "op" and row["kernels"]
        for case in cases_of(row, names)
    ]


def cases_of(row: dict[str, Any], names: dict[int, str]) -> Iterator[Case]:
    """The cases that a row measures."""
    if row["family"] == "optimizer":
        yield from _fused(row, names)
        return
    if row["family"] == "pixels" and row["way"] == "bwd":
        yield from _of_pixels(row)
        return
    operations = [_operation(row, *call[:2]) for call in row["aten"]]
    if row["family"] in RECURRENT:
        yield from _recurrent(row, operations)
        return
    if row["family"] == "uneven_indices" and _is_unsaid(row):
        return
    if row["family"] == "conv_twice":
        yield from _twice(row, operations, names)
        return
    heavy = [each for each in operations if _launches(each)]
    if not heavy or any(_base(each) not in BEFORE for each in heavy[:-1]):
        return
    before = len(heavy) - 1 + (row["family"] in INTO_COPIES)
    yield _case(row, heavy[-1], row["kernels"][before:])


def _recurrent(row: dict[str, Any], operations: list[Operation]) -> Iterator[Case]:
    """cuDNN's kernels alone: beside it states are zeroed, and backward copies what cuDNN kept.

    Layers side by side take turns where the host is not ahead, so those count that were issued behind a full queue.
    """
    *before, last = [each for each in operations if _base(each) != "detach"]
    zeroed = any(_base(each) in ("zeros", "clone") for each in before)
    if row["family"] == "recurrent_queued":
        waited, *kernels = row["kernels"]
        own = _case(row, last, kernels[zeroed:])
        apart = row["span_s"] - waited[3]
        yield replace(own, cold=min(own.cold, apart), warm=min(own.warm, apart))
    elif math.prod(_layers(row)) == 1:
        yield _case(row, last, row["kernels"][zeroed:])


def _is_unsaid(row: dict[str, Any]) -> bool:
    """Whether indices are uneven in a sum whose kernel does not say how many are one."""
    even = row["set"]["spread"] == 0.0
    return not even and row["op"] != "index_put_accumulate"


def _of_groups(row: dict[str, Any], operation: Operation) -> Operation:
    """How many rows the most frequent index has, which captures of programs count."""
    largest = (("largest_group", row["set"]["largest"]),)
    return replace(operation, options=(*operation.options, *largest))


def _of_pixels(row: dict[str, Any]) -> Iterator[Case]:
    """The gradients of a loss of pixels: zeros and what is written of them, then those of the softmax."""
    *of_loss, of_softmax = row["kernels"]
    names = ("nll_loss2d_backward.default", "_log_softmax_backward_data.default")
    texts = dict(row["aten"])
    for name, kernels in zip(names, (of_loss, [of_softmax]), strict=True):
        yield _case(row, _operation(row, name, texts[name]), kernels)


def _twice(
    row: dict[str, Any], operations: list[Operation], names: dict[int, str]
) -> Iterator[Case]:
    """The filter's gradient, a convolution by a picture: its kernels follow the copies of its operands."""
    convolutions = [each for each in operations if _base(each) == "convolution"]
    if len(convolutions) != 2:
        return  # by groups: one for each, which the row has summed up
    copied = [
        at for at, each in enumerate(row["kernels"]) if "direct_copy" in names[each[0]]
    ]
    dims, *_, kernel, stride, _ = row["size"]
    padding = kernel // 2 if kernel % 2 else 0
    numbers = tuple((each,) * dims for each in (1, padding, stride))
    image, weight = convolutions[1].operands[:2]
    arguments = (image, weight, None, *numbers, False, (0,) * dims, 1)
    whole = replace(convolutions[1], arguments=arguments)
    whole = replace(whole, results=results_of(whole))
    case = _case(row, whole, row["kernels"][copied[-1] + 1 :])
    own = tuple(each for each in case.kernels if "convolution" in each.kind)
    yield replace(case, kernels=own)


def _in_place(row: dict[str, Any], operation: Operation) -> Operation:
    """Sums by index into a copy, as in place: the copy is an operation of its own."""
    _, name, overload = operation.name.split(".")
    return replace(operation, name=f"aten.{name}_.{overload}")


def _launches(operation: Operation) -> bool:
    return bool(kernels_of(operation)) and _base(operation) != "empty"


def _base(operation: Operation) -> str:
    return operation.name.split(".")[1]


def _case(row: dict[str, Any], operation: Operation, kernels: list[Any]) -> Case:
    cold, warm, launches = 0.0, 0.0, 0
    for kernel in kernels:
        cold, warm = cold + kernel[3], warm + kernel[4]
        launches += kernel[5] if len(kernel) > 5 else 1
    cold = min(cold, row.get("span_s", cold))  # kernels of several groups run at once
    return Case(
        operation,
        _skewed(kernels_of(operation))
        if row["set"].get("skewed") or row["set"].get("order") == "skewed"
        else kernels_of(operation),
        cold,
        warm,
        row["s"],
        launches,
        row["family"],
        f"{row['op']} {row['way']}",
        row["split"] == "held_out",
        tuple((kernel[3], kernel[4]) for kernel in kernels),
    )


def _skewed(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Sums by indices of which many are one, which sizes do not show: they wait for each other."""
    return tuple(
        replace(kernel, layout=f"{kernel.layout}_repeated".lstrip("_"))
        if kernel.kind.removeprefix(PREFIX) in SUMS
        else kernel
        for kernel in kernels
    )


def _operation(row: dict[str, Any], name: str, texts: list[Any]) -> Operation:
    arguments = tuple(_argument(text) for text in texts)
    options: tuple[tuple[str, Argument], ...] = ()
    if row["set"].get("dtype") == "tf32" or row["family"] in RECURRENT:
        options = (("allow_tf32", True),)
    whole = Operation(f"aten.{name}", arguments, options)
    rule = REBUILT.get(row["family"])
    made = rule(row, whole) if rule is not None else whole
    return replace(made, results=results_of(made))


def _argument(text: Any) -> Argument:
    match = TENSOR.match(text) if isinstance(text, str) else None
    if match is None:
        return text if isinstance(text, int | float | str) else None
    dtype, sizes, steps, place = match.groups()
    shape = tuple(int(size) for size in sizes.split(",") if size)
    strides = tuple(int(step) for step in (steps or "").split(",") if step)
    own = DTYPES.get(dtype, dtype)
    return Operand(own, shape, strides, "cpu" if place else "cuda")


def _reduction(row: dict[str, Any], operation: Operation) -> Operation:
    """The dimensions of a reduction, of which the text has the numbers in a row with other ones."""
    dim = row["set"].get("dim")
    dims = () if dim is None else (dim,)
    types = tuple(v for v in operation.arguments[1:] if isinstance(v, str))
    order: Argument = 2.0
    lead: tuple[Argument, ...] = (operation.arguments[0],)
    if _base(operation) == "linalg_vector_norm":
        lead = (*lead, order)
    if _base(operation) in ("ne", "eq"):
        return operation
    return replace(operation, arguments=(*lead, dims, *types))


def _convolution(row: dict[str, Any], operation: Operation) -> Operation:
    """The numbers of a convolution from the case's size; all its tensors are in the text."""
    size = row["size"]
    *_, kernel, stride, groups = size
    tensors = [v for v in operation.arguments if isinstance(v, Operand)]
    sides = len(tensors[0].shape) - 2
    numbers = ((stride,) * sides, (kernel // 2,) * sides, (1,) * sides)
    if _base(operation) == "convolution":
        image, weight, *rest = tensors
        arguments: tuple[Argument, ...] = (
            image,
            weight,
            rest[0] if rest else None,
            *numbers,
            False,
            (0,) * sides,
            groups,
        )
    elif _base(operation) == "convolution_backward":
        arguments = (
            *tensors[:3],
            None,
            *numbers,
            False,
            (0,) * sides,
            groups,
            (True, True, False),
        )
    else:
        return operation
    return replace(operation, arguments=arguments)


def _domain_convolution(row: dict[str, Any], operation: Operation) -> Operation:
    """As `_convolution`, for sizes that begin with the dimensions in space, of layers that may be transposed."""
    if _base(operation) not in ("convolution", "convolution_backward"):
        return operation
    dims, *_, kernel, stride, groups = row["size"]
    tensors = tuple(v for v in operation.arguments if isinstance(v, Operand))
    padding = kernel // 2 if kernel % 2 else 0
    numbers = tuple((each,) * dims for each in (stride, padding, 1))
    rest = ("transpose" in row["op"], (0,) * dims, groups)
    if _base(operation) == "convolution":
        image, weight = tensors[:2]
        return replace(operation, arguments=(image, weight, None, *numbers, *rest))
    mask = (row["set"].get("mask") != "filter", True, False)
    return replace(operation, arguments=(*tensors[:3], None, *numbers, *rest, mask))


def _sampled(row: dict[str, Any], operation: Operation) -> Operation:
    """The gradient of a filter for every picture: the pictures' is not wanted."""
    pictures, *_, kernel, stride = row["size"]
    tensors = tuple(v for v in operation.arguments if isinstance(v, Operand))
    numbers = tuple((each,) * 2 for each in (stride, kernel // 2, 1))
    rest = (False, (0, 0), pictures, (False, True, False))
    return replace(operation, arguments=(*tensors, None, *numbers, *rest))


def _patched(row: dict[str, Any], operation: Operation) -> Operation:
    """Patches of pictures that want no gradient, one beside the other."""
    if "convolution" not in operation.name:
        return operation
    patch = row["size"][-1]
    tensors = tuple(v for v in operation.arguments if isinstance(v, Operand))
    numbers = ((patch, patch), (0, 0), (1, 1), False, (0, 0), 1)
    mask = () if row["way"] == "fwd" else ((False, True, False),)
    return replace(operation, arguments=(*tensors, None, *numbers, *mask))


def _of_channels(row: dict[str, Any], operation: Operation) -> Operation:
    """The dimensions of a bias's gradient as the tuple that they are."""
    if _base(operation) != "sum":
        return operation
    return replace(operation, arguments=(operation.arguments[0], (0, 2)))


def _of_last(row: dict[str, Any], operation: Operation) -> Operation:
    """The dimensions of sums over pictures, of which the text has the numbers in a row."""
    dims = {"sum": (0, 2, 3), "mean": (2, 3)}.get(_base(operation))
    if dims is None:
        return operation
    return replace(operation, arguments=(operation.arguments[0], dims))


def _spectrum(row: dict[str, Any], operation: Operation) -> Operation:
    """The two dimensions of a Fourier transform, of which the text has the numbers in a row."""
    if not _base(operation).startswith("_fft"):
        return operation
    source, *_, last = operation.arguments
    return replace(operation, arguments=(source, (2, 3), 0, last))


def _layers(row: dict[str, Any]) -> tuple[int, int]:
    """Layers and directions of a recurrent network."""
    *_, last = row["size"]
    of_two = row["family"] == "recurrent_small"
    return (row["size"][-2], last) if of_two else (row["size"][3], 1)


def _network(row: dict[str, Any], operation: Operation) -> Operation:
    """The weights of recurrent layers as the list that they are; the text has them in a row."""
    if not _base(operation).startswith("_cudnn_rnn"):
        return operation
    source, *others = (v for v in operation.arguments if isinstance(v, Operand))
    (layers, directions), modes = _layers(row), {"lstm": 2, "gru": 3}
    weights = tuple(others[: 4 * layers * directions])
    after = (None,) * (8 if "backward" in operation.name else 4)
    both = directions == 2
    rest = (modes[row["op"]], source.shape[-1], 0, layers, False, 0.0, True, both, ())
    return replace(operation, arguments=(source, weights, *after, *rest))


def _attention(row: dict[str, Any], operation: Operation) -> Operation:
    causal = bool(row["set"].get("causal"))
    dropout = float(row["set"].get("dropout", 0.0))
    return replace(operation, options=(("dropout_p", dropout), ("is_causal", causal)))


def _norm(row: dict[str, Any], operation: Operation) -> Operation:
    """The flags that say which gradients are wanted, as the tuple that they are."""
    flags = tuple(v for v in operation.arguments if isinstance(v, bool))
    if _base(operation) != "native_layer_norm_backward":
        return operation
    others = operation.arguments[: len(operation.arguments) - len(flags)]
    return replace(operation, arguments=(*others, flags))


def _foreach(row: dict[str, Any], operation: Operation) -> Operation:
    """Whole lists, of which the text has the first tensors: as many as the case has, of equal sizes."""
    if not _base(operation).startswith(("_foreach", "_amp", "cat")):
        return operation
    tensors, elements = row["size"]
    dtype = next(v.dtype for v in operation.arguments if isinstance(v, Operand))
    count = min(_lists(operation, tensors), 3)
    lists = (_list(dtype, tensors, elements),) * count
    by_tensor = row["op"] == "_foreach_mul_tensor_"
    factor = (Operand("fp32", ()),) if by_tensor else ()
    return replace(operation, arguments=(*lists, *factor))


def _lists(operation: Operation, tensors: int) -> int:
    """How many lists of so many tensors an operation takes; "+3" in its text stands for three tensors more."""
    if _base(operation) == "cat":
        return 1
    if tensors == 1:
        return _shown(operation)
    texts = [v for v in operation.arguments if isinstance(v, str) and v[:1] == "+"]
    cut = sum(int(text[1:]) for text in texts)
    shown = len(operation.arguments) - len(texts)
    return max(1, (shown + cut) // tensors)


def _shown(operation: Operation) -> int:
    return sum(isinstance(v, Operand) and v.elements > 1 for v in operation.arguments)


def _list(dtype: str, tensors: int, elements: int) -> tuple[Operand, ...]:
    share = elements // tensors
    first = elements - share * (tensors - 1)
    return (Operand(dtype, (first,)), *(Operand(dtype, (share,)),) * (tensors - 1))


def _fused(row: dict[str, Any], names: dict[int, str]) -> Iterator[Case]:
    """The fused kernel of an optimizer's step; the counting of steps beside it is another operation."""
    if row["set"].get("how") != "fused":
        return
    kernels = [k for k in row["kernels"] if "used" in names.get(k[0], "")]
    name = {"adamw": "_fused_adamw_", "adam": "_fused_adam_"}.get(
        row["op"], "_fused_sgd_"
    )
    lists = {"adamw": 4, "adam": 4, "sgd": 2, "sgd_momentum": 3}[row["op"]]
    one = _list(row["set"]["dtype"], *row["size"])
    operation = Operation(f"aten.{name}.default", (one,) * lists, (), ())
    if kernels:
        yield _case(row, operation, kernels)


def _joined(row: dict[str, Any], operation: Operation) -> Operation:
    """The list and the dimension of a join, which the text has in a row."""
    if _base(operation) not in ("cat", "stack"):
        return operation
    parts = tuple(v for v in operation.arguments if isinstance(v, Operand))
    numbers = [v for v in operation.arguments if isinstance(v, int)]
    cut = [int(v[1:]) for v in operation.arguments if isinstance(v, str)]
    return replace(operation, arguments=(parts + parts[:1] * sum(cut), *numbers[-1:]))


REBUILT = {
    "copy": _joined,
    "reduction": _reduction,
    "conv": _convolution,
    "grouped_conv": _convolution,
    "diffusion_conv": _convolution,
    "sequence_conv": _convolution,
    "conv_odd": _domain_convolution,
    "conv_edge": _domain_convolution,
    "conv_sample": _domain_convolution,
    "conv_volume": _domain_convolution,
    "conv_pointwise": _domain_convolution,
    "conv_depthwise": _domain_convolution,
    "conv_pointwise_more": _domain_convolution,
    "conv_depthwise_more": _domain_convolution,
    "conv_picture_1x1": _domain_convolution,
    "conv_picture_3x3": _domain_convolution,
    "conv_picture_grouped": _domain_convolution,
    "conv_small": _domain_convolution,
    "conv_small_rows": _domain_convolution,
    "conv_filters": _domain_convolution,
    "conv_by_sample": _sampled,
    "patch_tokens": _patched,
    "conv_by_sample_narrow": _sampled,
    "uneven_indices": _of_groups,
    "conv_by_sample_wide": _sampled,
    "channel": _of_channels,
    "channel_small": _of_channels,
    "last_channels": _of_last,
    "recurrent_small": _network,
    "reduction_small": _reduction,
    "attention_little": _attention,
    "foreach_small": _foreach,
    "recurrent": _network,
    "recurrent_wide": _network,
    "recurrent_queued": _network,
    "spectrum": _spectrum,
    "attention": _attention,
    "attention_short": _attention,
    "attention_window": _attention,
    "heads": _attention,
    "windows": _attention,
    "untrained_norm": _norm,
    "along": _in_place,
    "places": _in_place,
    "foreach": _foreach,
}
__all__ = ["FOLDER", "Case", "contiguous", "measured", "read"]
