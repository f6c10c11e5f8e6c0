"""NCCL's topology XML: what `NCCL_TOPO_DUMP_FILE` writes, or a cloud's `NCCL_TOPO_FILE`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from sim.errors import InputError, did_you_mean
from topologies.core.quantity import LinkSpec, Quantity
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers import _rates
from topologies.files.importers._text import Source, text_of
from topologies.host import MEMORY

_MODELS = {
    "0x1db1": "v100", "0x1db5": "v100", "0x20b0": "a100", "0x20b2": "a100", "0x20b5": "a100", "0x2324": "h800",
    "0x2330": "h100", "0x2331": "h100", "0x2335": "h200", "0x2901": "b200", "0x2941": "gb200", "0x2342": "gh200",
    "0x2204": "rtx3090", "0x2235": "a40", "0x2236": "a10", "0x20f1": "a100", "0x26b9": "l40s", "0x27b8": "l4",
}  # fmt: skip
_MODEL_OF_SM = {70: "v100", 80: "a100", 90: "h100", 100: "b200"}
_SM_OF_MODEL = {"v100": 70, "a100": 80, "b200": 100, "gb200": 100}
# What CPUID calls AMD, and NCCL with it.
AMD = "AuthenticAMD"
_HINTS = {
    "graphs": "this is NCCL_GRAPH_DUMP_FILE, the rings it chose; dump NCCL_TOPO_DUMP_FILE"
}


def sniff(text: str) -> bool:
    """XML whose root is `system` or, to say what is wrong with it, `graphs`."""
    return "<system" in text[:4000] or "<graphs" in text[:4000]


@dataclass
class _Gpu:
    name: str
    busid: str
    sm: int
    host: str
    nvlinks: list[tuple[str, str, int]] = field(
        default_factory=list
    )  # (target, class, count)


def read(path: str | Path) -> Fabric:
    """One host, or the hosts of one NVLink domain, as NCCL saw them.

    ::

        cpu0 -- pcieswitch0 -- pcieswitch1 -- gpu0 == 5, 5, 4, 4 == nvswitch0 ... nvswitch3
                     |--------- pcieswitch2 -- nic0 -- network

    PCIe and NVLink rates are the constants NCCL has for a generation and width, which are what it plans with; ports
    have the speed in the file. Memories, latencies and links between sockets are not in the file: see `notes`.

    Raises
    ------
    InputError
        For XML that does not parse, missing attributes, and rates that are not positive; the element is named.

    References
    ----------
    NCCL, src/graph/xml.cc and topo.cc.
    """
    return _Reader(Source(path)).fabric(text_of(path))


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.builder = FabricBuilder()
        self.gpus: list[_Gpu] = []
        self.nics: list[tuple[str, LinkSpec, int]] = []
        self.counts: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.hosts: dict[str, str] = {}
        self.named: dict[int, str] = {}

    def fabric(self, text: str) -> Fabric:
        root = self.root(text)
        cpus = root.findall("cpu")
        if not cpus:
            self.source.fail("system", "no <cpu>", "at least one <cpu>")
        self.name_gpus(root)
        names = [self.cpu(cpu) for cpu in cpus]
        if not self.gpus:
            self.source.fail(
                "system", "no GPU", "a <pci> of class 0x0302 or with a <gpu> in it"
            )
        self.sockets(cpus, names)
        self.nvlinks()
        if self.nics:
            self.node("network", "", name="network")
            for nic, spec, count in self.nics:
                self.builder.link(nic, "network", "nic", spec, count)
        self.source.assumed(
            "latencies", "not in the file; of the order of a hop of its kind"
        )
        self.source.assumed(
            "memory", "not in the file; the DIMMs of a DGX H100 on every <cpu>"
        )
        try:
            fabric = self.builder.finish(self.source.title, self.model(), "nccl_xml")
        except InputError as error:
            raise self.source.checked(error) from None
        return self.source.finish(
            fabric.with_facts(fabric.name, {**fabric.facts, **self.vendor(cpus)})
        )

    def vendor(self, cpus: list[Element]) -> dict[str, Quantity]:
        """Whether the CPUs are AMD's, where the file says whose they are: NCCL searches their ways differently."""
        vendors = sorted({cpu.get("vendor", "") for cpu in cpus} - {""})
        if not vendors:
            return {}
        if len(vendors) > 1:
            self.source.assumed(
                "one vendor of CPUs",
                f"{' and '.join(vendors)}; AMD's ways only if all are",
            )
        source = f"vendor of <cpu> in NCCL's topology: {', '.join(vendors)}"
        return {"amd_cpu": Quantity(float(vendors == [AMD]), "datasheet", source)}

    def root(self, text: str) -> Element:
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            self.source.fail(
                "", f"XML that does not parse ({error})", "NCCL's topology XML"
            )
        if root.tag != "system":
            hint = _HINTS.get(root.tag, "")
            self.source.fail(
                root.tag,
                f"the root <{root.tag}>",
                "NCCL's topology, with the root <system>",
                hint,
            )
        return root

    def node(self, kind: str, host: str, name: str = "") -> str:
        at = self.counts[kind]
        self.counts[kind] += 1
        return self.builder.node(name or f"{kind}{at}", kind, host)

    def need(self, element: Element, attribute: str) -> str:
        value = element.get(attribute)
        if value is None or value == "":
            hint = did_you_mean(attribute, element.keys())
            has = ", ".join(element.keys()) or "none"
            expected = f"an attribute {attribute}"
            self.source.fail(
                _path(element),
                f'no attribute "{attribute}" (it has {has})',
                expected,
                hint,
            )
        return value

    def name_gpus(self, root: Element) -> None:
        """Ranks follow the file's `rank`, or `dev`; where it has neither, document order."""
        pcis = [pci for pci in root.iter("pci") if _is_gpu(pci)]

        def order(at: int) -> tuple[float, int]:
            inner = pcis[at].find("gpu")
            found = None if inner is None else inner.get("rank", inner.get("dev"))
            return (
                float("inf") if found is None or not found.isdecimal() else float(found)
            ), at

        for rank, at in enumerate(sorted(range(len(pcis)), key=order)):
            self.named[id(pcis[at])] = f"gpu{rank}"
        # Rank order is node order, so GPUs come before everything else.
        for cpu in root.findall("cpu"):
            host = self.host(cpu)
            for pci in cpu.iter("pci"):
                if _is_gpu(pci):
                    self.gpus.append(self.gpu(pci, host))
        self.gpus.sort(key=lambda gpu: int(gpu.name[3:]))
        for gpu in self.gpus:
            self.node("gpu", gpu.host, gpu.name)

    def host(self, cpu: Element) -> str:
        return self.hosts.setdefault(cpu.get("host_hash", ""), f"host{len(self.hosts)}")

    def gpu(self, pci: Element, host: str) -> _Gpu:
        inner = pci.find("gpu")
        model = _MODELS.get(pci.get("device", "").lower(), "")
        if inner is None:
            self.models[model] += 1
            return _Gpu(
                self.named[id(pci)],
                self.need(pci, "busid"),
                _SM_OF_MODEL.get(model, 80),
                host,
            )
        sm = self.source.whole(f"{_path(inner)}.sm", self.need(inner, "sm"))
        self.models[model or _MODEL_OF_SM.get(sm, "")] += 1
        gpu = _Gpu(self.named[id(pci)], self.need(pci, "busid"), sm, host)
        for link in inner.findall("nvlink"):
            count = self.source.whole(
                f"{_path(link)} of {gpu.name}.count", self.need(link, "count")
            )
            gpu.nvlinks.append(
                (self.need(link, "target"), link.get("tclass", "0x068000"), count)
            )
        return gpu

    def cpu(self, cpu: Element) -> str:
        host = self.host(cpu)
        name = self.node("cpu", host)
        self.builder.link(name, self.node("memory", host), "memory", MEMORY)
        for inner in cpu:
            if inner.tag == "pci":
                self.pci(inner, name, host)
            elif inner.tag == "nic":
                # A NIC without a slot: a virtual device of the CPU.
                self.nic(inner, name, host, _rates.pcie(16.0, 16, "guess"))
                self.source.assumed(
                    "slot of a NIC", "none in the file; PCIe Gen4, 16 lanes"
                )
        return name

    def pci(self, pci: Element, above: str, host: str) -> None:
        """A PCI device and what is below it, under the node `above`."""
        self.need(pci, "busid")
        spec = self.slot(pci)
        if _is_gpu(pci):
            name = self.named[id(pci)]
            if not self.c2c(pci.find("gpu"), above, name):
                self.builder.link(above, name, "pcie", spec)
        elif (nic := pci.find("nic")) is not None:
            self.nic(nic, above, host, spec)
        elif self.need(pci, "class").lower().startswith("0x0604") or pci.findall("pci"):
            self.pcie_switch(pci, above, host, spec)
        elif pci.get("class", "").lower().startswith("0x02"):
            self.bare_nic(above, host, spec)
        else:
            kind = f"PCI devices of class {pci.get('class')}"
            self.source.dropped(kind, "no GPU, NIC or switch")

    def bare_nic(self, above: str, host: str, spec: LinkSpec) -> None:
        """A network device of which the file does not say what its ports are."""
        name = self.node("nic", host)
        self.builder.link(above, name, "pcie", spec)
        why = "no <net> in the file; as fast as its PCIe slot"
        self.source.assumed("speed of a NIC", why)
        self.nics.append((name, _rates.port(spec.bandwidth.value, "guess", why), 1))

    def pcie_switch(self, pci: Element, above: str, host: str, spec: LinkSpec) -> None:
        name = self.node("pcieswitch", host)
        self.builder.link(above, name, "pcie", spec)
        for inner in pci.findall("pci"):
            self.pci(inner, name, host)
            if self.slot(inner).bandwidth.value > spec.bandwidth.value:
                why = "less than below it: taken as it is, but an idle PCIe link reports less than it can do"
                self.source.assumed("speed of a PCIe switch", why)

    def slot(self, pci: Element) -> LinkSpec:
        """The PCIe link above a device. Width 0 is how NCCL writes a virtual slot; it takes it as 16 lanes."""
        where, text = _path(pci), self.need(pci, "link_speed")
        speed = self.source.positive(
            f"{where}.link_speed",
            text.partition(" ")[0],
            'a speed such as "16.0 GT/s PCIe"',
        )
        if speed not in _rates.PCIE_SPEEDS:
            known = ", ".join(f"{one:g}" for one in _rates.PCIE_SPEEDS)
            self.source.fail(f"{where}.link_speed", f'"{text}"', f"one of {known} GT/s")
        width = self.need(pci, "link_width")
        if width == "0":
            self.source.assumed(
                "width of a PCIe slot",
                "0 lanes in the file (a virtual slot); 16, as NCCL does",
            )
            return _rates.pcie(speed, 16)
        return _rates.pcie(speed, self.source.whole(f"{where}.link_width", width))

    def nic(self, nic: Element, above: str, host: str, spec: LinkSpec) -> None:
        nets = nic.findall("net")
        if not nets:
            self.source.fail(_path(nic), "no <net> in it", "at least one <net>")
        name = self.node("nic", host)
        self.builder.link(above, name, "pcie", spec)
        speeds = [
            self.source.positive(f"{_path(net)}.speed", self.need(net, "speed"))
            for net in nets
        ]
        # Mbit/s; 10,000 is also what NCCL writes when it could not find out.
        evidence = "guess" if speeds[0] == 10_000 else "datasheet"
        each = sum(speeds) / len(speeds) * 1e6 / 8
        source = f"speed of {_path(nets[0])} in NCCL's topology: {speeds[0]:g} Mbit/s"
        self.nics.append((name, _rates.port(each, evidence, source), len(nets)))

    def c2c(self, gpu: Element | None, cpu: str, name: str) -> bool:
        """Join a GPU to its CPU by NVLink-C2C, where it has that."""
        link = gpu.find("c2c") if gpu is not None else None
        if link is None:
            return False
        count = self.source.whole(
            f"{_path(link)} of {name}.count", self.need(link, "count")
        )
        rate = (
            self.source.positive(f"{_path(link)} of {name}.bw", self.need(link, "bw"))
            * 1e6
        )
        spec = LinkSpec(
            Quantity(rate, "fitted", "bw of <c2c> in NCCL's topology"),
            _rates.nvlink(90).latency,
        )
        self.source.dropped(
            "PCIe of a GPU with C2C",
            "two links between the same nodes; C2C is the faster",
        )
        self.builder.link(cpu, name, "c2c", spec, count)
        return True

    def sockets(self, cpus: list[Element], names: list[str]) -> None:
        for at, (cpu, name) in enumerate(zip(cpus, names, strict=True)):
            numbers = [cpu.get(key, "") for key in ("familyid", "modelid")]
            family, model = (int(text) if text.isdecimal() else 0 for text in numbers)
            spec = _rates.socket(
                cpu.get("arch", ""), cpu.get("vendor", ""), family, model
            )
            for other, before in zip(cpus[:at], names[:at], strict=True):
                if self.host(other) == self.host(cpu):
                    self.builder.link(before, name, "socket", spec)
                    self.source.assumed(
                        "links between sockets",
                        "not in the file; every two, at NCCL's rate",
                    )

    def nvlinks(self) -> None:
        """Links to NVSwitches (class 0x0680), and between GPUs (each of the two lists the other)."""
        links = [(gpu, *link) for gpu in self.gpus for link in gpu.nvlinks]
        if not links:
            why = "none in the file: a static file leaves it to NCCL, which asks the driver"
            self.source.assumed("no NVLink", why)
        targets = {target for _, target, kind, _ in links if kind.startswith("0x0680")}
        switches = {target: self.node("nvswitch", "") for target in sorted(targets)}
        sm = {gpu.name: gpu.sm for gpu in self.gpus}
        for (src, dst), count in self.nvlink_counts(switches).items():
            self.builder.link(src, dst, "nvlink", _rates.nvlink(sm[src]), count)

    def nvlink_counts(self, switches: dict[str, str]) -> Counter[tuple[str, str]]:
        """Physical links between every two devices; `switches` has the NVSwitches by what GPUs call them."""
        ends = {gpu.busid: gpu.name for gpu in self.gpus} | switches
        pairs: Counter[tuple[str, str]] = Counter()
        for gpu in self.gpus:
            for target, kind, count in gpu.nvlinks:
                end = ends.get(target)
                if end is None:
                    what = "NVLinks to devices that are not in the file"
                    self.source.dropped(what, f"class {kind}")
                elif target in switches or (end, gpu.name) not in pairs:
                    pairs[gpu.name, end] += count
        return pairs

    def model(self) -> str:
        [(model, _)] = self.models.most_common(1)
        if not model:
            self.source.assumed("GPU model", "the file names none that is known")
        return model


def _is_gpu(pci: Element) -> bool:
    return pci.find("gpu") is not None or pci.get("class", "").lower().startswith(
        ("0x0302", "0x0300")
    )


def _path(element: Element) -> str:
    """How an error names an element: its tag and what identifies it."""
    for key in ("busid", "name", "dev", "numaid", "target"):
        if element.get(key):
            return f"<{element.tag} {key}={element.get(key)}>"
    return f"<{element.tag}>"
