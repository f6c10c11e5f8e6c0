"""Recurrent layers by cuDNN: a product of all inputs for each layer and direction, then one step after the other.

Every step reads the states' weights again, from the L2 or from memory, and launches a product and the gates.
"""

from __future__ import annotations

from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import ELEMENT_BYTES, Operand, Operation
from prestep.workloads.operators.tensors import (
    argument,
    base,
    first,
    format_of,
    integers,
    launched,
)

#: cuDNN's numbers of the kinds of layers, and how many gates a state has; it keeps two tensors more for backward.
MODES, GATES = ("relu", "tanh", "lstm", "gru"), (1, 1, 4, 3)
#: What cuDNN allocates in a pass with what it keeps, in states of all steps: of layers in one direction each and beside
#: them, and of layers in two; and bytes whatever the sizes (fitted to 200 networks on an H200, within 9 %).
ONE_WAY, BESIDE, TWO_WAYS, ALWAYS = 7.0, 4.2, 13.7, 9 * 2**20


def layers(operation: Operation) -> tuple[Kernel, ...]:
    """(steps, batch, width of inputs, of states, layers times directions) of one call; the kind of layer as layout.

    Backward has the gradients of what went in and those of the weights: two products in place of each one.
    """
    weights = _weights(operation)
    if not weights:
        return launched(operation, (1, 1, 1, 1, 1))
    source, after = first(operation), 4 * base(operation).endswith("_backward")
    sizes, mode = argument(operation, 14 + after), argument(operation, 6 + after)
    packed = isinstance(sizes, tuple) and bool(sizes)
    rows = source.shape[0] if packed else prod(source.shape[:2])
    batch_first = argument(operation, 10 + after) is True
    steps = len(integers(sizes)) if packed else source.shape[1 if batch_first else 0]
    element = ELEMENT_BYTES[source.dtype]
    inputs, states = (sum(pair[at].elements for pair in weights) for at in (0, 1))
    gates = sum(pair[1].shape[0] for pair in weights)
    passes = 2 if after else 1
    # Gates and cells of every row are written and read once a pass.
    size = passes * element * (inputs + steps * states + 3 * rows * gates)
    shape = steps, rows // max(1, steps), source.shape[-1], weights[0][1].shape[1]
    return launched(
        operation,
        (*shape, len(weights)),
        MODES[mode] if isinstance(mode, int) else "",
        format_of(source, operation),
        flops=2.0 * passes * rows * (inputs + states),
        size=float(size),
    )


def scratch(operation: Operation) -> float:
    """Bytes of cuDNN's workspace: products of inputs, gradients of gates, and the weights once more."""
    (kernel,) = layers(operation)
    after = 4 * base(operation).endswith("_backward")
    mode, both = (argument(operation, at + after) for at in (6, 13))
    steps, batch, _, width, count = kernel.shape
    states = steps * batch * width * ELEMENT_BYTES[first(operation).dtype]
    whole = TWO_WAYS * count if both is True else ONE_WAY * count + BESIDE
    reserve = count * (GATES[mode] + 2) if isinstance(mode, int) else 0
    weights = sum(each.bytes for pair in _weights(operation) for each in pair)
    return states * max(0.0, whole - reserve) + weights + ALWAYS


def _weights(operation: Operation) -> list[tuple[Operand, Operand]]:
    """Of inputs and of states, (gates x hidden, width) each, by layer and direction."""
    given = argument(operation, 1)
    matrices = [
        each
        for each in (given if isinstance(given, tuple) else ())
        if isinstance(each, Operand) and len(each.shape) == 2
    ]
    return list(zip(matrices[::2], matrices[1::2], strict=False))


RULES = {"_cudnn_rnn": layers, "_cudnn_rnn_backward": layers}
