"""What-ifs on a cluster: `selector.attribute = value or factor`, or `selector = off`.

Selectors are those of `topologies.edit.selectors`. Attributes of links are `bandwidth` (payload, per direction) and
`latency`; of GPUs `flops`, `hbm_bandwidth` and `clock`. A value is a factor ("2x", "0.5x", "80 %") or a quantity with
a unit ("100 GB/s", "1 us", "900 TFLOP/s"). A bandwidth is that of ONE physical link: "nvlink.bandwidth" = "25 GB/s"
gives a row of five links 125 GB/s. Overrides apply in the order given.

What is `off` is gone with its cables, in both directions; a switch or NIC that leads nowhere then is gone too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sim.errors import InputError, Mistake, did_you_mean
from sim.units import parse_bandwidth, parse_duration, parse_rate
from topologies.core.links import Floats, Ints, Links
from topologies.edit import switched
from topologies.edit.selectors import Selection, missing, resolve
from topologies.fabric import Fabric, GpuChange

LINK_ATTRIBUTES = ("bandwidth", "latency")
GPU_ATTRIBUTES = ("flops", "hbm_bandwidth", "clock")
ATTRIBUTES = (*LINK_ATTRIBUTES, *GPU_ATTRIBUTES)
OFF = "off"
LARGEST = 1e12  # factor: enough for "as if it were free"
_FACTOR = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*(x|%)\s*")


def with_overrides(
    fabric: Fabric, overrides: Mapping[str, str], where: str = "cluster.set"
) -> Fabric:
    """The fabric with its links and GPUs changed; what was changed is graded "guess", since nobody measured it.

    Raises
    ------
    InputError
        With every override that is malformed or matches nothing, and what cuts ranks off from the others.
    """
    mistakes: list[Mistake] = []
    for key, text in overrides.items():
        try:
            fabric = _changed(fabric, key, str(text).strip(), where)
        except InputError as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise InputError(mistakes)
    return fabric


def select(fabric: Fabric, selector: str) -> Ints:
    """Rows of `fabric.links` a selector means, in order; empty when it matches none."""
    return resolve(fabric, selector).rows


def is_off(text: str) -> bool:
    """Whether a value switches something off."""
    return text.strip().lower() == OFF


def _changed(fabric: Fabric, key: str, text: str, where: str) -> Fabric:
    """One override; a wrong selector and a wrong value are both reported."""
    if is_off(text):
        found = _found(fabric, key, key, where)
        return switched.off(fabric, found.cables(fabric), found.nodes, key, where)
    selector, attribute = _split(fabric, key, where)
    mistakes: list[Mistake] = []
    found = resolve(fabric, selector)
    if not found:
        mistakes.append(missing(fabric, selector, key, where))
    if attribute not in ATTRIBUTES:
        hint = did_you_mean(attribute, ATTRIBUTES)
        mistakes.append(
            Mistake(
                where,
                key,
                f'the attribute "{attribute}"',
                f"one of {', '.join(ATTRIBUTES)}",
                hint,
            )
        )
        raise InputError(mistakes)
    try:
        factor, value = _value(attribute, text, where, key)
    except InputError as error:
        raise InputError([*mistakes, *error.mistakes]) from None
    mistakes += _unfit(fabric, selector, found, attribute, key, where) if found else []
    if mistakes:
        raise InputError(mistakes)
    if attribute in GPU_ATTRIBUTES:
        change = GpuChange(_gpus(fabric, found), attribute, factor, value)
        return fabric.with_columns(
            gpu_changes=(*fabric.gpu_changes, change)
        ).with_routes_of(fabric)
    source = f"{where}: {key} = {text}"
    changed = fabric.with_columns(
        links=_replaced(fabric.links, found.rows, attribute, factor, value, source)
    )
    return changed.with_routes_of(fabric) if attribute == "bandwidth" else changed


def _split(fabric: Fabric, key: str, where: str) -> tuple[str, str]:
    """Selector and attribute; dots inside brackets belong to the selector."""
    selector, dot, attribute = key.rpartition(".")
    if dot and "]" not in attribute:
        return selector.strip(), attribute.strip()
    expected = 'selector.attribute, for example "nvlink.bandwidth", or the value "off"'
    known = [
        f"{kind}.{attribute}"
        for kind in fabric.links.kinds
        for attribute in LINK_ATTRIBUTES
    ]
    raise InputError(
        Mistake(
            where, key, f'"{key}"', expected, did_you_mean(f"{key}.bandwidth", known)
        )
    )


def _found(fabric: Fabric, selector: str, key: str, where: str) -> Selection:
    found = resolve(fabric, selector)
    if not found:
        raise InputError(missing(fabric, selector, key, where))
    return found


def _gpus(fabric: Fabric, found: Selection) -> tuple[str, ...]:
    return tuple(
        name
        for name in found.nodes
        if fabric.nodes.kinds[fabric.nodes.index[name]] == "gpu"
    )


def _unfit(
    fabric: Fabric,
    selector: str,
    found: Selection,
    attribute: str,
    key: str,
    where: str,
) -> list[Mistake]:
    """An attribute that what was selected does not have."""
    gpus = _gpus(fabric, found)
    if attribute in GPU_ATTRIBUTES and not gpus:
        hint = f"gpu.{attribute}, gpu[3].{attribute}, gpu[{(fabric.hosts or ('host0',))[0]}].{attribute}"
        return [
            Mistake(
                where,
                key,
                f'"{selector}", which is no GPU',
                f"GPUs: only they have {attribute}",
                hint,
            )
        ]
    if attribute in LINK_ATTRIBUTES and re.fullmatch(r"gpu(\[.*\])?", selector):
        links = ", ".join(f"{kind}.{attribute}" for kind in fabric.links.kinds[:3])
        return [
            Mistake(
                where,
                key,
                f"{attribute} of a GPU",
                f"one of {', '.join(GPU_ATTRIBUTES)}",
                f"links: {links}",
            )
        ]
    if attribute in LINK_ATTRIBUTES and not len(found.rows):
        return [
            Mistake(
                where, key, f'"{selector}", which has no link', "something with links"
            )
        ]
    return []


def _value(
    attribute: str, text: str, where: str, key: str
) -> tuple[float | None, float | None]:
    """(factor, None) or (None, quantity)."""
    if match := _FACTOR.fullmatch(text):
        factor = float(match[1]) / (100.0 if match[2] == "%" else 1.0)
        if not factor <= LARGEST or (factor == 0 and attribute != "latency"):
            hint = 'to take it away: selector = "off"' if factor == 0 else ""
            raise InputError(
                Mistake(
                    where,
                    key,
                    f'"{text}"',
                    f"a factor above 0, at most {LARGEST:g}",
                    hint,
                )
            )
        return factor, None
    if attribute == "clock":
        raise InputError(
            Mistake(
                where,
                key,
                f'"{text}"',
                'a factor such as "0.9x"',
                "of the clock it usually has",
            )
        )
    examples = {
        "latency": (parse_duration, "1 us"),
        "flops": (parse_rate, "900 TFLOP/s"),
    }
    parse, example = examples.get(attribute, (parse_bandwidth, "100 GB/s"))
    try:
        number = parse(text, where, key)
    except InputError as error:
        [first] = error.mistakes
        expected = f'a factor such as "2x" or a {attribute} such as "{example}"'
        raise InputError(replace(first, expected=expected)) from None
    if number == 0 and attribute != "latency":
        raise InputError(
            Mistake(
                where,
                key,
                f'"{text}"',
                f"a {attribute} above 0",
                'to take it away: selector = "off"',
            )
        )
    return None, number


def _replaced(
    links: Links, rows: Ints, attribute: str, factor: float | None, value: float | None, source: str
) -> Links:  # fmt: skip
    values: Floats = getattr(links, attribute).copy()
    old = values[rows]
    each = links.count[rows] if attribute == "bandwidth" else np.ones(len(rows))
    values[rows] = old * factor if factor is not None else each * (value or 0.0)
    if attribute == "latency":
        grade = links.latency_evidence.astype(object)
        grade[rows] = "guess"
        return replace(links, latency=values, latency_evidence=grade.astype(np.str_))
    raw, grade, sources = (
        links.raw.copy(),
        links.evidence.astype(object),
        links.source.copy(),
    )
    # The wire scales with the payload: headers keep their part.
    raw[rows] *= values[rows] / old
    grade[rows], sources[rows] = "guess", source
    return replace(
        links, bandwidth=values, raw=raw, evidence=grade.astype(np.str_), source=sources
    )
