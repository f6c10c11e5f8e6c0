"""Types and ranges of all values in a recording's file, which msgspec checks, and what refers to other parts of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta, Struct

from prestep.workloads.operation import ELEMENT_BYTES, words

#: Key, what was found, what was expected.
Wrong = tuple[str, str, str]
MOST_RANKS = 2**20
MOST_ELEMENTS = 2**60  # of a tensor; numbers beyond do not fit its address
MOST = 2**62  # of whole numbers: a machine's integers hold them
#: PyTorch has more dtypes than kernels have rules for; operations that only look at such a tensor launch nothing.
OTHERS = (
    *("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"),
    *("quint8", "qint8", "qint32", "quint4x2", "quint2x4"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
)
SHOWN = 60  # letters of a wrong value that a mistake repeats
NESTED = 16  # lists in lists of an operation's arguments

Whole = Annotated[int, Meta(gt=-MOST, lt=MOST)]
Natural = Annotated[int, Meta(ge=0, lt=MOST)]
Bytes = Annotated[float, Meta(ge=0, lt=MOST)]
#: A storage, and where in it a tensor begins.
Places = list[tuple[Whole, Whole]]
Storages = dict[str, list[Whole]]

#: By the names that values of events have: what they are. "backward" is 0: forward, 1: backward, 2: forward again
#: within backward.
VALUES: dict[str, Any] = {
    **dict.fromkeys(("stream", "number", "peer", "tag", "event", "storage"), Whole),
    **dict.fromkeys(("kind", "group", "dtype", "operation"), str),
    **dict.fromkeys(("reads", "writes"), Places),
    "results": list[Whole],
    "bytes": Bytes,
    "backward": Literal[0, 1, 2],
}

#: Kinds of events and their values; each ends with the number of Python calls since the event before.
EVENTS = {
    "operate": ("stream", "operation", "backward"),
    "operate_compiled": ("stream", "operation", "backward", "reads", "writes"),
    "region": ("number", "backward"),
    "region_end": ("number", "results"),
    "in_place": ("number",),  # of the communication that follows: inputs lie in outputs
    "communicate": words("stream number kind group bytes dtype peer tag"),
    "wait_collective": ("stream", "number"),
    "record": ("stream", "event"),
    "wait": ("stream", "event"),
    "host_waits_event": ("event",),
    "host_waits_stream": ("stream",),
    "host_waits_all": (),
    "read": ("stream", "operation"),
    "waits_for_copy": ("stream", "operation"),
    "host_computes": ("operation", "bytes"),
    "checkpoint": ("number", "backward"),
    "saved": ("number", "backward"),
    "ddp": ("number", "backward"),
    "dtensor": ("number", "backward"),
    "barrier": (),
    "replay": (),
    "replay_end": (),
    "batch": (),
    "batch_end": (),
    "allocate": ("storage", "bytes", "stream"),
    "free": ("storage",),
}


def _row(kind: str, names: Sequence[str]) -> type[Struct]:
    """A row of events: a list that begins with the kind."""
    # What runs on the GPU names its operation by number.
    types = VALUES | ({"operation": Natural} if kind.startswith("operate") else {})
    fields = [*((name, types[name]) for name in names), ("calls", Natural)]
    return msgspec.defstruct(
        kind, fields, tag=kind, array_like=True, forbid_unknown_fields=True
    )


ROWS = tuple(_row(kind, names) for kind, names in EVENTS.items())


class Tensor(Struct):
    """A tensor among the arguments and results of an operation (`prestep.workloads.operation.Operand`)."""

    dtype: Literal[(*ELEMENT_BYTES, *OTHERS)]  # type: ignore[valid-type]
    shape: list[Natural]
    strides: list[Whole] = []
    device: str = "cuda"

    def __post_init__(self) -> None:
        elements = 1
        for size in self.shape:
            elements *= size
        if elements >= MOST_ELEMENTS or len(self.strides) not in (0, len(self.shape)):
            raise ValueError("Expected a shape that fits an address, and its strides")


Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: Tensors, numbers (-inf is the mask of an attention), texts, and lists of them, so many deep.
PLAIN: Any = Tensor | Number | float | bool | str | None
Argument = PLAIN
for _ in range(NESTED - 1):
    Argument = PLAIN | list[Argument]  # type: ignore[valid-type]
Name = Annotated[str, Meta(pattern=r"\.")]  # aten.mm.default
Call: Any = tuple[Name, list[Argument], dict[str, Argument], list[Tensor]]  # type: ignore[valid-type]


class Rank(Struct):
    """What a recorded rank did; segments of the allocator have a stream, whether blocks are small, and blocks."""

    rank: Natural
    represents: list[Natural]
    events: list[Union[ROWS]]  # type: ignore[valid-type]  # noqa: UP007
    alive: dict[Annotated[str, Meta(pattern=r"^[0-9]+$")], Natural]
    segments: list[tuple[Whole, bool | int, list[tuple[Natural, Whole | None]]]] = []
    owners: Storages = {}
    modules: Storages = {}


class File(Struct):
    """The whole file."""

    world: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    operations: list[Call]
    ranks: Annotated[
        list[Any], Meta(min_length=1)
    ]  # each a `Rank`, one after the other
    groups: dict[str, Annotated[list[Natural], Meta(min_length=1)]]
    parameters: Natural
    step: Natural
    gpu: str
    assumed: dict[str, Natural]
    compiled: list[str]
    command: list[str]
    versions: dict[str, str]
    described: dict[str, str] = {}
    threads: Natural = 0
    recomputation: bool = False
    attention_said: bool = False


def wrong_in(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Every value of a recording's tables that cannot be one.

    Of values of a wrong type or size the first is named; what refers to other parts is looked at where all are right.
    """
    places: list[tuple[str, Any, Any]] = [("", table, File)]
    ranks = table.get("ranks")
    if isinstance(ranks, list):
        places += [(f"ranks[{at}]", rank, Rank) for at, rank in enumerate(ranks)]
    for place, value, expected in places:
        try:
            msgspec.convert(value, expected)
        except msgspec.ValidationError as error:
            yield _located(place, value, str(error))
            return
    yield from _references(table)


def _located(place: str, value: Any, error: str) -> Wrong:
    """Where a value is that msgspec refuses, what it is, and what it should be."""
    text, _, path = error.partition(" - at `$")
    for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", path.partition("[...]")[0]):
        value = value[int(number) if number else name]
    key = (place + path.rstrip("`")).removeprefix(".")
    if text.startswith("Expected "):
        return key, _shown(value), text.removeprefix("Expected ")
    return key, text, "what `prestep capture` writes there"


def _references(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Groups of ranks that there are, ranks recorded once, events with operations and groups of the file."""
    world, represented = table["world"], list[int]()
    for name, ranks in table["groups"].items():
        if not _are_ranks(ranks, world):
            yield f"groups.{name}", _shown(ranks), f"ranks below {world}, each once"
    for at, rank in enumerate(table["ranks"]):
        represents = rank["represents"]
        represented += represents
        if rank["rank"] not in represents or not _are_ranks(represents, world):
            expected = f"ranks below {world}, {rank['rank']} among them"
            yield f"ranks[{at}].represents", _shown(represents), expected
    if not _are_ranks(represented, world):
        yield "ranks", _shown(represented), "each rank once in represents"
    for at, rank in enumerate(table["ranks"]):
        for number, row in enumerate(rank["events"]):
            if text := _event_wrong(row, table, set(represented)):
                yield f"ranks[{at}].events[{number}]", _shown(row), text


def _event_wrong(row: Sequence[Any], table: Mapping[str, Any], known: set[int]) -> str:
    """What an event was expected to refer to; empty where there is such a thing."""
    kind, *listed = row
    values = dict(zip(EVENTS[kind], listed, strict=False))
    operations = len(table["operations"])
    if kind.startswith("operate") and values["operation"] >= operations:
        return "operation: number of one of the operations"
    if "group" not in values:
        return ""
    members = table["groups"].get(values["group"])
    if members is None:
        return f"group: one of {', '.join(table['groups'])}"
    if len(members) > 1 and not known.issuperset(members):
        return f"group: one of the ranks {sorted(known)}"
    if values["kind"] in ("send", "recv") and not 0 <= values["peer"] < len(members):
        return f"peer: a number below {len(members)}, the ranks of its group"
    return ""


def _are_ranks(ranks: Sequence[int], world: int) -> bool:
    """Whether all are below the number of ranks, each named once."""
    return len(set(ranks)) == len(ranks) and all(rank < world for rank in ranks)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
