"""Which parameters are tables of which a step looks up a few rows: an optimizer finds zeros in the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.memory import OPERATIONS
from prestep.workloads.capture.recording import RankRecording, Recording
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators import foreach, products
from prestep.workloads.operators.tensors import base

LOOKUP, ADAM = "embedding_dense_backward", ("_fused_adam_", "_fused_adamw_")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tables:
    """Shapes of the tables of a rank's step.

    Attributes
    ----------
    shapes
        Of those with more rows than a lookup has indices.
    trained
        Shapes of what products compute. A head may be as large as the table, or be the table: then no row is zero.
    ranks
        Sizes of groups that may have a part of each table's rows.
    """

    shapes: frozenset[Shape]
    trained: frozenset[Shape]
    ranks: Collection[int]

    @classmethod
    def of_rank(cls, rank: RankRecording, recording: Recording) -> Tables:
        """Those of a recorded rank."""
        asked = (event for event in rank.events if event.kind in OPERATIONS)
        numbers = sorted({event.values["operation"] for event in asked})
        used = (recording.operations[number] for number in numbers)
        return cls.of(used, {len(group) for group in recording.groups.values()})

    @classmethod
    def of(cls, operations: Iterable[Operation], ranks: Collection[int]) -> Tables:
        """Those of which `operations` make gradients."""
        shapes, trained = set[Shape](), set[Shape]()
        for each in operations:
            if base(each) == LOOKUP:
                indices, table = each.operands[1], each.results[0]
                if indices.elements < table.shape[0]:
                    shapes.add(table.shape)
            elif base(each) in products.RULES:
                trained.update(result.shape for result in each.results)
        return cls(frozenset(shapes), frozenset(trained), {1, *ranks})

    def among(self, updated: Iterable[Operand]) -> tuple[Operand, ...]:
        """The tables among an optimizer's parameters; they come before the head, as layers run."""
        found: list[Operand] = []
        updated = tuple(updated)
        for rows, *width in self.shapes:
            parts = {(-(-rows // ranks), *width) for ranks in self.ranks}
            alike = [each for each in updated if each.shape in parts]
            heads = (rows, *width) in self.trained
            found += alike[: len(alike) - heads]
        return tuple(found)

    def launched(
        self, operation: Operation, kernels: tuple[Kernel, ...]
    ) -> tuple[Kernel, ...]:
        """The kernels of an operation; of an optimizer's, with its tables apart."""
        if base(operation) not in ADAM or not kernels or not self.shapes:
            return kernels
        parameters = operation.arguments[0]
        assert isinstance(parameters, tuple)
        found = self.among(each for each in parameters if isinstance(each, Operand))
        return foreach.adamw(operation, found) if found else kernels
