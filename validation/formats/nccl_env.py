"""NCCL's environment variables as a scenario's [nccl] settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prestep.sim import files
from prestep.sim.collectives.plan import nccl_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.units import parse_nccl_size

_WORDS = files.beside(__file__)
FUNCTIONS: dict[str, str] = _WORDS["functions"]
ALGOS: dict[str, str] = _WORDS["algorithms"]
PROTOS: dict[str, str] = _WORDS["protocols"]
_NUMBERS: dict[str, str] = _WORDS["numbers"]
_SWITCHES: dict[str, str] = _WORDS["switches"]
P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
GDR_LEVELS = ("LOC", "PIX", "PXB", "P2C", "PHB", "SYS")
OLD_LEVELS = dict(
    zip("012345", ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS"), strict=True)
)
# They choose no algorithm and cost no time, or say what the cluster file says (which network).
_SILENT = re.compile(
    r"NCCL_(VERSION|DEBUG\w*|SOCKET_IFNAME|IB_\w+|NET|NET_PLUGIN|MNNVL_ENABLE|LAUNCH_MODE|\w*_DUMP_FILE|TESTS_\w+|HOME"
    r"|TUNER_PLUGIN|IGNORE_CPU_AFFINITY|SET_THREAD_NAME|BLOCKING_WAIT|ASYNC_ERROR_HANDLING|SOCKET_FAMILY|NVLS_ENABLE|HOSTID)"
)


class Unpredictable(Exception):
    """The settings say something that [nccl] cannot."""


def settings_of(
    env: Mapping[str, str],
    op: str,
    version: str | None,
    where: str,
) -> tuple[Nccl, tuple[str, ...]]:
    """Nccl, and the variables that were not taken over.

    Parameters
    ----------
    env
        Variables by name.
    op
        Collective to which the settings are applied: NCCL_ALGO may name one.
    version
        Of NCCL, or None.
    where
        Place for errors.

    Raises
    ------
    InputError
        For a value that NCCL does not have.
    Unpredictable
        For a list of algorithms, or host ids: they do not say how many ranks share a host.
    """
    if "NCCL_HOSTID" in env:
        raise Unpredictable("NCCL_HOSTID is set: not known how many ranks share a host")
    settings: dict[str, Any] = {}
    ignored = []
    for name, value in env.items():
        setting = _setting(name, value, op, where)
        if setting is not None:
            settings[setting[0]] = setting[1]
        elif name.startswith("NCCL_") and not _SILENT.fullmatch(name):
            ignored.append(f"{name}={value}")
    # NCCL_NVLS_ENABLE=2, the default, means "if there is any": that is for the cluster file to say.
    if env.get("NCCL_NVLS_ENABLE") == "2":
        settings.pop("nvls")
    if version:
        settings["version"] = version
    return nccl_of(settings, where), tuple(ignored)


def _setting(name: str, value: str, op: str, where: str) -> tuple[str, Any] | None:
    """Key and value of [nccl] that a variable stands for; None if it stands for none."""
    if name == "NCCL_ALGO":
        return "algo", _choice(name, value, op, ALGOS, where)
    if name == "NCCL_PROTO":
        return "proto", _choice(name, value, op, PROTOS, where)
    if name in _NUMBERS:
        return _NUMBERS[name], _number(name, value, where)
    if name in _SWITCHES:
        return _SWITCHES[name], _number(name, value, where) != 0
    if name == "NCCL_BUFFSIZE":
        return "buffer_size", parse_nccl_size(value, f"{where}: {name}")
    if name == "NCCL_NET" and value.lower() == "socket":
        return "net", "socket"
    if name == "NCCL_P2P_LEVEL":
        return "p2p_level", _level(name, value, P2P_LEVELS, where)
    if name == "NCCL_NET_GDR_LEVEL":
        return "net_gdr_level", _level(name, value, GDR_LEVELS, where)
    return None


def plain(name: str) -> str:
    """The name of an algorithm or a protocol as `ALGOS` and `PROTOS` have it: `NVLS_TREE` as `nvlstree`."""
    return re.sub(r"[ _-]", "", name).lower()


def _level(name: str, value: str, known: tuple[str, ...], where: str) -> str:
    """A type of way; digits are those of NCCL before it knew names (src/graph/paths.cc)."""
    level = OLD_LEVELS.get(value.strip(), value.strip().upper())
    if level not in known:
        expected = f"one of {', '.join(known)}"
        raise InputError.of(where, name, repr(value), expected)
    return level


def _number(name: str, value: str, where: str) -> int:
    if not re.fullmatch(r"\d+", str(value).strip()):
        raise InputError.of(where, name, repr(value), "a whole number")
    return int(value)


def _choice(
    name: str, value: str, op: str, known: Mapping[str, str], where: str
) -> str | None:
    """The one algorithm or protocol that a variable leaves to an operation; None: all of them."""
    chosen = None
    for part in filter(None, str(value).split(";")):
        function, _, listed = part.rpartition(":")
        if function and FUNCTIONS.get(function.strip().lower()) != op:
            continue
        words = [word for word in listed.split(",") if word.strip()]
        if listed.startswith("^") or len(words) != 1:
            raise Unpredictable(
                f"{name}={value} leaves a choice that [nccl] cannot say"
            )
        word = plain(words[0])
        if word not in known:
            raise InputError.of(where, name, repr(value), f"one of {', '.join(known)}")
        chosen = known[word]
    return chosen
