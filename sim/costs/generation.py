"""A generation of GPUs, as NCCL and cuBLAS treat it: one file each in `generations`, read when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.schema import Items, Number, Switch, Table, Text

FOLDER = Path(__file__).with_name("generations")

Row = tuple[float, float, float]
_COUNT, _FACTOR = Number(1, whole=True), Number(above=True)
_ROW, _SPEEDS = Items(Number(), 3), Items(Number(above=True))
#: What a file may say of a generation, and of the releases of NCCL that counted otherwise.
_KEYS: dict[str, schema.Schema] = {
    "amd": Switch(),
    "capability": _COUNT,
    "constants": Text(),
    "workspace": _COUNT,
    "counters": Switch(),
    "multicast": Switch(),
    "multicast_ctas": Items(_COUNT, 2),
    "multicast_share": Number(high=1),
    "multicast_tree": _ROW,
    "nvlink": Items(_FACTOR, 2),
    "socket": _COUNT,
    "host_speeds": _SPEEDS,
    "net_speeds": _SPEEDS,
    "ll": _ROW,
    "tree": _ROW,
    "tree_reached": _ROW,
    "tree_ll128": _ROW,
    "ring_ll128": _ROW,
    "ring_stall": _FACTOR,
    "collnet": _FACTOR,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Generation:
    """How NCCL counts a generation of GPUs (src/graph), in GB/s; rows are for one, two and more hosts.

    Attributes
    ----------
    name : str
        Of its file.
    amd : bool
        Whether RCCL runs it, which was made from NCCL.
    capability : int
        Compute capability, as NCCL compares it: 90 is Hopper's.
    constants : str
        The measured GPU whose fitted constants others of the generation borrow as a guess.
    workspace : int
        Bytes of cuBLAS for each handle and stream.
    counters : bool
        Whether larger products and attention draw their tiles from a counter, which is reset before them.
    multicast : bool
        Whether NVSwitches add and copy for it (NVLink SHARP), with `multicast_ctas` CTAs on one and on several hosts,
        at `multicast_share` of the switches' rate, and as trees between hosts at `multicast_tree` a channel.
    nvlink : tuple
        What NCCL counts on of an NVLink, and what its wire does.
    socket : int
        MB/s between sockets where the cluster does not say it.
    host_speeds, net_speeds : tuple
        Per channel, as the search tries them inside a host and between hosts.
    ll : tuple
        Most that LL is believed to reach.
    tree, tree_ll128, ring_ll128 : tuple
        Most of a channel: of a tree under LL and Simple, of a tree and of a ring under LL128.
    tree_reached : tuple
        What a tree was measured to reach where that is more than NCCL counts on; 0 elsewhere.
    ring_stall : float
        Factor on the latency of an all-reduce by a ring under Simple between hosts.
    collnet : float
        Factor on the bus bandwidth of CollNet direct.
    before : mapping
        Keys that older releases of NCCL counted otherwise: "2.21": those before 2.21.
    """

    name: str
    amd: bool = False
    capability: int
    constants: str
    workspace: int
    counters: bool = False
    multicast: bool
    multicast_ctas: tuple[int, int] = (0, 0)
    multicast_share: float = 0.0
    multicast_tree: Row = (0.0, 0.0, 0.0)
    nvlink: tuple[float, float]
    socket: int
    host_speeds: tuple[float, ...]
    net_speeds: tuple[float, ...]
    ll: Row
    tree: Row
    tree_reached: Row = (0.0, 0.0, 0.0)
    tree_ll128: Row
    ring_ll128: Row
    ring_stall: float
    collnet: float
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def nvlink5(self) -> bool:
        """Whether it is NVIDIA's, with NVLink 5: Blackwell and later."""
        return self.capability >= 100 and not self.amd

    @property
    def nvlink_share(self) -> float:
        """Share of an NVLink's wire that NCCL counts on."""
        counted, wire = self.nvlink
        return counted / wire

    def at(self, release: tuple[int, ...]) -> Generation:
        """Returns the generation as a release of NCCL counts it.

        Examples
        --------
        >>> load("hopper").at((2, 20)).nvlink_share
        0.8
        """
        return _at(self, release)


# The same value for the same release, so that what is remembered of it is found again.
@lru_cache(maxsize=256)
def _at(generation: Generation, release: tuple[int, ...]) -> Generation:
    bounds = sorted(
        ((*map(int, bound.split(".")),), bound) for bound in generation.before
    )
    changed: dict[str, Any] = {}
    for bound, text in reversed(bounds):
        if release < bound:
            changed |= generation.before[text]
    return replace(generation, **changed) if changed else generation


def names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Returns the generations that have a file, NVIDIA's and AMD's, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


@lru_cache(maxsize=64)
def load(name: str, folder: Path = FOLDER) -> Generation:
    """Returns a generation by its name; what its file does not say is that of the one it is `like`.

    Raises
    ------
    InputError
        If it has no file, or with every mistake in it.

    Examples
    --------
    >>> load("cdna3").amd, load("cdna3").capability
    (True, 90)
    """
    table = _table(name, folder)
    needed = [one.name for one in fields(Generation)[1:] if one.default is MISSING]
    lacking = [key for key in needed if key not in table and key != "before"]
    if lacking:
        path, expected = str(folder / f"{name}.toml"), "a value, or `like`"
        raise InputError(Mistake(path, key, "nothing", expected) for key in lacking)
    return Generation(name=name, **table)


def _table(name: str, folder: Path) -> dict[str, Any]:
    """What the file of a generation says, over what it is like."""
    if name not in names(folder):
        raise InputError(unknown(str(folder), "generation", name, names(folder)))
    form = Table({**_KEYS, "like": Text(), "before": _Releases(Table(_KEYS))})
    table = schema.read(folder / f"{name}.toml", form)
    like = table.pop("like", "")
    own = {key: _frozen(value) for key, value in table.items()}
    return {**_table(like, folder), **own} if like else own


def _frozen(value: Any) -> Any:
    """A value whose lists, those of tables below it too, are tuples."""
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class _Releases:
    """Tables of keys by the release of NCCL before which they count, "2.21"."""

    table: Table

    def mistakes(self, where: str, key: str, value: object) -> Any:
        if not isinstance(value, Mapping):
            yield Mistake(where, key, repr(value)[:60], "tables by release")
            return
        for bound, table in value.items():
            if not all(part.isdigit() for part in bound.split(".")):
                yield Mistake(where, f"{key}.{bound}", bound, "a release, as 2.21")
            yield from self.table.mistakes(where, f"{key}.{bound}", table)
