"""What-ifs on a cluster: `selector.attribute = value or factor`, or `selector = off`.

Selectors are those of `prestep.topologies.edit.selectors`. Attributes of links are `bandwidth` (payload, per
direction) and
`latency`; of GPUs `flops`, `hbm_bandwidth`, `clock` and `power_limit`. A value is a factor ("2x", "0.5x", "80 %") or a
quantity with a unit ("100 GB/s", "1 us", "900 TFLOP/s", "500 W"). A bandwidth is that of ONE physical link:
"nvlink.bandwidth" = "25 GB/s" gives a row of five links 125 GB/s. Overrides apply in the order given.

What is `off` is gone with its cables, in both directions; a switch or NIC that leads nowhere then is gone too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.extras import lazily
from prestep.sim.units import parse_bandwidth, parse_duration, parse_power, parse_rate
from prestep.topologies.core.links import Floats, Ints, Links
from prestep.topologies.edit.selectors import Selection, missing, resolve
from prestep.topologies.fabric import Fabric, GpuChange

with lazily():
    from prestep.topologies.edit import switched

LINK_ATTRIBUTES = ("bandwidth", "latency")
GPU_ATTRIBUTES = ("flops", "hbm_bandwidth", "clock", "power_limit")
ATTRIBUTES = (*LINK_ATTRIBUTES, *GPU_ATTRIBUTES)
OFF = "off"
LARGEST = 1e12  # factor: enough for "as if it were free"
LEAST = 1.0  # bytes or operations a second of anything that works at all
SMALLEST = 1e-12  # factor: enough for "as if it were broken"
_TAKE_AWAY = 'to take it away: selector = "off"'
# What reads a value with its unit, and an example; the others are bandwidths.
_UNITS = {
    "latency": (parse_duration, "1 us"),
    "flops": (parse_rate, "900 TFLOP/s"),
    "power_limit": (parse_power, "500 W"),
}
_SHORT = dict.fromkeys(("bw", "busbw", "speed"), 'did you mean "bandwidth"?')
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
        with InputError.collected(mistakes):
            fabric = _changed(fabric, key, str(text).strip(), where)
    InputError.check(mistakes)
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
        selection = resolve(fabric, key)
        if not selection:
            raise InputError(missing(fabric, key, key, where))
        cables = selection.cables(fabric)
        return switched.off(fabric, cables, selection.nodes, key, where)
    override = _Override(where, key, text, *_split(fabric, key, where))
    selection = resolve(fabric, override.selector)
    factor, value = _checked(fabric, override, selection)
    attribute = override.attribute
    if attribute in GPU_ATTRIBUTES:
        change = GpuChange(_gpus(fabric, selection), attribute, factor, value)
        return _with_gpu_change(fabric, change)
    source = f"{where}: {key} = {text}"
    links = _replaced(fabric.links, selection.rows, attribute, factor, value, source)
    changed = fabric.with_columns(links=links)
    return changed.with_routes_of(fabric) if attribute == "bandwidth" else changed


def _with_gpu_change(fabric: Fabric, change: GpuChange) -> Fabric:
    changed = fabric.with_columns(gpu_changes=(*fabric.gpu_changes, change))
    return changed.with_network_of(fabric)


@dataclass(frozen=True)
class _Override:
    """`key = text` in `where`; the key is `selector.attribute`."""

    where: str
    key: str
    text: str
    selector: str
    attribute: str

    def mistake(self, found: str, expected: str, hint: str = "") -> Mistake:
        """A mistake in it."""
        return Mistake(self.where, self.key, found, expected, hint)


def _checked(
    fabric: Fabric, override: _Override, selection: Selection
) -> tuple[float | None, float | None]:
    """Factor and value of an override (see `_value`), or all that is wrong with it."""
    mistakes = []
    if not selection:
        selector = override.selector
        mistakes.append(missing(fabric, selector, override.key, override.where))
    if override.attribute not in ATTRIBUTES:
        raise InputError([*mistakes, _no_attribute(override)])
    try:
        factor, value = _value(override)
    except InputError as error:
        raise InputError([*mistakes, *error.mistakes]) from None
    if selection:
        mistakes += _unfit(fabric, override, selection)
    InputError.check(mistakes)
    return factor, value


def _no_attribute(override: _Override) -> Mistake:
    return override.mistake(
        f'the attribute "{override.attribute}"',
        f"one of {', '.join(ATTRIBUTES)}",
        _SHORT.get(override.attribute.lower())
        or did_you_mean(override.attribute, ATTRIBUTES),
    )


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
    raise InputError.of(
        where, key, f'"{key}"', expected, did_you_mean(f"{key}.bandwidth", known)
    )


def _gpus(fabric: Fabric, selection: Selection) -> tuple[str, ...]:
    kinds, index = fabric.nodes.kinds, fabric.nodes.index
    return tuple(name for name in selection.nodes if kinds[index[name]] == "gpu")


def _unfit(fabric: Fabric, override: _Override, selection: Selection) -> list[Mistake]:
    """An attribute that what was selected does not have."""
    selector, attribute = override.selector, override.attribute
    if attribute in GPU_ATTRIBUTES and not _gpus(fabric, selection):
        host = (fabric.hosts or ("host0",))[0]
        return [
            override.mistake(
                f'"{selector}", which is no GPU',
                f"GPUs: only they have {attribute}",
                f"gpu.{attribute}, gpu[3].{attribute}, gpu[{host}].{attribute}",
            )
        ]
    if attribute in LINK_ATTRIBUTES and re.fullmatch(r"gpu(\[.*\])?", selector):
        links = ", ".join(f"{kind}.{attribute}" for kind in fabric.links.kinds[:3])
        found, expected = f"{attribute} of a GPU", f"one of {', '.join(GPU_ATTRIBUTES)}"
        return [override.mistake(found, expected, f"links: {links}")]
    if attribute in LINK_ATTRIBUTES and not len(selection.rows):
        found = f'"{selector}", which has no link'
        return [override.mistake(found, "something with links")]
    return []


def _value(override: _Override) -> tuple[float | None, float | None]:
    """(factor, None) or (None, quantity)."""
    attribute, text = override.attribute, override.text
    if match := _FACTOR.fullmatch(text):
        factor = float(match[1]) / (100.0 if match[2] == "%" else 1.0)
        none = factor == 0 and attribute == "latency"
        if not none and not SMALLEST <= factor <= LARGEST:
            hint = _TAKE_AWAY if factor == 0 else ""
            expected = f"a factor above 0, from {SMALLEST:g} to {LARGEST:g}"
            raise InputError(override.mistake(f'"{text}"', expected, hint))
        return factor, None
    if attribute == "clock":
        expected, hint = 'a factor such as "0.9x"', "of the clock it usually has"
        raise InputError(override.mistake(f'"{text}"', expected, hint))
    number = _number(override)
    if number < LEAST and attribute != "latency":
        expected = f"a {attribute} above 0, at least {LEAST:g} of its unit"
        raise InputError(override.mistake(f'"{text}"', expected, _TAKE_AWAY))
    return None, number


def _number(override: _Override) -> float:
    """A value with its unit."""
    attribute = override.attribute
    parse, example = _UNITS.get(attribute, (parse_bandwidth, "100 GB/s"))
    try:
        return parse(override.text, override.where, override.key)
    except InputError as error:
        [first] = error.mistakes
        expected = f'a factor such as "2x" or a {attribute} such as "{example}"'
        raise InputError(replace(first, expected=expected)) from None


def _replaced(
    links: Links, rows: Ints, attribute: str, factor: float | None, value: float | None, source: str
) -> Links:  # fmt: skip
    values: Floats = getattr(links, attribute).copy()
    old = values[rows]
    each = links.count[rows] if attribute == "bandwidth" else np.ones(len(rows))
    values[rows] = old * factor if factor is not None else each * (value or 0.0)
    if attribute == "latency":
        grade = links.latency_evidence.copy()
        grade[rows] = "guess"
        return links.with_values(latency=values, latency_evidence=grade)
    raw, grade, sources = (
        links.raw.copy(),
        links.evidence.copy(),
        links.source.copy(),
    )
    # The wire scales with the payload: headers keep their part.
    raw[rows] *= values[rows] / old
    grade[rows], sources[rows] = "guess", source
    return links.with_values(bandwidth=values, raw=raw, evidence=grade, source=sources)
