"""Tables of which a step looks up a few rows: fused AdamW takes longer over rows without a gradient."""

from __future__ import annotations

import pytest

from prestep.workloads.capture.tables import Tables
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.rules import kernels_of

ROWS, WIDTH, TOKENS = 512, 64, 128
TABLE, MATRIX = Operand("bf16", (ROWS, WIDTH)), Operand("bf16", (WIDTH, WIDTH))


def lookup(tokens: int = TOKENS, table: Operand = TABLE) -> Operation:
    """The gradient of a table's lookups."""
    gradient, indices = Operand("bf16", (tokens, WIDTH)), Operand("int64", (tokens,))
    name = "aten.embedding_dense_backward.default"
    return Operation(name, (gradient, indices, ROWS, -1, False), (), (table,))


def head() -> Operation:
    """The gradient of a head's weight, which is as large as the table."""
    of_logits, states = (Operand("bf16", s) for s in ((ROWS, TOKENS), (TOKENS, WIDTH)))
    return Operation("aten.mm.default", (of_logits, states), (), (TABLE,))


def update(*parameters: Operand) -> Operation:
    lists = (parameters, parameters, parameters, parameters, ())
    counters = tuple(Operand("fp32", ()) for _ in parameters)
    return Operation("aten._fused_adamw_.default", (*lists, counters))


#: Operations of a step beside the update, parameters, ranks of a group, and elements in tables that are mostly zeros.
CASES = {
    "no head": ([lookup()], (TABLE, MATRIX), 1, ROWS * WIDTH),
    "a head as large": ([lookup(), head()], (TABLE, MATRIX, TABLE), 1, ROWS * WIDTH),
    "a head that is the table": ([lookup(), head()], (TABLE, MATRIX), 1, 0),
    "more tokens than rows": ([lookup(ROWS)], (TABLE, MATRIX), 1, 0),
    "no lookup": ([head()], (TABLE, MATRIX), 1, 0),
    "shards": (
        [lookup(), head()],
        (Operand("bf16", (ROWS // 4, WIDTH)), Operand("bf16", (ROWS // 4, WIDTH))),
        4,
        ROWS * WIDTH // 4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_without_a_gradient_are_those_of_tables(name: str) -> None:
    """Only a table that nothing else trains has them; all parameters are updated once."""
    operations, parameters, ranks, expected = CASES[name]
    operation = update(*parameters)
    tables = Tables.of(operations, {ranks})
    launched = tables.launched(operation, kernels_of(operation))
    slow = [k for k in launched if k.layout.endswith("_embedding")]
    assert sum(k.shape[1] for k in slow) == expected
    assert sum(k.shape[1] for k in launched) == sum(p.elements for p in parameters)
    assert sum(k.bytes for k in launched) == sum(k.bytes for k in kernels_of(operation))
