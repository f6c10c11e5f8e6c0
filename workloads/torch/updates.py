"""Optimizers beside the fused AdamW: it and SGD as PyTorch's operations, what Lion, Adafactor and few bits launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.operation import Argument, Operand, Operation, words
from prestep.workloads.operators.rules import RULES
from prestep.workloads.optimizer import Optimizer
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor

#: AdamW (torch/optim/adam.py): its operators on tensors and on lists of them (`foreach`), what they read of parameter,
#: gradient, both moments and root (the first is written), and numbers, of which some follow from the step.
ADAM = words(
    "mul_.Tensor lerp_.Scalar mul_.Tensor addcmul_.default sqrt.default div.Tensor add_.Tensor addcdiv_.default"
)
OVER_LISTS = words(
    "_foreach_mul_.Scalar _foreach_lerp_.Scalar _foreach_mul_.Scalar _foreach_addcmul_.Scalar _foreach_sqrt.default "
    "_foreach_div_.ScalarList _foreach_add_.Scalar _foreach_addcdiv_.ScalarList"
)
READ = words("p mg v vgg v r r pmr")
NUMBERS = (1 - 1e-5, 1 - 0.9, 0.999, 1 - 0.999, None, 0.0547, 1e-8, -0.00369)
OF_SGD = words("dampening is_first_step lr maximize momentum nesterov weight_decay")
SGD = tuple(zip(OF_SGD, (0.0, False, 1e-3, False, 0.9, False, 0.0), strict=True))
Tensors = Operand | tuple[Operand, ...]
#: Elements that one launch over a list takes (ForeachUtils.h, MultiTensorApply.cuh).
CHUNKS = 320 * 65536
#: Lion without a fused kernel (lion-pytorch, update_fn), and what each operator reads of parameter, gradient, moment
#: and update: the parameter decays; the moment is copied, scaled, the gradient added, the sign taken; both are updated.
LION = tuple(
    zip(
        words(
            "mul_.Tensor clone.default mul_.Tensor add.Tensor sign_.default add_.Tensor mul_.Tensor add_.Tensor"
        ),
        words("p m u ug u pu m mg"),
        (1 - 1e-5, None, 0.9, None, None, None, 0.99, None),
        strict=True,
    )
)
#: Numbers of Adafactor: the least estimate, the least of its rows' mean, the share of a new mean, and the rate.
LEAST, LEAST_MEAN, SHARE, RATE = 6.1e-5, 0.0078, 0.415, -1e-3
NORM = "linalg_vector_norm.default"


def operands(tensors: Sequence[Tensor], itemsize: int) -> tuple[Operand, ...]:
    """Tensors of the shapes of others, of so many bytes an element."""
    return tuple(Operand(DTYPES[itemsize], p.shape) for p in tensors)


def call(
    t: Tape,
    name: str,
    *arguments: Argument,
    results: tuple[Operand, ...] = (),
    options: tuple[tuple[str, Argument], ...] = (),
) -> None:
    """An operator that has no history."""
    operation = Operation(f"aten.{name}", arguments, options, results)
    t.operate(operation, RULES[name.partition(".")[0]])


def adam(
    t: Tape,
    tensors: Sequence[Tensor],
    wide: int,
    moment: int,
    together: bool,
    decays: bool,
) -> None:
    """Adam, each tensor by itself or `together`, where roots of all second moments are alive at once."""
    first = 0 if decays else 1
    weights, moments = operands(tensors, wide), operands(tensors, moment)
    if not together:
        for p, m in zip(weights, moments, strict=True):
            _adam(t, ADAM, first, p, m)
        return
    _ = Storage(t.memory, float(sum(m.bytes for m in moments)), "workspace")
    _adam(t, OVER_LISTS, first, weights, moments)


def _adam(
    t: Tape, names: Sequence[str], first: int, weights: Tensors, moments: Tensors
) -> None:
    """The steps from the first on, on a tensor or on lists."""
    of = {"p": weights, "g": weights, "m": moments, "v": moments, "r": moments}
    steps = list(zip(names, READ, NUMBERS, strict=True))
    for name, letters, number in steps[first:]:
        read = tuple(of[letter] for letter in letters)
        value: Argument = number
        results: tuple[Operand, ...] = ()
        if isinstance(weights, tuple) and isinstance(moments, tuple):
            results = moments if name == "_foreach_sqrt.default" else ()
            value = (number,) * len(weights) if name.endswith("List") else number
        elif isinstance(read[0], Operand):
            results = (read[0],)
        named = (("value", number),) if name.startswith("addc") else ()
        more = () if number is None or named else (value,)
        call(t, name, *read, *more, results=results, options=named)


def sgd(t: Tape, stored: Sequence[Tensor], wide: int, moment: int, fused: bool) -> None:
    """SGD over lists (torch/optim/sgd.py): momentum scaled, the gradient added to it, and it to the parameter."""
    weights = operands(stored, wide)
    moments = operands(stored, moment) if moment else ()
    if fused:
        call(t, "_fused_sgd_.default", weights, weights, moments, options=SGD)
        return
    if moments:
        call(t, "_foreach_mul_.Scalar", moments, 0.9)
        call(t, "_foreach_add_.List", moments, weights)
    rate = (("alpha", -1e-3),)
    call(t, "_foreach_add_.List", weights, moments or weights, options=rate)


def lion(
    t: Tape, stored: Sequence[Tensor], wide: int, moment: int, fused: bool
) -> None:
    """Lion: parameters and moments read and written, gradients read, at once or in eight kernels for each tensor."""
    if fused:
        n = sum(p.elements for p in stored)
        t.launch(Kernel("fused", (n,), bytes=float(n * (3 * wide + 2 * moment))))
        return
    weights, moments = operands(stored, wide), operands(stored, moment)
    for p, m in zip(weights, moments, strict=True):
        of = {"p": p, "g": p, "m": m, "u": m}
        for name, letters, number in LION:
            read = [of[letter] for letter in letters]
            more = () if number is None else (number,)
            call(t, name, *read, *more, results=(read[0],))


def adafactor(t: Tape, stored: Sequence[Tensor], wide: int) -> None:
    """Adafactor, tensor by tensor (torch/optim/_adafactor.py); the host reads two norms of each before it goes on."""
    for p in operands(stored, wide):
        number, own = (replace(p, shape=()),), (p,)
        call(t, NORM, p, results=number)
        t.synchronize()
        if len(p.shape) > 1:
            estimate = _of_rows_and_columns(t, p)
        else:
            squares = Storage(t.memory, p.bytes, "workspace")
            call(t, "mul.Tensor", p, p, results=own)
            call(t, "lerp_.Scalar", p, p, SHARE, results=own)
            estimate = Storage(t.memory, p.bytes, "workspace")
            call(t, "clone.default", p, results=own)
            del squares
        call(t, "clamp_.default", p, LEAST, results=own)
        call(t, "rsqrt_.default", p, results=own)
        call(t, "mul_.Tensor", p, p, results=own)
        call(t, NORM, p, results=number)
        t.synchronize()
        call(t, "add_.Tensor", p, p, results=own, options=(("alpha", RATE),))
        del estimate


def _of_rows_and_columns(t: Tape, p: Operand) -> Storage:
    """The estimate of a matrix's squares: means over its rows times means over its columns."""
    *others, rows, columns = p.shape
    sides = []
    for axis, count, shape in ((-1, columns, (rows, 1)), (-2, rows, (1, columns))):
        side = replace(p, shape=(*others, *shape))
        call(t, NORM, p, 2, (axis,), True, results=(side,))
        call(t, "pow_.Scalar", side, 2, results=(side,))
        call(t, "div_.Tensor", side, count, results=(side,))
        call(t, "lerp_.Scalar", side, side, SHARE, results=(side,))
        sides.append(side)
    estimate = Storage(t.memory, p.bytes, "workspace")
    call(t, "bmm.default" if others else "mm.default", *sides, results=(p,))
    mean = replace(p, shape=(*others, 1, 1))
    call(t, "mean.dim", sides[0], (-2,), True, results=(mean,))
    call(t, "clamp_.default", mean, LEAST_MEAN, results=(mean,))
    call(t, "div_.Tensor", p, mean, results=(p,))
    return estimate


def adafactor_state(p: Tensor, wide: int) -> float:
    """Bytes of Adafactor's state: sums over rows and columns of a matrix, all squares of a vector."""
    if len(p.shape) < 2:
        return float(p.elements * wide)
    rows, columns = p.shape[-2:]
    return float(wide * (rows + columns) * (p.elements // (rows * columns)))


def quantized(
    t: Tape, stored: Sequence[Tensor], rule: Optimizer, wide: int, moment: int
) -> None:
    """Adam with quantized moments: for each tensor a compiled kernel that reads and writes them with their scales."""
    for p in stored:
        state = rule.moments * rule.bytes_of_moment(p.elements, moment)
        t.cpu("compiled_update")
        moved = 3.0 * wide * p.elements + 2.0 * state
        t.launch(Kernel("fused", (p.elements,), bytes=moved))
