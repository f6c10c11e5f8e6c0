"""What a published row leaves out and can be known all the same: from its source's text, its model's name, arithmetic.

Whatever is taken to be so is said; where there is more than one way to complete a row it is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lab.formats.published_columns import count, number, whole
from lab.formats.published_families import family_of, shape_of
from lab.formats.published_setups import Setup
from prestep.sim.errors import InputError

Cells = dict[str, str]
AXES = ("tp", "pp", "cp", "dp")
HEAD = 128  # width of a head where nobody says how many there are
VOCAB = 51200  # GPT-2's, padded: where neither the row, nor its source, nor its family says one


def complete(row: Mapping[str, str], setup: Setup) -> tuple[Cells, list[str]]:
    """The row with the cells that can be filled, and what was assumed to fill them ("heads 96 assumed").

    Raises
    ------
    InputError
        For a cell that is no number.
    """
    cells = dict(row)
    notes: list[str] = []
    for fill in (
        _of_source,
        _of_hosts,
        _of_shape,
        _of_parameters,
        _of_heads,
        _of_layout,
        _of_batch,
    ):
        for name, value, word in list(fill(cells, setup)):
            cells[name] = str(value)
            notes.append(f"{name} {value} {word}")
    return cells, notes


def _empty(cells: Mapping[str, str], name: str) -> bool:
    return not (cells.get(name) or "").strip()


Filled = Iterator[tuple[str, Any, str]]


def _of_source(cells: Cells, setup: Setup) -> Filled:
    """What the source says in words, or its code has."""
    for name, value in (setup.columns or {}).items():
        if _empty(cells, name):
            yield name, value, "from the source's text"


def _of_hosts(cells: Cells, setup: Setup) -> Filled:
    """GPUs: the layout's product, or hosts times what the hardware's name or the setup says a host has."""
    if setup.by_layout and _product(cells, *AXES) != count(cells, "gpus", 0):
        yield (
            "gpus",
            _product(cells, *AXES),
            "from the layout, which the number printed contradicts",
        )
        return
    if not _empty(cells, "gpus"):
        return
    if not any(_empty(cells, name) for name in ("tp", "pp", "dp")):
        yield "gpus", _product(cells, *AXES), "from the layout"
    elif match := re.match(r"\s*(\d+)\s*x\s", cells.get("hardware", ""), re.IGNORECASE):
        yield (
            "gpus",
            int(match[1]) * count(cells, "nodes", 1),
            "from the hardware's name",
        )
    elif not _empty(cells, "nodes") and setup.per_host:
        yield (
            "gpus",
            count(cells, "nodes", 1) * setup.per_host,
            f"with {setup.per_host} a host assumed",
        )


def _of_shape(cells: Cells, setup: Setup) -> Filled:
    """The dimensions of a model that is known by its name, if the row's own do not contradict.

    The vocabulary only of rows without any: others train a known shape on a vocabulary of their own.
    """
    shape = shape_of(cells.get("model", ""))
    if not _empty(cells, "layers"):
        shape.pop("vocab", None)
    given = {name: value for name, value in shape.items() if not _empty(cells, name)}
    if any(whole(cells, name, 0) != value for name, value in given.items()):
        return
    for name, value in shape.items():
        if _empty(cells, name):
            yield name, value, "from the model's name"


def _of_parameters(cells: Cells, setup: Setup) -> Filled:
    """Layers: as many as make the parameters that are printed, in whole stages."""
    if (
        not _empty(cells, "layers")
        or _empty(cells, "hidden")
        or _empty(cells, "params")
    ):
        return
    try:
        parameters, (family, _) = number(cells["params"]), family_of(cells)
    except (ValueError, InputError):
        return
    if family.get("experts"):
        return
    hidden = count(cells, "hidden", 1)
    ffn, vocab = (
        whole(cells, "ffn", 4 * hidden),
        whole(cells, "vocab", 0) or _vocab(setup, family),
    )
    layer = 4 * hidden**2 + (3 if family.get("gated", True) else 2) * hidden * ffn
    stages = count(cells, "pp", 1) * count(cells, "vpp", 1)
    layers = max(1, round((parameters - vocab * hidden) / layer / stages)) * stages
    yield "layers", layers, "from the parameters, assumed"


def _vocab(setup: Setup, family: Mapping[str, Any]) -> int:
    of_source = (setup.sections or {}).get("model", {}).get("vocab")
    return int(of_source or family.get("vocab", VOCAB))


def _of_heads(cells: Cells, setup: Setup) -> Filled:
    """Heads nearest to 128 wide, of those that divide the width and are divided by the tensor-parallel ranks."""
    if not _empty(cells, "heads") or _empty(cells, "hidden"):
        return
    hidden, tp = count(cells, "hidden", 1), count(cells, "tp", 1)
    fits = [
        n for n in range(tp, hidden + 1, tp) if hidden % n == 0 and hidden // n % 2 == 0
    ]
    if fits:
        yield "heads", min(fits, key=lambda n: abs(hidden / n - HEAD)), "assumed"


def _of_layout(cells: Cells, setup: Setup) -> Filled:
    """One missing axis by division. Where only the product of two is known: tensor parallelism as far as the host goes,
    the rest pipeline stages (Narayanan et al. 2021, takeaway 1). One GPU has one rank of everything."""
    if _empty(cells, "gpus"):
        return
    gpus = count(cells, "gpus", 1)
    missing = [name for name in AXES[:2] if _empty(cells, name)]
    if gpus == 1:
        yield from ((name, 1, "on one GPU") for name in missing)
        return
    if not missing or _empty(cells, "dp") or gpus % (rest := _product(cells, *AXES)):
        return
    ways, word = gpus // rest, "from the GPUs and the other axes"
    if missing == ["tp", "pp"]:
        word = (
            "assumed: tensor parallelism within a host, the rest stages"
            if ways > 1
            else word
        )
        tp = max(
            n
            for n in range(1, min(ways, setup.per_host or 8) + 1)
            if ways % n == 0 and _splits(cells, n)
        )
        yield "tp", tp, word
        yield "pp", ways // tp, word
    else:
        yield missing[0], ways, word


def _splits(cells: Cells, tp: int) -> bool:
    return whole(cells, "heads", tp) % tp == 0


def _of_batch(cells: Cells, setup: Setup) -> Filled:
    """A batch that nobody prints: one microbatch on every replica for each stage."""
    needed = ("gpus", "tp", "pp", "micro_batch")
    if _empty(cells, "global_batch") and not any(
        _empty(cells, name) for name in needed
    ):
        replicas = max(1, count(cells, "gpus", 1) // _product(cells, "tp", "pp", "cp"))
        batch = replicas * count(cells, "micro_batch", 1) * count(cells, "pp", 1)
        yield "global_batch", batch, "assumed: one microbatch for each stage"


def _product(cells: Mapping[str, str], *names: str) -> int:
    product = 1
    for name in names:
        product *= count(cells, name, 1)
    return product
