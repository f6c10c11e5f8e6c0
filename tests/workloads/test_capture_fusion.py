"""Compiled functions of a recording: what becomes one kernel, what it moves, and what stays in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.compiled_calls import Call, Residence
from prestep.workloads.capture.recording import Event
from prestep.workloads.capture.regions import arrange
from prestep.workloads.fusion.compile import Compiler
from prestep.workloads.fusion.graph import Region, Step
from prestep.workloads.fusion.lifetimes import Issue
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.rules import kernels_of

SIZE = 1024
TENSOR = Operand("bf16", (SIZE, SIZE))
BYTES = float(TENSOR.bytes)
ACROSS = Operand("bf16", (SIZE, SIZE), (1, SIZE))


def pointwise(name: str, operands: int) -> Operation:
    return Operation(f"aten.{name}.default", (TENSOR,) * operands, (), (TENSOR,))


OPERATIONS = (
    pointwise("silu", 1),
    pointwise("mul", 2),
    pointwise("mm", 2),
    pointwise("t", 1),
    Operation("aten.sum.dim_IntList", (TENSOR, (1,)), (), (Operand("bf16", (SIZE,)),)),
    Operation(
        "aten.cat.default",
        ((TENSOR, TENSOR), 1),
        (),
        (Operand("bf16", (SIZE, 2 * SIZE)),),
    ),
    Operation("aten._softmax.default", (TENSOR, -1, False), (), (TENSOR,)),
    Operation(
        "aten.mm.default",
        (Operand("bf16", (SIZE, SIZE - 1)), Operand("bf16", (SIZE - 1, SIZE))),
        (),
        (TENSOR,),
    ),
    pointwise("cos", 1),
    pointwise("sin", 1),
    Operation(
        "aten.embedding_dense_backward.default",
        (TENSOR, Operand("int64", (SIZE,)), 4 * SIZE, -1, False),
        (),
        (Operand("bf16", (4 * SIZE, SIZE)),),
    ),
    Operation("aten.mul.Tensor", (TENSOR, ACROSS), (), (TENSOR,)),
)
SILU, MUL, MM, T, SUM, CAT, SOFTMAX, ODD, COS, SIN, EMBED, TURNED = range(12)


def step(operation: int, reads: Iterable[int], write: int) -> Step:
    return Step(operation, tuple((s, 0) for s in reads), ((write, 0),))


@dataclass(frozen=True)
class Seen:
    """A call of a compiled region: what it launches, and storages by the recording's numbers."""

    call: Call

    @property
    def forward(self) -> tuple[tuple[Issue, ...], ...]:
        return self.call.compiled.forward

    @property
    def backward(self) -> tuple[tuple[Issue, ...], ...]:
        return self.call.compiled.backward

    def written(self, pieces: Iterable[Iterable[Issue]]) -> set[int]:
        """Storages that kernels take, or write in the place of others."""
        every = [issue for piece in pieces for issue in piece]
        taken = {s for issue in every for s, _ in (*issue.takes, *issue.reuses)}
        return self.call.named(taken & self.call.compiled.made)

    @property
    def absent(self) -> set[int]:
        """Tensors that are never in memory; statistics, which are none, have numbers below 0."""
        there = self.written((*self.forward, *self.backward))
        tensors = {s for s in self.call.compiled.made if s >= 0}
        return self.call.named(tensors) - there

    @property
    def held(self) -> set[int]:
        return self.call.named(self.call.compiled.kept)


def compiled(
    forward: Sequence[Step],
    results: Sequence[int],
    backward: Sequence[Step] = (),
    freed: Iterable[int] = (),
) -> Seen:
    kernels = tuple(kernels_of(operation) for operation in OPERATIONS)
    region = Region(
        [list(forward)],
        [list(backward)] if backward else [],
        list(results),
        set(freed),
    )
    made, names = Compiler(OPERATIONS, kernels).compile(region, ())
    unnamed = {storage: storage for storage in made.made if storage < 0}
    return Seen(Call(made, {new: old for old, new in names.items()} | unnamed))


def named(launches: Iterable[Issue]) -> list[str]:
    return [launch.name for launch in launches]


def moved(launches: Iterable[Issue]) -> float:
    return sum(launch.kernel.bytes for launch in launches)


def test_a_chain_is_one_kernel_that_reads_and_writes_once() -> None:
    """silu(a) * b reads a and b and writes the product; what lies between is never in memory."""
    region = compiled([step(SILU, [1], 3), step(MUL, [3, 2], 4)], [4])
    (launch,) = region.forward[0]
    assert launch.kernel.bytes == 3 * BYTES
    assert region.absent == {3}


def test_a_single_operation_is_as_it_was() -> None:
    """A region of one product launches that product; one of one operation over elements moves its bytes."""
    (product,) = compiled([step(MM, [1, 2], 3)], [3]).forward[0]
    assert (product.kernel,) == kernels_of(OPERATIONS[MM])
    (elements,) = compiled([step(MUL, [1, 2], 3)], [3]).forward[0]
    assert elements.kernel.bytes == kernels_of(OPERATIONS[MUL])[0].bytes


def test_products_part_what_is_before_from_what_is_after() -> None:
    """A product reads its operands from memory, so two kernels lie round it."""
    steps = [step(SILU, [1], 3), step(MM, [3, 2], 4), step(SILU, [4], 5)]
    assert named(compiled(steps, [5]).forward[0]) == ["silu", "mm", "silu"]


def test_what_nobody_needs_is_not_computed() -> None:
    """A product whose result is dropped is left out."""
    steps = [step(MM, [1, 2], 3), step(SILU, [1], 4)]
    region = compiled(steps, [4])
    assert named(region.forward[0]) == ["silu"]
    assert region.absent == {3}


def test_a_reduction_takes_in_what_it_reduces() -> None:
    """sum(silu(x)) is one kernel that reads x."""
    region = compiled([step(SILU, [1], 2), step(SUM, [2], 3)], [3])
    (launch,) = region.forward[0]
    assert launch.kernel.kind == "fused_reduction"
    assert launch.kernel.bytes == BYTES + 2 * SIZE


def test_softmax_is_one_kernel_with_what_follows() -> None:
    """Its statistics stay inside."""
    region = compiled([step(SOFTMAX, [1], 2), step(MUL, [2, 3], 4)], [4])
    (launch,) = region.forward[0]
    assert launch.kernel.bytes == 3 * BYTES


def test_rows_are_reduced_slowly_across_the_order_in_memory() -> None:
    """Alone an operation moves its bytes however an operand lies; under a softmax at least a second time those of it.

    Such rows are reduced in a loop, which reads what it reduces once for the statistics and once for the result.
    """
    along, across = (compiled([step(n, [1, 2], 3)], [3]) for n in (MUL, TURNED))
    assert moved(along.forward[0]) == moved(across.forward[0]) == 3 * BYTES
    both = [
        compiled([step(n, [1, 2], 3), step(SOFTMAX, [3], 4)], [4])
        for n in (MUL, TURNED)
    ]
    plain, turned = (region.forward[0] for region in both)
    assert len(plain) == len(turned) == 1
    assert moved(turned) >= moved(plain) + BYTES


def test_parts_of_a_joined_tensor_read_for_themselves() -> None:
    """Each part is computed under a mask: what both of them need is read twice."""
    steps = [step(SILU, [1], 2), step(MUL, [1, 3], 4), step(CAT, [2, 4], 5)]
    (launch,) = compiled(steps, [5]).forward[0]
    assert launch.kernel.bytes == (3 + 2) * BYTES


def test_kernels_side_by_side_are_joined_by_what_they_read() -> None:
    """Two results over the same elements of the same tensor are one kernel."""
    region = compiled([step(SILU, [1], 2), step(MUL, [1, 3], 4)], [2, 4])
    (launch,) = region.forward[0]
    assert launch.kernel.bytes == 4 * BYTES


def test_a_kernel_waits_for_no_reader_of_its_own() -> None:
    """What needs a product of a first result can not be computed with that result, though both read the same."""
    steps = [step(SILU, [1], 2), step(MM, [2, 2], 3), step(MUL, [3, 1], 4)]
    assert named(compiled(steps, [2, 4]).forward[0]) == ["silu", "mm", "mul"]


def test_views_are_free() -> None:
    """They launch nothing."""
    assert compiled([step(T, [1], 1)], [1]).forward == ((),)


def test_the_same_is_computed_once() -> None:
    """Three casts of one tensor, as autocast makes them, are one."""
    steps = [step(SILU, [1], n) for n in (2, 3, 4)]
    products = [step(MM, [n, 9], n + 10) for n in (2, 3, 4)]
    region = compiled([*steps, *products], [12, 13, 14])
    assert named(region.forward[0]) == ["silu", "mm", "mm", "mm"]
    assert region.absent == {3, 4}


def test_products_of_odd_sizes_are_padded() -> None:
    """Operands are copied to aligned rows: those that are computed anyway by what computes them."""
    (first, second, product) = compiled([step(ODD, [1, 2], 3)], [3]).forward[0]
    assert {first.name, second.name} == {"pad"}
    assert product.kernel.shape == (SIZE, SIZE, SIZE)
    assert product.kernel.layout == "nn"
    steps = [step(SILU, [1], 4), step(ODD, [4, 2], 3)]
    assert len(compiled(steps, [3]).forward[0]) == 3


BACKWARD = [step(MUL, [9, 4], 5), step(MUL, [5, 1], 6), step(MUL, [5, 3], 7)]


def test_backward_computes_again_what_is_cheap() -> None:
    """silu(a) is not kept for backward where a is: it is computed in backward's own kernel."""
    forward = [step(MM, [1, 2], 3), step(SILU, [3], 4), step(MM, [4, 2], 8)]
    region = compiled(forward, [8], BACKWARD, freed=[5])
    assert region.written(region.forward) >= {4}
    assert region.held == {1, 3}
    assert named(region.backward[0]) == ["mul"]
    assert moved(region.backward[0]) == (3 + 2) * BYTES


def test_a_sine_is_computed_wherever_it_is_read() -> None:
    """sin(x) that nobody keeps is evaluated by both of its readers; in each once, however often that reads it."""
    steps = [
        step(SIN, [1], 3),
        step(MUL, [3, 3], 4),
        step(MM, [4, 2], 5),
        step(MUL, [3, 5], 6),
    ]
    launches = compiled(steps, [6]).forward[0]
    layouts = [each.kernel.layout for each in launches if each.name != "mm"]
    assert layouts == ["sin", "sin"]


def test_halves_of_a_sine_are_computed_each() -> None:
    """A value that is read at two places is evaluated for each of them."""
    mul = Step(MUL, ((3, 0), (3, SIZE // 2)), ((4, 0),))
    (launch,) = compiled([step(SIN, [1], 3), mul], [4]).forward[0]
    assert launch.kernel.layout == "sin_sin"


def test_what_comes_of_one_small_tensor_is_computed_again() -> None:
    """Sine and cosine of the same angles are not kept for backward: the angles are, which take less than both."""
    forward = [
        step(MM, [1, 2], 3),
        step(COS, [3], 4),
        step(SIN, [3], 5),
        step(MM, [4, 6], 7),
        step(MM, [5, 7], 8),
    ]
    backward = [step(MUL, [9, 4], 10), step(MUL, [10, 5], 11)]
    region = compiled(forward, [8], backward)
    assert 3 in region.held
    assert not region.held & {4, 5}


def test_gradients_of_an_embedding_are_added_up_in_fp32() -> None:
    """Zeros of the table in fp32, the rows added to them, and a cast: three kernels by their bytes."""
    launches = compiled([step(EMBED, [1, 2], 3)], [3]).forward[0]
    table = 4 * SIZE * SIZE
    sizes = [each.kernel.bytes for each in launches]
    assert sizes == [4.0 * table, 10.0 * SIZE * SIZE, 6.0 * table]


def test_products_are_kept() -> None:
    """A product that backward reads is not computed twice."""
    forward = [step(MM, [1, 2], 4), step(MM, [4, 2], 8)]
    region = compiled(forward, [8], BACKWARD, freed=[5])
    assert 4 in region.held
    assert named(region.forward[0]) == ["mm", "mm"]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Step], list[int]]:
    """Some operations, each on what is there so far, and some of what they make."""
    there, steps = [1, 2, 3], []
    for number in range(10, 10 + draw(st.integers(1, 12))):
        operation = draw(st.sampled_from((SILU, MUL, MM, SOFTMAX)))
        count = len(OPERATIONS[operation].operands)
        reads = draw(st.lists(st.sampled_from(there), min_size=count, max_size=count))
        steps.append(step(operation, reads, number))
        there.append(number)
    made = [s.writes[0][0] for s in steps]
    return steps, draw(st.lists(st.sampled_from(made), min_size=1, unique=True))


@given(graphs())
def test_a_compiler_moves_no_more_and_loses_nothing(
    graph: tuple[list[Step], list[int]],
) -> None:
    """With all results needed: no more bytes than one by one, every operation somewhere, every result written."""
    steps, _ = graph
    region = compiled(steps, [s.writes[0][0] for s in steps])
    alone = [k for s in steps for k in kernels_of(OPERATIONS[s.operation])]
    assert moved(region.forward[0]) <= sum(k.bytes for k in alone) + 1
    products = sum(s.operation == MM for s in steps)
    assert named(region.forward[0]).count("mm") == products
    assert len(region.forward[0]) <= len(alone)
    assert region.absent == _repeated(steps)


def _repeated(steps: Sequence[Step]) -> set[int]:
    """Storages of what was computed before; products are computed again."""
    first: dict[object, int] = {}
    same: dict[int, int] = {}
    for each in steps:
        made = each.writes[0][0]
        reads = tuple(same.get(storage, storage) for storage, _ in each.reads)
        key = made if each.operation == MM else (each.operation, reads)
        same[made] = first.setdefault(key, made)
    return {made for made, original in same.items() if made != original}


@given(graphs())
def test_only_what_is_needed_is_in_memory(graph: tuple[list[Step], list[int]]) -> None:
    """Results are written; fewer results move no more bytes than more."""
    steps, results = graph
    few = compiled(steps, results)
    assert few.absent & set(results) <= _repeated(steps)
    made = [s.writes[0][0] for s in steps]
    assert moved(few.forward[0]) <= moved(compiled(steps, made).forward[0]) + 1


@given(graphs())
def test_numbers_of_storages_do_not_matter(graph: tuple[list[Step], list[int]]) -> None:
    """The same operations on other storages are the same kernels."""
    steps, results = graph
    other = [
        Step(
            s.operation,
            tuple((100 - a, o) for a, o in s.reads),
            tuple((100 - a, o) for a, o in s.writes),
        )
        for s in steps
    ]
    one = compiled(steps, results)
    two = compiled(other, [100 - r for r in results])
    assert one.forward == two.forward
    assert {100 - s for s in one.absent} == two.absent


# -- memory ------------------------------------------------------------------------------------


def in_memory(
    events: Sequence[tuple[str, int]], resized: Iterable[int] = ()
) -> list[set[int]]:
    """Which storages are there after each event, of a call that keeps 3 and hands out 8 and 7: those of BACKWARD."""
    forward = [step(MM, [1, 2], 3), step(SILU, [3], 4), step(MM, [4, 2], 8)]
    region = compiled(forward, [8], BACKWARD, freed=[5, 6])
    residence = Residence({1: region.call}, (1, 2), set(resized))
    there, seen, way = {1, 2}, list[set[int]](), False
    for kind, storage in events:
        if kind == "take" and residence.takes(storage, 1):
            there.add(storage)
        if kind == "free":
            there -= set(residence.gives_back(storage))
        if kind in ("forward", "backward"):
            way = kind == "backward"
            residence.begin(1, way)
            for issue in (region.backward if way else region.forward)[0]:
                over, fresh = residence.written(1, issue)
                there = there - set(over) | fresh.keys()
                there -= set(residence.dropped(1, issue))
        if kind == "end":
            there -= set(residence.end(1, way))
        seen.append(set(there))
    return seen


def test_storages_come_and_go() -> None:
    """Results are the program's, what is kept goes as backward has read it, and what is computed again is in between."""
    events = [("take", 4), ("free", 4), ("forward", 1), ("end", 1)]
    events += [("free", 8), ("take", 9), ("backward", 1), ("end", 1), ("free", 9)]
    *_, called, ended, freed, given, back, last, over = in_memory(events)
    assert called == ended == {1, 2, 3, 8}
    assert freed == {1, 2, 3}
    assert given == {1, 2, 3, 9}
    assert back == last == {1, 2, 7, 9}
    assert over == {1, 2, 7}


def test_storages_that_a_program_resizes_are_its_own() -> None:
    """FSDP takes gathered weights twice, for forward and for backward, whatever a region wants held."""
    events = [("take", 3), ("forward", 1), ("free", 3), ("take", 3), ("end", 1)]
    taken, _, freed, again, _ = in_memory([*events], resized=[3])
    assert 3 in taken & again
    assert 3 not in freed


# -- recordings --------------------------------------------------------------------------------


def operate(operation: int, reads: Iterable[int], write: int, backward: int) -> Event:
    values = {
        "stream": 0,
        "operation": operation,
        "backward": backward,
        "reads": [[s, 0] for s in reads],
        "writes": [[write, 0]],
    }
    return Event("operate_compiled", values, 7)


def begin(number: int, backward: int) -> Event:
    return Event("region", {"number": number, "backward": backward}, 3)


def end(number: int, results: Sequence[int] = ()) -> Event:
    return Event("region_end", {"number": number, "results": list(results)}, 0)


def test_memory_that_a_backward_pass_takes_is_there_before_it_is_given_back() -> None:
    """A part of a backward pass is recorded to begin after its first operation has taken memory."""
    take = Event("allocate", {"storage": 4, "bytes": 8, "stream": 0}, 0)
    give = Event("free", {"storage": 4}, 0)
    events = [
        *(begin(1, 1), operate(SILU, [2], 3, 1), end(1), HOOK, take),
        *(begin(1, 1), operate(SILU, [3], 4, 1), give, end(1)),
    ]
    kinds = [event.kind for event in arrange(events).events]
    assert kinds.index("allocate") < kinds.index("free") < kinds.index("record")


HOOK = Event("record", {"stream": 0, "event": 1}, 0)


def test_a_backward_pass_is_one_piece() -> None:
    """Hooks of weights, which a compiled backward hands out together, come after it."""
    events = [
        *(begin(1, 0), operate(SILU, [1], 2, 0), end(1, [2])),
        *(begin(1, 1), operate(SILU, [2], 3, 1), end(1)),
        HOOK,
        *(begin(1, 1), operate(SILU, [3], 4, 1), end(1)),
    ]
    arranged = arrange(events)
    kinds = [event.kind for event in arranged.events]
    assert kinds == ["region", "piece", "region_end"] * 2 + ["record"]
    assert [len(piece) for piece in arranged.regions[1].backward] == [2]


def test_what_interrupts_a_call_stays_where_it_is() -> None:
    """An event between two operations of a call parts them."""
    events = [
        *(begin(1, 0), operate(SILU, [1], 2, 0), HOOK, operate(SILU, [2], 3, 0)),
        end(1, [3]),
    ]
    kinds = [event.kind for event in arrange(events).events]
    assert kinds == ["region", "piece", "record", "piece", "region_end"]


def test_python_inside_a_compiled_call_does_not_run() -> None:
    """Calls of functions before it count, those inside do not."""
    events = [begin(1, 0), operate(SILU, [1], 2, 0), end(1, [2])]
    assert sum(event.calls for event in arrange(events).events) == 3


def _table(compiled_: bool) -> dict[str, Any]:
    tensor = {"dtype": "bf16", "shape": [SIZE, SIZE]}
    operations = [
        ["aten.silu.default", [tensor], {}, [tensor]],
        ["aten.mul.Tensor", [tensor, tensor], {}, [tensor]],
    ]
    kind = "operate_compiled" if compiled_ else "operate"
    one = [[[1, 0]], [[3, 0]]] if compiled_ else []
    two = [[[3, 0], [2, 0]], [[4, 0]]] if compiled_ else []
    events: list[list[Any]] = [[kind, 0, 0, 0, *one, 0], [kind, 0, 1, 0, *two, 0]]
    if compiled_:
        events = [["region", 1, 0, 0], *events, ["region_end", 1, [4], 0]]
    return {
        "format": recording.FORMAT,
        "version": recording.VERSION,
        "world": 1,
        "operations": operations,
        "ranks": [
            {"rank": 0, "represents": [0], "events": events * 400, "alive": {"1": 8}}
        ],
        "groups": {},
        "parameters": 1,
        "step": 3,
        "gpu": "h200",
        "assumed": {},
        "compiled": ["f"],
        "command": ["t.py"],
        "versions": {"torch": "2.13.0"},
    }


def test_a_recorded_call_is_predicted(tmp_path: Path) -> None:
    """A recording with regions runs like any other, with one kernel for each call."""
    path = tmp_path / "compiled.capture"
    recording.write(path, _table(True))

    predicted = predict(load_scenario(path, ["cluster.name=h200-host-4"]))
    assert predicted.step_time > 0
