"""The tables of a cluster file's keys in docs/cluster-files.md, from the families' own `Params`.

    python -m topologies.files.reference docs/cluster-files.md

writes them between the page's markers; without a page they are printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sim import plugins
from sim.errors import PrestepError
from sim.units import format_bandwidth, format_duration
from topologies.core.quantity import LinkSpec
from topologies.files.clusterfile import OF_EVERY_FAMILY

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
HEAD = "| key | value | default | meaning |\n| --- | --- | --- | --- |"
_SIZE, _TIME, _RATE, _SHARE, _SWITCH = '"64 KiB"', '"2 us"', '"14 GB/s"', "a share, at most 1", "0 or 1"
#: What a fact of any family is, by its key: what may be written, and what it means.
FACTS: Mapping[str, tuple[str, str]] = {
    "host_factor": (
        "a number",
        "How much longer the host takes for framework code than the one its costs were fitted on.",
    ),
    "host_spread": (
        "a number",
        "Standard deviation of the logarithm of `host_factor` between hosts: it widens intervals.",
    ),
    "nvlink_sharp": (_SWITCH, "NVSwitches multicast and reduce (NVLink SHARP)."),
    "sharp": (_SWITCH, "The network's switches reduce (SHARP)."),
    "token_bucket": ("bytes", "What the token buckets hold that shape the network's ports."),
    "tcp": (_SWITCH, "The network is TCP sockets; bandwidths of its links are TCP's goodput."),
    "amd_cpu": (_SWITCH, "The hosts' CPUs are AMD's: NCCL's cost model has other numbers for them."),
    "net_share": (_SHARE, "Of the ports' payload bandwidth, what NCCL's traffic reaches."),
    "net_pairs_share": (_SHARE, "The same for messages between pairs."),
    "net_ll": (_TIME, "One step between hosts with LL, over the links' latency."),
    "net_ll128": (_TIME, "The same with LL128."),
    "net_simple": (_TIME, "The same with Simple."),
    "net_message": (_TIME, "The proxy, for each part of a message to a rank of another host."),
    "net_rendezvous": (_TIME, "What agreeing on a message costs the proxy for each channel of a step."),
    "net_eager": (_SIZE, "From this size on the two sides agree on a message before it is sent."),
    "net_channel": (_RATE, "One channel of messages between hosts."),
}


def families() -> dict[str, ModuleType]:
    """The modules that build clusters, by name."""
    found = {name: plugins.load("topologies", name) for name in sorted(plugins.providers("topologies", "build"))}
    return {name: module for name, module in found.items() if hasattr(module, "Params")}


def tables() -> str:
    """Facts of every family, then the keys of each, `host` first: most others have its keys too."""
    known = families()
    order = ["host", *(name for name in known if name != "host")]
    facts = [f"| `{key}` | {_cell(_fact(key)[0])} | | {_cell(_fact(key)[1])} |" for key in OF_EVERY_FAMILY]
    parts = ["\n".join(["### Facts of every family", "", HEAD, *facts])]
    return "\n\n".join([*parts, *(_family(name, known[name], known["host"]) for name in order)])


def written(page: str) -> str:
    """`page` with the tables between its markers.

    Raises
    ------
    PrestepError
        If the markers are not there, once each and in order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise PrestepError(f"expected one {BEGIN} and after it one {END}")
    return f"{page.partition(BEGIN)[0]}{BEGIN}\n{tables()}\n{END}{page.partition(END)[2]}"


def _fact(key: str) -> tuple[str, str]:
    if key not in FACTS:
        raise PrestepError(
            f"{key}: a fact of every family that topologies/files/reference.py does not explain: add it to FACTS"
        )
    return FACTS[key]


def _family(name: str, module: ModuleType, host: ModuleType) -> str:
    """One family: what it is, and its keys; of one that has a host's keys, those that it adds or changes."""
    below = {entry.name: entry.default for entry in dataclasses.fields(host.Params)} if module is not host else {}
    inherits = issubclass(module.Params, host.Params)
    meanings = _meanings(module.Params) if not inherits else {**_meanings(host.Params), **_meanings(module.Params)}
    hints = typing.get_type_hints(module.Params)
    entries = dataclasses.fields(module.Params)
    shown = [entry for entry in entries if not inherits or below.get(entry.name, ...) != entry.default]
    told = [meanings[entry.name] for entry in shown]
    said = ["the same" if text in told[at - 1 : at] else _cell(text) for at, text in enumerate(told)]
    rows = [
        f"| `{entry.name}` | {_type(hints[entry.name])} | {_default(entry.default)} | {text} |"
        for entry, text in zip(shown, said, strict=True)
    ]
    also = "\n\nThe keys of `host`, and:" if inherits and module is not host else ""
    about = (inspect.getdoc(module) or "").splitlines()[0]
    return "\n".join([f'### family = "{name}"', "", f"{about}{also}", "", HEAD, *rows])


def _meanings(params: type) -> dict[str, str]:
    """What the section Attributes of a docstring says, by name."""
    text = (inspect.getdoc(params) or "").partition("Attributes\n----------\n")[2]
    found: dict[str, str] = {}
    for names, said in re.findall(r"^(\w[\w, ]*)\n((?:    .*\n?)+)", text, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), " ".join(said.split()))
    return found


def _type(hint: Any) -> str:
    names = {
        int: "whole number",
        str: "text",
        float: "number",
        LinkSpec: "a link",
        tuple[int, ...]: "list of whole numbers",
    }
    return names[hint]


def _default(value: object) -> str:
    if isinstance(value, LinkSpec):
        return f"{format_bandwidth(value.bandwidth.value)}, {format_duration(value.latency.value)}"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else f"`{value!r}`".replace("'", '"')


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the page, or prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", type=Path)
    page = parser.parse_args(arguments).page
    if page is None:
        print(tables())
    else:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
