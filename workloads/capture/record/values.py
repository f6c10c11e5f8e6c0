"""Small tensors carry their values, so that a program that looks at them goes on as it would.

A tensor without one (made from weights or activations) answers with a stand-in: 1 for a number, no for a condition.
Comparing such a number takes it to be 1, too: a program that asks whether a norm is finite, or overflowed, is told so.
Whether all of many meet a condition is answered with yes: who asks checks that values are what they should be.
Every such answer is counted: the recording lists them as assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from prestep.workloads.capture.record import sparse
from prestep.workloads.routing import assumption, choices

DEVICE = torch.device  # PyTorch's own, before another takes its name
WRITABLE = 1 << 22  # elements of a stand-in that has memory of its own
LARGEST = 1 << 16  # elements of a tensor that is computed for real beside the fake one
#: The same of whole numbers and conditions, such as which tokens go where.
WHOLE = 1 << 23
#: Operators whose results no operand's values decide.
ANYHOW = {
    *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
    *("zero_", "fill_"),
}
#: Those whose result is whatever lay in memory: here zeros, the same in every run.
EMPTY = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    "empty_permuted",
}
#: Questions whose answer for ordinary numbers is no.
NEVER = ("isnan", "isinf")
#: Questions about all elements at once, whose answer is yes: checks of arguments, as those of distributions.
ALWAYS = ("all", "_is_all_true", "allclose")
#: Asks gradients for infinite numbers.
OVERFLOW = "_amp_foreach_non_finite_check_and_unscale_"
#: Questions about a number that are answered as if it were 1.
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def value_of(tensor: Any) -> torch.Tensor | None:
    """The real tensor beside a fake one, or a real tensor itself; None where nobody knows it."""
    if isinstance(tensor, FakeTensor):
        return getattr(tensor, "_value", None)
    return tensor


def is_labelled(tensor: Any) -> bool:
    """Whether a tensor on the host has a class of Python's for its name or meta data, and computes as any other."""
    kind = type(tensor)
    own = kind not in (torch.Tensor, torch.nn.Parameter, FakeTensor)
    return own and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def plain(value: Any) -> Any:
    """A tensor without such a class."""
    if not (isinstance(value, torch.Tensor) and is_labelled(value)):
        return value
    with torch._C.DisableTorchFunction():
        return value.as_subclass(torch.Tensor)


def keep_plain() -> None:
    """Results on the device have no classes for meta data: those that stand for others cannot take one."""
    convert = torch._tensor._convert

    def converted(result: Any, kind: Any) -> Any:
        return result if isinstance(result, FakeTensor) else convert(result, kind)

    torch._tensor._convert = converted


def is_assumed(tensor: Any) -> bool:
    """Whether a value follows from one that was assumed."""
    return bool(getattr(tensor, "_assumed", False))


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor on the host in place of one whose values nobody knows."""
    if tensor.dtype == torch.bool:
        return _noes(tensor)
    if sparse.is_sparse(tensor):
        shape, layout = tuple(tensor.shape), tensor.layout
        return torch.zeros(shape, dtype=tensor.dtype, layout=layout, device="cpu")
    return _alike(tensor, torch.ones((), dtype=tensor.dtype, device="cpu"))


def _noes(tensor: torch.Tensor) -> torch.Tensor:
    return _alike(tensor, torch.zeros((), dtype=torch.bool, device="cpu"))


def _alike(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """One value in the shape of a tensor; large ones take no memory, and can not be written to."""
    whole = value.expand(tuple(tensor.shape))
    return whole if whole.numel() > WRITABLE else whole.clone()


def compute(function: Any, arguments: Any, options: Any, results: Any) -> None:
    """Gives results their values where all operands have theirs, and takes them away where one changed in place."""
    outputs = [t for t in _leaves(results) if isinstance(t, FakeTensor)]
    name = function._schema.name.partition("::")[2]
    if name in NEVER and outputs and outputs[0].numel() <= LARGEST:
        outputs[0]._value = _noes(outputs[0])
    elif name in ALWAYS and outputs and not _known(arguments):
        outputs[0]._value = (
            ~_noes(outputs[0]) if outputs[0].numel() <= LARGEST else None
        )
        outputs[0]._assumed = True
    elif outputs and _computable(name, (arguments, options), outputs):
        _compute(function, arguments, options, results)
    elif name_of(function) in CHOOSING:
        choose_experts(arguments, results)
    elif name_of(function) in PICKING and _is_known_row(arguments[0], outputs[0]):
        pick_evenly(value_of(arguments[0]), outputs[0])
    elif name == OVERFLOW:
        return  # what says whether there was any keeps its value: none
    elif name in COMPARISONS and outputs and outputs[0].numel() == 1:
        _compare(function, arguments, outputs[0])
    else:
        forget(written(function, arguments, options))
        if name == "ne" and outputs:
            outputs[0]._unlike = True


def is_unlike(mask: Any) -> bool:
    """Whether a mask asks which elements differ, which nobody computed: nearly all, as of edges that are no loops."""
    return bool(getattr(mask, "_unlike", False))


def forget(tensors: Iterable[Any]) -> None:
    """Nobody knows any longer what lies in tensors that an operation wrote to."""
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            tensor._value = None


def _compare(function: Any, arguments: Any, answer: Any) -> None:
    """The answer to a question about numbers that nobody knows, as if they were 1."""
    assumed = [
        stand_in(a) if isinstance(a, FakeTensor) and value_of(a) is None else a
        for a in arguments
    ]
    answer._value = function(*(on_host(a) for a in assumed))
    answer._assumed = True


def tensors_in(values: Any) -> list[torch.Tensor]:
    """All tensors among arguments."""
    return [leaf for leaf in _leaves(values) if isinstance(leaf, torch.Tensor)]


def _leaves(values: Any) -> list[Any]:
    leaves: list[Any] = torch.utils._pytree.tree_leaves(values)
    return leaves


def _known(operands: Any) -> bool:
    return all(value_of(tensor) is not None for tensor in tensors_in(operands))


def _computable(name: str, operands: Any, outputs: list[Any]) -> bool:
    """Whether all operands have values, or need none, and nothing is large."""
    tensors = tensors_in(operands)
    needed = tensors[1:] if name in ANYHOW or name in EMPTY else tensors
    known = all(value_of(tensor) is not None for tensor in needed)
    return known and all(map(is_small, (*tensors, *outputs)))


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is computed for real beside the fake one."""
    fractions = tensor.is_floating_point() or tensor.is_complex()
    return tensor.numel() <= (LARGEST if fractions else WHOLE)


def _compute(function: Any, arguments: Any, options: Any, results: Any) -> None:
    """Runs the operation on the host and hangs what it gives on the fake results."""
    operands, settings = torch.utils._pytree.tree_map(on_host, (arguments, options))
    if name_of(function) == COUNTING:
        operands = operands[0].double(), *operands[1:]
    try:
        computed = function(*operands, **settings)
        if function._schema.name.partition("::")[2] in EMPTY:
            computed.zero_()
    except (RuntimeError, NotImplementedError, TypeError):
        return  # an operation that only the device has
    assumed = any(map(is_assumed, _leaves((arguments, options))))
    for output, value in zip(_leaves(results), _leaves(computed), strict=True):
        pair = isinstance(output, FakeTensor) and isinstance(value, torch.Tensor)
        if pair and output.shape == value.shape:
            output._value, output._assumed = value.to(output.dtype), assumed


def written(function: Any, arguments: Any, options: Any) -> list[Any]:
    tensors: list[Any] = []
    for place, parameter in enumerate(function._schema.arguments):
        if parameter.alias_info is None or not parameter.alias_info.is_write:
            continue
        value = (
            arguments[place] if place < len(arguments) else options.get(parameter.name)
        )
        tensors.extend(torch.utils._pytree.tree_leaves(value))
    return tensors


def on_host(argument: Any) -> Any:
    if isinstance(argument, FakeTensor):
        value = value_of(argument)
        return stand_in(argument) if value is None else value
    if isinstance(argument, DEVICE):
        return torch.device("cpu")
    return argument


COUNTING = "aten::histc.default"  # which the host has for fractions alone
CHOOSING = ("aten::topk.default",)  # by which routers choose
#: Which pick rows of a tensor: where nobody knows which, those of a row of whole numbers at equal distances.
PICKING = ("aten::index.Tensor", "aten::index_select.")
MOST_CHOICES = 1 << 20  # choices of an operation that are written down


class Experts:
    """What is assumed of experts, and how often it was.

    Attributes
    ----------
    busiest
        Tokens of the first expert over those of the mean one.
    """

    busiest: ClassVar[float] = 1.0
    assumed: ClassVar[Counter[str]] = Counter()


def _is_known_row(tensor: Any, picked: torch.Tensor) -> bool:
    """Whether a tensor is a row of known whole numbers, such as which graph each node is of, and so is the other."""
    row = tensor.dim() == picked.dim() == 1 and not tensor.is_floating_point()
    has_numbers = value_of(tensor) is not None and tensor.dtype != torch.bool
    return row and has_numbers and tensor.numel() > 0 and is_small(picked)


def pick_evenly(row: Any, picked: Any) -> None:
    """Gives a tensor that was picked from a row at unknown places values spread over the row's range."""
    count = picked.numel()
    places = torch.arange(count, device="cpu") * row.numel() // max(1, count)
    picked._value, picked._assumed = row[places], True


def name_of(function: Any) -> str:
    return f"{function._schema.name}.{function._overloadname}"


def choose_experts(arguments: Any, results: Any) -> None:
    """Gives what `topk` chooses its values, where it chooses along the last dimension."""
    scores, chosen = arguments[0], results[1]
    along = arguments[2] if len(arguments) > 2 else -1
    if along not in (-1, scores.dim() - 1) or not 0 < chosen.numel() <= MOST_CHOICES:
        return
    rows, count = chosen.numel() // chosen.shape[-1], chosen.shape[-1]
    table = choices(rows, count, int(scores.shape[-1]), Experts.busiest)
    if isinstance(chosen, FakeTensor):
        value = torch.tensor(table, dtype=chosen.dtype, device="cpu")
        chosen._value, chosen._assumed = value.reshape(tuple(chosen.shape)), True
        Experts.assumed[assumption(Experts.busiest)] += 1
