"""The files of a calibrated machine: which there are, what was fitted for them, and the text of the cluster's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim.costs.corrected import between
from prestep.sim.costs.measured import gpu_of
from prestep.sim.errors import InputError, Mistake
from prestep.validation.fit import machine_gpu, machine_host, machine_steps
from prestep.validation.fit.bootstrap import Estimate, estimate
from prestep.validation.fit.machine_steps import Step
from prestep.validation.fit.measurement import Measured

LARGE = 64 * 2**20  # bytes from which on a copy's rate is the link's and not its start
BIG_FILE = 512 * 2**20


@dataclass(frozen=True)
class Rate:
    """A bandwidth, bytes/s, and how it was had, in words."""

    value: float
    source: str


def rates(
    measured: Measured, nvlinks: float, limits: Mapping[str, float]
) -> dict[str, Rate]:
    """Bandwidths by key of a cluster file ("nvlink.bandwidth", ...), as far as they were measured.

    Parameters
    ----------
    nvlinks
        Links of a GPU, which share what a copy to another GPU reaches; 0: none.
    limits
        Bytes/s on the wire by key ("nvlink.raw"): a copy that seems faster was not timed right, and does not count.
    """
    copies = measured.rows("micro", "copy", ("bytes", "s"))
    by_key: dict[str, Rate] = {}
    for key, mode, links in (
        ("nvlink.bandwidth", "p2p_read", nvlinks),
        ("nvlink.bandwidth", "p2p_write", nvlinks),
        ("pcie.bandwidth", "h2d_pinned", 1.0),
        ("pcie.upstream", "d2h_pinned", 1.0),
    ):
        slope = _slope([row for row in copies if row.get("mode") == mode])
        wire = limits.get(f"{key.partition('.')[0]}.raw", math.inf) * links
        if slope is not None and links > 0 and slope.value <= wire:
            over = f" over {links:.0f} links" if links != 1.0 else ""
            by_key[key] = Rate(
                slope.value / links, f"copies {mode}: slope {_gb(slope)}{over}"
            )
    return by_key | _disks(
        measured.rows(
            "storage", "storage", ("bytes", "write_s", "sync_s", "read_cold_s")
        )
    )


def _slope(rows: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """Bytes/s between neighbouring large sizes."""
    points = sorted(
        (int(row["bytes"]), float(row["s"]))
        for row in rows
        if int(row["bytes"]) >= LARGE
    )
    slopes = [
        (b - a) / (later - earlier)
        for at, (a, earlier) in enumerate(points)
        for b, later in points[at + 1 :]
        if later > earlier
    ]
    return estimate(slopes, lambda x: np.median(x, axis=-1)) if slopes else None


def _disks(rows: Sequence[Mapping[str, Any]]) -> dict[str, Rate]:
    """Of the folder with the fastest writes: written and synced; read with a cold cache, if it was cold."""
    large = [
        row
        for row in rows
        if int(row["bytes"]) >= BIG_FILE and row.get("filesystem") != "tmpfs"
    ]
    if not large:
        return {}
    writes = [row["bytes"] / (row["write_s"] + row["sync_s"]) for row in large]
    reads = [
        row["bytes"] / row["read_cold_s"] for row in large if row.get("cold_is_cold")
    ]
    found = {
        "nvme.bandwidth": Rate(
            max(writes), f"files written and synced: {_gb(estimate(writes))}"
        )
    }
    if reads:
        found["nvme.upstream"] = Rate(
            max(reads), f"files read from a cold cache: {_gb(estimate(reads))}"
        )
    return found


def _gb(found: Estimate) -> str:
    return f"{found.value / 1e9:.4g} GB/s (90 % of draws {found.low / 1e9:.4g} to {found.high / 1e9:.4g})"


NO_HOST = "no steps that the host decides: host_factor stays as it was"


@dataclass(frozen=True)
class Paths:
    """Files that a calibration writes."""

    cluster: Path
    gpu: Path
    table: Path
    nccl: Path
    base: Path

    @classmethod
    def of(cls, output: Path) -> Paths:
        stem = output.with_suffix("")
        return cls(
            output,
            *(
                stem.with_name(f"{stem.name}{end}")
                for end in ("-gpu.toml", "-gpu.parquet", "-nccl.toml", "-base.toml")
            ),
        )

    def refuse(self, force: bool) -> None:
        """Raises InputError if the cluster's name is no .toml, or a file is there and `force` is not set."""
        if self.cluster.suffix != ".toml":
            ending, expected = self.cluster.suffix, "the name of a cluster file, .toml"
            raise InputError.of(str(self.cluster), "", f'"{ending}"', expected)
        if not self.cluster.resolve().parent.is_dir():
            found, expected = "no such folder", "a folder that is there"
            raise InputError.of(str(self.cluster), "", found, expected)
        if self.there and not force:
            raise InputError(
                Mistake(str(path), "", "a file", "a new one", "--force replaces it")
                for path in self.there
            )

    @property
    def there(self) -> list[Path]:
        """Those that exist."""
        paths = (self.cluster, self.gpu, self.table, self.nccl, self.base)
        return [path for path in paths if path.exists()]


@dataclass(frozen=True)
class Fits:
    """What a measurement says of the parts of a machine; None or {} where it says nothing."""

    table: machine_gpu.Table | None
    host: machine_host.Host | None
    links: Mapping[str, Rate]

    @classmethod
    def of(cls, measured: Measured, below: Any, steps: Sequence[Step]) -> Fits:
        """Fits to a measurement over the cluster `below`, which knows its `steps`."""
        facts = {key: fact.value for key, fact in below.facts.items()}
        level = machine_steps.level(steps, between(gpu_of(below)))
        table = None
        if measured.model:
            table = machine_gpu.fit(measured, base_of(below), gpu_of(below), level)
        dispatch = measured.rows("host", "dispatch", ("s",))
        known = facts.get("host_factor_experts", facts.get("host_factor", 1.0))
        fitted = machine_host.fit(steps, known)
        host = fitted or machine_host.of_dispatch(dispatch)
        links = rates(measured, facts.get("nvlinks", 0.0), facts)
        return cls(table, host, links)

    @property
    def host_note(self) -> str:
        """Lines of the report about the host."""
        if self.host is None:
            return NO_HOST
        factor = self.host.factor.value
        return f"{self.host.summary}\nby itself: --set cluster.host_factor={factor:.3g}"

    @property
    def link_notes(self) -> list[str]:
        """Lines of the report about links and disks."""
        return [f"{key}: {rate.source}" for key, rate in self.links.items()]


def base_of(below: Any) -> str:
    """How a file of kernels names the GPU under it: as prestep has it, or the file that states it."""
    return str(Path(below.kernels).resolve()) if below.kernels else below.gpu_model


def named(base: str, output: Path) -> str:
    """How a file beside `output` says the cluster under it: bundled ones by name, files by their whole path."""
    return str(Path(base).resolve()) if base.endswith(".toml") else base


def render(measured: Measured, base: str, below: Any, paths: Paths, fits: Fits) -> str:
    """The cluster file, over the cluster `base`, which is `below`."""
    source = f"prestep measure, {measured.when}"
    model = measured.model or "no GPU"
    lines = [
        f"# Written by `prestep calibrate` from {measured.name}. Bandwidths are payload, one link, one direction.",
        f'extends = "{named(base, paths.cluster)}"',
        f'description = "{measured.world} x {model}, measured {measured.when}"',
    ]
    lines += [f'kernels = "{paths.gpu.name}"'] if fits.table else []
    lines += [f'nccl = "{paths.nccl.name}"'] if paths.nccl.exists() else []
    lines += _gpus(measured, below, source)
    lines += _host(fits.host, source) if fits.host else []
    if _no_multicast(measured) and below.cluster_facts.nvlink_sharp is not None:
        why = f"measured with NCCL_NVLS_ENABLE=0; {source}"
        lines.append(f"nvlink_sharp = {_entry(0, 'measured', why)}")
    for table in ("nvlink", "pcie", "nvme"):
        if _has(below, table):
            lines += _rates(table, fits.links, source)
    return "\n".join(lines) + "\n"


def _gpus(measured: Measured, below: Any, source: str) -> list[str]:
    """GPUs of a host, where the cluster below has another number."""
    gpus = _on_a_host(measured)
    same = "gpus" not in below.facts or below.facts["gpus"].value == gpus
    if same or not measured.model:
        return []
    return [f"gpus = {_entry(gpus, 'measured', source)}"]


def _host(host: machine_host.Host, source: str) -> list[str]:
    """The host's factor, and how far it spreads."""
    factor = host.factor
    steps = "steps that it decides" if host.fitted else "a tiny model on the CPU"
    why = f"{steps}, over those of the host that costs were fitted on: {factor}"
    value = _entry(round(factor.value, 4), "fitted", f"{why}; {source}")
    width = _entry(round(host.spread, 4), "fitted", f"of these steps; {source}")
    lines = [f"host_factor = {value}", f"host_spread = {width}"]
    if host.experts:
        kept = _entry(round(host.experts.factor, 4), "fitted", _experts(host.experts))
        lines.append(f"host_factor_experts = {kept}")
    return lines


def _experts(experts: machine_host.Experts) -> str:
    rows = ", ".join(experts.rows)
    likelier = f"{experts.likelier:.1f} times likelier"
    return f"as before: {rows} {likelier} than with that of other steps"


def _rates(table: str, links: Mapping[str, Rate], source: str) -> list[str]:
    """A table of the file with the bandwidths that were measured, if any was."""
    lines = []
    for key, rate in links.items():
        if key.startswith(f"{table}."):
            value = f"{rate.value / 1e9:.4g} GB/s"
            entry = _entry(value, "measured", f"{rate.source}; {source}")
            lines.append(f"{key.partition('.')[2]} = {entry}")
    return ["", f"[{table}]", *lines] if lines else []


def _entry(value: object, grade: str, source: str) -> str:
    shown = f'"{value}"' if isinstance(value, str) else value
    return f'{{ value = {shown}, evidence = "{grade}", source = "{source}" }}'


def _has(below: Any, table: str) -> bool:
    """Whether the cluster under it has such links at all."""
    return any(key.startswith(f"{table}.") for key in below.facts)


def _on_a_host(measured: Measured) -> int:
    return measured.world // max(1, int(measured.about.get("nodes", 1)))


def _no_multicast(measured: Measured) -> bool:
    env = [row.get("env", {}) for row in measured.rows("collectives", "env")]
    return bool(env) and all(
        isinstance(one, Mapping) and one.get("NCCL_NVLS_ENABLE") == "0" for one in env
    )
