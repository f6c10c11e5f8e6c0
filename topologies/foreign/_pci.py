"""What the attributes of a PCI device in NCCL's topology say: the model of a GPU, and its slot."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from prestep.sim.errors import did_you_mean
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.files.importers._text import Source
from prestep.topologies.foreign import _rates

#: Models by PCI device id (pci.ids): NVIDIA's, and AMD's whose vendor is 0x1002.
_MODELS = {
    "0x1db1": "v100", "0x1db5": "v100", "0x20b0": "a100", "0x20b2": "a100", "0x20b5": "a100", "0x2324": "h800",
    "0x2330": "h100", "0x2331": "h100", "0x2335": "h200", "0x2901": "b200", "0x2941": "gb200", "0x2342": "gh200",
    "0x2204": "rtx3090", "0x2235": "a40", "0x2236": "a10", "0x20f1": "a100", "0x26b9": "l40s", "0x27b8": "l4",
    "0x74a1": "mi300x", "0x74a5": "mi325x", "0x75a3": "mi355x",
}  # fmt: skip
#: What a GPU is called where the file has only what it can do (compute capability, GCN architecture): a guess.
_BY_SM = {70: "v100", 80: "a100", 90: "h100", 100: "b200", 103: "b300"}
_BY_GCN = {"942": "mi300x", "950": "mi355x"}
_SM = {
    "v100": 70,
    "a100": 80,
    "h100": 90,
    "h200": 90,
    "h800": 90,
    "gh200": 90,
    "b200": 100,
    "gb200": 100,
}
_AMD = "0x1002"
#: What NCCL takes where the file, or the system's, does not say: topo.cc, kvDictPciGen's fallback, and 16 lanes.
_SPEED, _LANES = 8.0, 16
_NO_SPEED = ("", "unknown", "unknown speed")


def need(source: Source, element: Element, attribute: str) -> str:
    """An attribute that has to be there."""
    value = element.get(attribute)
    if not value:
        keys = [key for key in element.attrib if key != attribute]
        hint = did_you_mean(attribute, keys)
        has = ", ".join(element.attrib) or "none"
        found = f'no attribute "{attribute}" (it has {has})'
        if value == "":
            found = f'{attribute} = "", which says nothing'
        source.fail(path_of(element), found, f"an attribute {attribute}", hint)
    return value


def path_of(element: Element) -> str:
    """How an error names an element: its tag and what identifies it."""
    for key in ("busid", "name", "dev", "numaid", "target"):
        if element.get(key):
            return f"<{element.tag} {key}={element.get(key)}>"
    return f"<{element.tag}>"


def is_amd(pci: Element) -> bool:
    """Whether a GPU is AMD's, as RCCL writes them."""
    gpu = pci.find("gpu")
    return pci.get("vendor", "").lower() == _AMD or (
        gpu is not None and bool(gpu.get("gcn"))
    )


def gpu_model(source: Source, pci: Element) -> str:
    """The model of a GPU: by its device id, or else, noted as assumed, by what its architecture is usually sold as.

    A static file may say nothing of its GPUs: "" then, which nothing can be predicted on.

    Raises
    ------
    InputError
        If it is none that is known: another one's times are not taken for it.
    """
    gpu, device = pci.find("gpu"), pci.get("device", "").lower()
    if device in _MODELS:
        return _MODELS[device]
    gcn = (
        (gpu.get("gcn", "") if gpu is not None else "")
        .removeprefix("gfx")
        .partition(":")[0]
    )
    sm = gpu.get("sm", "") if gpu is not None and not is_amd(pci) else ""
    guess = _BY_GCN.get(gcn) or (
        _BY_SM.get(int(sm), "") if sm.isdecimal() and len(sm) < 5 else ""
    )
    devices = ", ".join(
        f"{key} {value}"
        for key, value in (("device", device), ("sm", sm), ("gcn", gcn))
        if value
    )
    if not devices:
        source.assumed(
            "no GPU model", "the file says neither device nor sm of its GPUs"
        )
        return ""
    if (device and is_amd(pci)) or not guess:
        models = ", ".join(sorted(set(_MODELS.values())))
        hint = 'say which it is: device="0x2330" is an H100, device="0x74a1" an MI300X'
        found = f"a GPU that is not known ({devices})"
        source.fail(path_of(pci), found, f"one of {models}", hint)
    source.assumed("GPU model", f"{devices} alone in the file; {guess}")
    return guess


def compute_capability(source: Source, pci: Element, model: str) -> int:
    """`sm` of an NVIDIA GPU; AMD's counts compute units instead, and is not looked at."""
    gpu = pci.find("gpu")
    if gpu is None or is_amd(pci):
        return _SM.get(model, 80)
    return source.whole(f"{path_of(gpu)}.sm", need(source, gpu, "sm"))


def slot(source: Source, pci: Element) -> LinkSpec:
    """The PCIe link above a device; what virtual machines leave empty is what NCCL takes then, and noted."""
    return _rates.pcie(_speed(source, pci), _width(source, pci))


def _speed(source: Source, pci: Element) -> float:
    """GT/s of a slot."""
    where, text = f"{path_of(pci)}.link_speed", _given(source, pci, "link_speed")
    if text.strip().lower() in _NO_SPEED:
        why = f'"{text}" in the file; {_SPEED:g} GT/s, as NCCL does'
        source.assumed("speed of a PCIe slot", why)
        return _SPEED
    expected = 'a speed such as "16.0 GT/s PCIe"'
    speed = source.positive(where, text.partition(" ")[0], expected)
    if speed not in _rates.PCIE_SPEEDS:
        speeds = ", ".join(f"{one:g}" for one in _rates.PCIE_SPEEDS)
        source.fail(where, f'"{text}"', f"one of {speeds} GT/s")
    return speed


def _width(source: Source, pci: Element) -> int:
    """Lanes of a slot."""
    text = _given(source, pci, "link_width")
    if text.strip() in ("", "0"):
        why = f'"{text}" in the file (a virtual slot); {_LANES} lanes, as NCCL does'
        source.assumed("width of a PCIe slot", why)
        return _LANES
    return source.whole(f"{path_of(pci)}.link_width", text)


def _given(source: Source, pci: Element, attribute: str) -> str:
    """An attribute that may be empty, but has to be there."""
    value = pci.get(attribute)
    return need(source, pci, attribute) if value is None else value
