"""NCCL's topology XML: what `NCCL_TOPO_DUMP_FILE` writes, or a cloud's `NCCL_TOPO_FILE`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from prestep.sim.errors import InputError
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.topologies.files import host_models
from prestep.topologies.files.host_models import HostModel
from prestep.topologies.files.importers._text import Source, text_of
from prestep.topologies.foreign import _pci, _rates
from prestep.topologies.foreign._hosts import match
from prestep.topologies.host import LINKS

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
        self.graph = new_graph(source.title, "", "nccl_xml")
        self.gpus: list[_Gpu] = []
        self.nics: list[tuple[str, LinkSpec, int]] = []
        self.counts: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.hosts: dict[str, str] = {}
        self.known: HostModel | None = None
        self.nvidia = True
        self.stated: dict[str, Quantity] = {}
        self.named: dict[int, str] = {}

    def fabric(self, text: str) -> Fabric:
        root = self.root(text)
        cpus = root.findall("cpu")
        if not cpus:
            self.source.fail("system", "no <cpu>", "at least one <cpu>")
        self.name_gpus(root)
        if not self.gpus:
            found = "a <pci> of class 0x0302 or with a <gpu> in it"
            self.source.fail("system", "no GPU", found)
        self.known = self.known_host()
        names = [self.cpu(cpu) for cpu in cpus]
        self.sockets(cpus, names)
        self.nvlinks()
        if self.nics:
            self.node("network", "", name="network")
            for nic, spec, count in self.nics:
                join(self.graph, nic, "network", "nic", spec, count)
        self.source.assumed(
            "latencies", "not in the file; of the order of a hop of its kind"
        )
        self.source.assumed(
            "memory",
            f"not in the file; the DIMMs of {self.known.name if self.known else 'a DGX H100'} on every <cpu>",
        )
        try:
            self.graph.graph["gpu_model"] = self.model()
            fabric = compile_graph(self.graph)
        except InputError as error:
            raise self.source.checked(error) from None
        return self.source.finish(
            fabric.with_facts(fabric.name, {**self.stated, **self.vendor(cpus)})
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
        return add_node(self.graph, name or f"{kind}{at}", kind, host)

    def need(self, element: Element, attribute: str) -> str:
        return _pci.need(self.source, element, attribute)

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
                    self.nvidia &= not _pci.is_amd(pci)
                    self.gpus.append(self.gpu(pci, host))
        self.gpus.sort(key=lambda gpu: int(gpu.name[3:]))
        for gpu in self.gpus:
            self.node("gpu", gpu.host, gpu.name)

    def host(self, cpu: Element) -> str:
        return self.hosts.setdefault(cpu.get("host_hash", ""), f"host{len(self.hosts)}")

    def gpu(self, pci: Element, host: str) -> _Gpu:
        model = _pci.gpu_model(self.source, pci)
        self.models[model] += 1
        sm = _pci.compute_capability(self.source, pci, model)
        gpu = _Gpu(self.named[id(pci)], self.need(pci, "busid"), sm, host)
        # RCCL writes AMD's Infinity Fabric as NCCL does NVLinks, under another name.
        for link in [
            one for tag in ("nvlink", "xgmi") for one in pci.findall(f"gpu/{tag}")
        ]:
            count = self.source.whole(
                f"{_pci.path_of(link)} of {gpu.name}.count", self.need(link, "count")
            )
            gpu.nvlinks.append(
                (self.need(link, "target"), link.get("tclass", "0x068000"), count)
            )
        return gpu

    def known_host(self) -> HostModel | None:
        """The bundled host that every host of the file is, by its GPUs and their NVLinks."""
        hosts = Counter(gpu.host for gpu in self.gpus)
        links = {sum(count for _, _, count in gpu.nvlinks) for gpu in self.gpus}
        if len(set(hosts.values())) != 1 or len(links) != 1 or len(self.models) != 1:
            return None
        [model] = self.models
        return match(self.source, model, next(iter(hosts.values())), links.pop())

    def cpu(self, cpu: Element) -> str:
        host = self.host(cpu)
        name = self.node("cpu", host)
        memory = self.known.params.memory if self.known else LINKS["memory"]
        join(self.graph, name, self.node("memory", host), "memory", memory)
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
                join(self.graph, above, name, "pcie", spec)
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
        join(self.graph, above, name, "pcie", spec)
        why = "no <net> in the file; as fast as its PCIe slot"
        self.source.assumed("speed of a NIC", why)
        self.nics.append((name, _rates.port(spec.bandwidth.value, "guess", why), 1))

    def pcie_switch(self, pci: Element, above: str, host: str, spec: LinkSpec) -> None:
        name = self.node("pcieswitch", host)
        join(self.graph, above, name, "pcie", spec)
        for inner in pci.findall("pci"):
            self.pci(inner, name, host)
            if self.slot(inner).bandwidth.value > spec.bandwidth.value:
                why = "less than below it: taken as it is, but an idle PCIe link reports less than it can do"
                self.source.assumed("speed of a PCIe switch", why)

    def slot(self, pci: Element) -> LinkSpec:
        """The PCIe link above a device: the known host's where it is the same."""
        spec = _pci.slot(self.source, pci)
        same = self.known is not None and _alike(self.known.params.pcie, spec.wire)
        return self.known.params.pcie if self.known and same else spec

    def nic(self, nic: Element, above: str, host: str, spec: LinkSpec) -> None:
        nets = nic.findall("net")
        if not nets:
            self.source.fail(_pci.path_of(nic), "no <net> in it", "at least one <net>")
        name = self.node("nic", host)
        join(self.graph, above, name, "pcie", spec)
        speeds = [
            self.source.positive(f"{_pci.path_of(net)}.speed", self.need(net, "speed"))
            for net in nets
        ]
        # Mbit/s; 10,000 is also what NCCL writes when it could not find out.
        evidence = "guess" if speeds[0] == 10_000 else "datasheet"
        each = sum(speeds) / len(speeds) * 1e6 / 8
        source = (
            f"speed of {_pci.path_of(nets[0])} in NCCL's topology: {speeds[0]:g} Mbit/s"
        )
        spec = _rates.port(each, evidence, source)
        if self.known and _alike(self.known.params.nic, each):
            spec = self.known.params.nic
        self.nics.append((name, spec, len(nets)))

    def c2c(self, gpu: Element | None, cpu: str, name: str) -> bool:
        """Join a GPU to its CPU by NVLink-C2C, where it has that."""
        link = gpu.find("c2c") if gpu is not None else None
        if link is None:
            return False
        count = self.source.whole(
            f"{_pci.path_of(link)} of {name}.count", self.need(link, "count")
        )
        rate = (
            self.source.positive(
                f"{_pci.path_of(link)} of {name}.bw", self.need(link, "bw")
            )
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
        join(self.graph, cpu, name, "c2c", spec, count)
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
                    # What NCCL plans with is the file's; what the wire does is the host's.
                    self.stated["socket_rate"] = spec.bandwidth
                    wire = self.known.params.socket if self.known else spec
                    join(self.graph, before, name, "socket", wire)
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
            join(self.graph, src, dst, "nvlink", self.nvlink(sm[src]), count)

    def nvlink(self, sm: int) -> LinkSpec:
        """One NVLink: the known host's, or that of the GPU's generation; AMD's is that of a host with the same GPUs."""
        model = self.known or host_models.with_gpu(self.model())
        if model and (self.known or not self.nvidia):
            spec: LinkSpec = model.params.nvlink
            return spec
        return _rates.nvlink(sm)

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
        """The GPU of the cluster: the commonest, where there are several."""
        [(model, _)] = self.models.most_common(1)
        if len(self.models) > 1:
            others = ", ".join(sorted(self.models))
            self.source.assumed("one model of GPU", f"{others} in the file; {model}")
        return model


def _alike(spec: LinkSpec, wire: float) -> bool:
    """Whether a link has the wire of another: datasheets round differently."""
    return math.isclose(spec.wire, wire, rel_tol=0.01)


def _is_gpu(pci: Element) -> bool:
    return pci.find("gpu") is not None or pci.get("class", "").lower().startswith(
        ("0x0302", "0x0300")
    )
