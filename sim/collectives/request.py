"""What `prestep collective` was asked for: settings of [nccl] and changed links from --set, GPUs by name or number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sim import strict
from sim.errors import InputError, Mistake, unknown
from sim.spec.sections import Nccl

WHERE = "command line"


def split(overrides: Sequence[str]) -> tuple[Nccl, dict[str, str]]:
    """Settings from items such as "nccl.p2p_disable=true"; the other items change links of the cluster.

    Raises
    ------
    InputError
        With every item that is none, and every setting that NCCL does not have or that has another type.
    """
    said: dict[str, object] = {}
    links: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for item in overrides:
        try:
            name, value = strict.split_override(item)
            section, _, key = name.partition(".")
            if section == "nccl":
                said[key] = strict.read_override(Nccl, key, value)
            else:
                links[strict.link_key(name, ("nccl", "cluster"))] = value
        except InputError as error:
            mistakes.extend(error.mistakes)
    made, wrong = strict.build(Nccl, said, "--set", "nccl", {})
    if mistakes + wrong:
        raise InputError(mistakes + wrong)
    return made, links


def gpus(text: str, fabric: Any) -> tuple[str, ...]:
    """GPUs of a list such as "0,2,4-7" or "gpu0,gpu3"; the first is the root.

    Raises
    ------
    InputError
        With every entry that is no GPU of the cluster, and for fewer than two.
    """
    names = fabric.gpus
    found: list[str] = []
    mistakes: list[Mistake] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        first, last = _range(entry)
        if entry in names:
            found.append(entry)
        elif first is None:
            mistakes.append(unknown(WHERE, "--gpus", entry, names))
        elif not first <= last < len(names):
            mistakes.append(
                Mistake(
                    WHERE, "--gpus", f'"{entry}"', f"numbers from 0 to {len(names) - 1}"
                )
            )
        else:
            found += names[first : last + 1]
    mistakes += [
        Mistake(WHERE, "--gpus", f"{name} twice", "every GPU once")
        for name in sorted(_twice(found))
    ]
    if len(found) < 2 and not mistakes:
        mistakes.append(
            Mistake(
                WHERE, "--gpus", f'"{text}"', "at least two GPUs, such as 0,1 or 0-3"
            )
        )
    if mistakes:
        raise InputError(mistakes)
    return tuple(found)


def _range(entry: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", entry)
    return (None, 0) if match is None else (int(match[1]), int(match[2] or match[1]))


def _twice(found: Sequence[str]) -> set[str]:
    return {name for name in found if found.count(name) > 1}
