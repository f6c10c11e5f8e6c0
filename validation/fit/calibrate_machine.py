"""Turns a measurement into a cluster file with its own kernel times, NCCL constants, host factor and link rates.

Files beside each other: NAME.toml (the cluster, over a bundled one), NAME-gpu.toml with NAME-gpu.parquet (kernels),
NAME-nccl.toml. Every part holds a third or more of its rows out of a trial fit and tells both errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import files
from sim.collectives import machine
from sim.costs import measured as measured_gpu
from sim.costs.gpu import names as gpu_names
from sim.costs.measured_rows import write_rows
from sim.costs.spreads import quantile
from sim.errors import InputError, Mistake, PrestepError
from topologies import load_cluster
from validation.fit import (
    machine_gpu,
    machine_host,
    machine_links,
    machine_nccl,
    machine_steps,
)
from validation.formats.measurement import Measured, opened
from validation.sets import predict_collective

# The bundled cluster under a machine with these GPUs, unless --cluster says another.
USUAL = {
    "h200": "dgx-h200",
    "h100": "dgx-h100",
    "a100": "dgx-a100",
    "b200": "dgx-b200",
    "gb200": "gb200-nvl72",
    "gh200": "gh200",
}
# How drivers name GPUs that prestep has: the longest that fits counts.
NAMED = {
    "A100-SXM4-40GB": "a100-40gb",
    "A100-PCIE": "a100-pcie",
    "A100 80GB PCIe": "a100-pcie",
    "H100 PCIe": "h100-pcie",
}
NcclFit = Callable[[Path, Path, str], str]


@dataclass(frozen=True)
class Paths:
    """Files that a calibration writes."""

    cluster: Path
    gpu: Path
    table: Path
    nccl: Path

    @classmethod
    def of(cls, output: Path) -> Paths:
        stem = output.with_suffix("")
        return cls(
            output,
            *(
                stem.with_name(f"{stem.name}{end}")
                for end in ("-gpu.toml", "-gpu.parquet", "-nccl.toml")
            ),
        )

    def refuse(self, force: bool) -> None:
        """Raises InputError if the cluster's name is no .toml, or a file is there and `force` is not set."""
        if self.cluster.suffix != ".toml":
            raise InputError(
                Mistake(
                    str(self.cluster),
                    "",
                    f'"{self.cluster.suffix}"',
                    "the name of a cluster file, .toml",
                )
            )
        if not self.cluster.resolve().parent.is_dir():
            raise InputError(
                Mistake(
                    str(self.cluster), "", "no such folder", "a folder that is there"
                )
            )
        there = [
            path
            for path in (self.cluster, self.gpu, self.table, self.nccl)
            if path.exists()
        ]
        if there and not force:
            raise InputError(
                Mistake(str(path), "", "a file", "a new one", "--force replaces it")
                for path in there
            )


def calibrate(
    path: Path, output: Path, cluster: str, force: bool, fit_nccl: NcclFit
) -> str:
    """Fits everything that a measurement allows and writes the files; what is to be said of it.

    Parameters
    ----------
    cluster
        The cluster under it: a name or file; "": the usual one of its GPUs.
    fit_nccl
        Fits NCCL's constants: (rows, output, cluster) -> words.

    Raises
    ------
    InputError
        If the measurement is none, a file is in the way, or the machine's GPUs are unknown and no cluster is given.
    """
    paths = Paths.of(output)
    paths.refuse(force)
    with opened(path) as measured:
        base = cluster or usual_cluster(measured)
        below = load_cluster(base)
        told = [
            f"{path.name}: {measured.world} x {measured.model}, {measured.when}, over the cluster {base}"
        ]
        table = machine_gpu.fit(measured, below.gpu_model) if measured.model else None
        host = machine_host.fit(measured.file("training.jsonl"))
        nvlinks = below.facts["nvlinks"].value if "nvlinks" in below.facts else 0.0
        links = machine_links.rates(
            measured, nvlinks, {key: fact.value for key, fact in below.facts.items()}
        )
        if table:
            told += ["", "# kernels", *table.notes, table.summary]
            write_rows(paths.table, table.rows)
            files.write_text(
                paths.gpu, machine_gpu.render(table, measured, paths.table.name)
            )
        told += [
            "",
            "# host",
            host.summary
            if host
            else "no steps of tiny models: host_factor stays as it was",
        ]
        if not (table or host or links or measured.file("collectives.jsonl")):
            found = "; ".join(
                sorted(
                    {str(row.get("why", ""))[:80] for row in measured.rows("skipped")}
                )
            )
            raise InputError(
                Mistake(
                    path.name,
                    "",
                    "nothing that was measured",
                    "kernels, steps, copies or files",
                    found[:300],
                )
            )
        told += ["", "# collectives", _nccl(measured, paths, base, fit_nccl)]
        told += [
            "",
            "# links and disks",
            *(f"{key}: {rate.source}" for key, rate in links.items()),
        ]
        nccl = paths.nccl.name if paths.nccl.exists() else ""
        text = render(
            measured,
            _named(base, output),
            below,
            paths.gpu.name if table else "",
            nccl,
            host,
            links,
        )
        files.write_text(output, text)
        forget()
        load_cluster(str(output))  # a file that cannot be read back is no result
        rows = measured.file("collectives.jsonl")
        if nccl and rows is not None:
            told += [
                "",
                "# how sure the constants are",
                machine_nccl.note(paths.nccl, machine_nccl.intervals(rows, output)),
            ]
        told += [
            "",
            "# training steps, fitted to none of them",
            machine_steps.table(*machine_steps.judge(measured, output, base)),
        ]
    written = [
        p.name
        for p in (paths.cluster, paths.gpu, paths.table, paths.nccl)
        if p.exists()
    ]
    use = f'to use it: file = "{output}" in a scenario\'s [cluster], or `prestep collective --cluster {output}`'
    return "\n".join([*told, "", f"wrote {', '.join(written)}", use])


def forget() -> None:
    """Files of these names may have been read before they were replaced."""
    for cached in (
        measured_gpu.load_file,
        machine.load_file,
        predict_collective._fabric,
    ):
        cached.cache_clear()


def usual_cluster(measured: Measured) -> str:
    """The bundled cluster of such GPUs.

    Raises
    ------
    InputError
        If there is none.
    """
    gpu = known_gpu(measured.model)
    if measured.model and gpu in USUAL:
        own = f"{gpu}-host-{measured.world}"
        return own if measured.world in (2, 4) and gpu == "h200" else USUAL[gpu]
    found = f'"{measured.model}"' if measured.model else "no GPU"
    expected = f"one of {', '.join(sorted(USUAL))}"
    hint = "--cluster NAME|FILE: a cluster like this machine, whose GPU lends what was not measured"
    raise InputError(Mistake(measured.name, "gpus", found, expected, hint))


def known_gpu(name: str) -> str:
    """The GPU that a driver's name means; "" if prestep has none such."""
    for words, gpu in NAMED.items():
        if words in name:
            return gpu
    parts = name.lower().replace("-", " ").split()
    return next(
        (gpu for gpu in sorted(gpu_names(), key=len, reverse=True) if gpu in parts), ""
    )


def _nccl(measured: Measured, paths: Paths, cluster: str, fit_nccl: NcclFit) -> str:
    rows = measured.file("collectives.jsonl")
    paths.nccl.unlink(
        missing_ok=True
    )  # --force: what an earlier measurement said does not count for this one
    if rows is None:
        return "none measured: NCCL's constants stay as they were"
    try:
        return fit_nccl(rows, paths.nccl, cluster)
    except PrestepError as error:
        return f"not fitted, NCCL's constants stay as they were: {error}"


def _named(base: str, output: Path) -> str:
    """How a file beside `output` says the cluster under it: bundled ones by name, files by their whole path."""
    return str(Path(base).resolve()) if base.endswith(".toml") else base


def render(
    measured: Measured,
    base: str,
    below: Any,
    gpu: str,
    nccl: str,
    host: machine_host.Host | None,
    links: Mapping[str, machine_links.Rate],
) -> str:
    """The cluster file."""
    source = f"prestep measure, {measured.when}"
    lines = [
        f"# Written by `prestep calibrate` from {measured.name}. Bandwidths are payload, one link, one direction.",
        f'extends = "{base}"',
        f'description = "{measured.world} x {measured.model or "no GPU"}, measured {measured.when}"',
    ]
    lines += [f'kernels = "{gpu}"'] if gpu else []
    lines += [f'nccl = "{nccl}"'] if nccl else []
    if (
        "gpus" in below.facts
        and below.facts["gpus"].value != _on_a_host(measured)
        and measured.model
    ):
        lines.append(f"gpus = {_entry(_on_a_host(measured), 'measured', source)}")
    if host:
        factor = (
            f"host-bound steps of tiny models over their host operations: {host.factor}"
        )
        lines.append(
            f"host_factor = {_entry(round(host.factor.value, 4), 'fitted', f'{factor}; {source}')}"
        )
        spread = max(
            0.01, math.log(host.factor.high / host.factor.low) / 2 / quantile()
        )
        lines.append(
            f"host_spread = {_entry(round(spread, 4), 'fitted', f'that interval; {source}')}"
        )
    if _no_multicast(measured) and below.cluster_facts.nvlink_sharp is not None:
        lines.append(
            f"nvlink_sharp = {_entry(0, 'measured', f'measured with NCCL_NVLS_ENABLE=0; {source}')}"
        )
    for table in ("nvlink", "pcie", "nvme"):
        mine = {
            key: rate
            for key, rate in links.items()
            if key.startswith(f"{table}.") and _has(below, table)
        }
        if mine:
            lines += ["", f"[{table}]"]
        for key, rate in mine.items():
            value = f"{rate.value / 1e9:.4g} GB/s"
            lines.append(
                f"{key.partition('.')[2]} = {_entry(value, 'measured', f'{rate.source}; {source}')}"
            )
    return "\n".join(lines) + "\n"


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
