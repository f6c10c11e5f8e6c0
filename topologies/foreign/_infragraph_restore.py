"""From the expanded nodes and links of an InfraGraph to a cluster, with what prestep wrote into its descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prestep.topologies.core.links import Links, Nodes
from prestep.topologies.core.quantity import shown
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.attributes import with_attributes
from prestep.topologies.files.importers._text import Source
from prestep.topologies.foreign import _infragraph_links
from prestep.topologies.foreign._infragraph_document import Device, Document, Link

_Kinds = Mapping[str, tuple[str, str]]  # node -> (kind, host)
_Pairs = Mapping[tuple[str, str], list[tuple[str, Link]]]


def fabric(source: Source, document: Document, kinds: _Kinds, pairs: _Pairs) -> Fabric:
    """The checked cluster."""
    ours = document.extra
    if not ours:
        kinds = _linked(source, kinds, pairs)
    nodes, links = _columns(source, document, kinds, pairs)
    family, model = "infragraph", "h100"
    if ours:
        family, model = (_text(source, key, ours) for key in ("family", "gpu_model"))
    else:
        source.assumed("GPU model", "InfraGraph has none; H100")
    plain = Fabric(document.name, nodes, links, model, family)
    title = _text(source, "name", ours) or document.name
    restored = with_attributes(plain, ours, str(source.path), source.path.parent)
    return source.finish(restored, title)


def _columns(
    source: Source, document: Document, kinds: _Kinds, pairs: _Pairs
) -> tuple[Nodes, Links]:
    """Nodes and links under the names and in the order that prestep wrote down, where it did."""
    names, order = dict(_names(source, document)), document.extra
    nodes = [
        (*names.get(node, (node, host)), kind) for node, (kind, host) in kinds.items()
    ]
    nodes = _ordered(source, "nodes", nodes, order.get("nodes"))
    rows = list(_rows(source, pairs, names))
    rows = _ordered(source, "links", rows, order.get("links"))
    table = {key: [row[key] for row in rows] for key in Links.__dataclass_fields__}
    return (
        Nodes(
            tuple(name for name, _, _ in nodes),
            tuple(kind for _, _, kind in nodes),
            tuple(host for _, host, _ in nodes),
        ),
        Links.of(table),
    )


def _text(source: Source, key: str, extra: Mapping[str, Any]) -> str:
    """A text of the whole infrastructure, "" where it has none."""
    if not extra.get(key):
        return ""
    return source.text(f"infrastructure.description, {key}", extra[key], "a text")


def _linked(source: Source, kinds: _Kinds, pairs: _Pairs) -> _Kinds:
    """The nodes that have a link."""
    used = {end for pair in pairs for end in pair}
    for node in kinds:
        if node not in used:
            why = "nothing can reach them"
            source.dropped("components without a link", why)
    return {node: kind for node, kind in kinds.items() if node in used}


def _names(source: Source, document: Document) -> Iterator[tuple[str, tuple[str, str]]]:
    """What prestep calls the nodes of the file, and their hosts."""
    for name, instance in document.instances.items():
        device = document.devices[instance.device]
        places = instance.extra.get("places")
        if places is None:
            continue
        where = f"instance {name}.description"
        if not isinstance(places, list) or len(places) != instance.count:
            source.fail(where, shown(places), f"{instance.count} pairs: host, prefix")
        for at, place in enumerate(places):
            if not isinstance(place, list) or list(map(type, place)) != [str, str]:
                source.fail(where, shown(place), "a pair of texts: host, prefix")
            host, prefix = place
            for inner, local in _local(source, device):
                yield f"{name}.{at}.{inner}", (f"{prefix}{local}", host)


def _local(source: Source, device: Device) -> Iterator[tuple[str, str]]:
    """What prestep calls the nodes of a device, without what comes before the names of one instance."""
    where = f"device {device.name}.description"
    for name, (count, _) in device.components.items():
        names = device.extra.get(name)
        if not isinstance(names, list) or list(map(type, names)) != [str] * count:
            source.fail(where, shown(names), f"{count} names of {name}")
        yield from ((f"{name}.{at}", one) for at, one in enumerate(names))


def _rows(
    source: Source, pairs: _Pairs, names: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Both directions of every link, as columns."""
    for (a, b), links in pairs.items():
        kind, link = links[0]
        ends = tuple(names.get(end, (end, ""))[0] for end in (a, b))
        there, back = _infragraph_links.directions(source, link, kind, len(links))
        yield {"src": ends[0], "dst": ends[1], **there}
        yield {"src": ends[1], "dst": ends[0], **back}


def _ordered(source: Source, what: str, items: list[Any], order: object) -> list[Any]:
    """Items in the order that prestep had them in, where it wrote that down."""
    if order is None:
        return items
    expected = f"the numbers of all {len(items)} {what}, each once"
    numbers: Sequence[Any] = order if isinstance(order, list) else []
    if any(type(at) is not int for at in numbers) or sorted(numbers) != list(
        range(len(items))
    ):
        source.fail(f"infrastructure.description, {what}", shown(order), expected)
    return [items[at] for at in numbers]
