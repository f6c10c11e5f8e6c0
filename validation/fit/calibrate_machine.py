"""Turns a measurement into a cluster file with its own kernel times, NCCL constants, host factor and link rates.

Files beside each other: NAME.toml (the cluster, over a bundled one), NAME-gpu.toml with NAME-gpu.parquet (kernels),
NAME-nccl.toml. Every part holds a third or more of its rows out of a trial fit and tells both errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.collectives import machine
from prestep.sim.costs import measured as measured_gpu
from prestep.sim.costs.corrected import between
from prestep.sim.costs.gpu import names as gpu_names
from prestep.sim.costs.measured import gpu_of, load_file
from prestep.sim.costs.measured_rows import write_rows
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.topologies import load_cluster
from prestep.validation.fit import (
    machine_gpu,
    machine_steps,
)
from prestep.validation.fit.bootstrap import Estimate, of_ratios
from prestep.validation.fit.machine_file import Fits, Paths, base_of, named, render
from prestep.validation.fit.machine_steps import Step
from prestep.validation.fit.measurement import Measured, opened
from prestep.validation.formats import collective_reader
from prestep.validation.sets import predict_collective

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
LEAST_ROWS = 3  # of an algorithm and protocol below which nothing is said
NcclFit = Callable[[Path, Path, str], str]


def calibrate(
    path: Path,
    output: Path,
    cluster: str,
    force: bool,
    fit_nccl: NcclFit,
    gpu_file: Path | None = None,
) -> str:
    """Fits everything that a measurement allows and writes the files; what is to be said of it.

    Parameters
    ----------
    cluster
        The cluster under it: a name or file; "": the usual one of its GPUs.
    fit_nccl
        Fits NCCL's constants: (rows, output, cluster) -> words.
    gpu_file
        Facts of a GPU that prestep does not have.

    Raises
    ------
    InputError
        If the measurement is none, a file is in the way, or the machine's GPUs are unknown and no cluster is given.
    """
    paths = Paths.of(output)
    paths.refuse(force)
    with opened(path) as measured:
        base = cluster or usual_cluster(measured)
        if gpu_file is not None:
            base = _with_gpu(base, gpu_file, paths.base)
        notes = _fit(measured, base, paths, fit_nccl)
    return "\n".join([*notes, "", *_written(paths)])


def _fit(measured: Measured, base: str, paths: Paths, fit_nccl: NcclFit) -> list[str]:
    """Fits every part and writes its file; what is to be said of each."""
    below = load_cluster(base)
    steps, reasons = machine_steps.steps_of(measured, base)
    fits = Fits.of(measured, below, steps)
    if fits.table is not None and gpu_of(below).like is not None:
        _write(fits, measured, base, below, paths)
        steps = machine_steps.with_kernels(steps, paths.cluster)
        fits = Fits.of(measured, below, steps)
    fits = _level(fits, measured, base, paths, steps)
    machine_ = f"{measured.world} x {measured.model}, {measured.when}"
    notes = [f"{measured.name}: {machine_}, over the cluster {base}"]
    notes += _write_kernels(fits, measured, paths)
    notes += ["", "# host", fits.host_note]
    _refuse_nothing(fits, measured)
    notes += ["", "# collectives", _nccl(measured, paths, base, fit_nccl)]
    notes += ["", "# links and disks", *fits.link_notes]
    output = paths.cluster
    files.write_text(output, render(measured, base, below, paths, fits))
    forget()
    load_cluster(str(output))  # a file that cannot be read back is no result
    notes += _how_sure(measured, paths)
    judged = machine_steps.judge(steps, output)
    likelier = machine_steps.better_before(judged, between(gpu_of(below)))
    if fits.table is not None and likelier > 1:
        notes.append(_leave_kernels(measured, base, below, paths, fits, likelier))
        judged = machine_steps.judge(steps, output)
    return [*notes, "", "# training steps", machine_steps.table(judged, reasons)]


def _leave_kernels(
    measured: Measured, base: str, below: Any, paths: Paths, fits: Fits, likelier: float
) -> str:
    """The cluster with the kernels of the known GPU, whose tables predict steps better; what is to be said of it."""
    for path in (paths.gpu, paths.table):
        path.unlink()
    text = render(measured, base, below, paths, replace(fits, table=None))
    files.write_text(paths.cluster, text)
    forget()
    return (
        "\n# kernels left as they were\nsteps that the GPU decides, and whose level was not fitted to them, are "
        f"{likelier:.1f} times likelier with the tables of the {gpu_of(below).name} than with this machine's rows"
    )


def _level(
    fits: Fits, measured: Measured, base: str, paths: Paths, steps: Sequence[Step]
) -> Fits:
    """The fits with kernels at the level of untraced steps, as the cluster with the first ones predicts these."""
    below = load_cluster(base)
    level = machine_steps.level(steps, between(gpu_of(below)))
    if fits.table is None or level is None:
        return fits
    _write(fits, measured, base, below, paths)
    exact = level * machine_steps.missed(steps, level, paths.cluster)
    table = machine_gpu.fit(measured, base_of(below), gpu_of(below), exact)
    return replace(fits, table=table)


def _write(fits: Fits, measured: Measured, base: str, below: Any, paths: Paths) -> None:
    """Writes kernels and cluster as far as they are known."""
    _write_kernels(fits, measured, paths)
    files.write_text(paths.cluster, render(measured, base, below, paths, fits))
    forget()


def _write_kernels(fits: Fits, measured: Measured, paths: Paths) -> list[str]:
    """Writes the GPU's file and table, if kernels were measured; what is to be said of them."""
    if fits.table is None:
        return []
    write_rows(paths.table, fits.table.rows)
    text = machine_gpu.render(fits.table, measured, paths.table.name)
    files.write_text(paths.gpu, text)
    return ["", "# kernels", *fits.table.notes, fits.table.summary]


def _refuse_nothing(fits: Fits, measured: Measured) -> None:
    """Refuses a measurement that says nothing of any part, with what it skipped."""
    collectives = measured.file("collectives.jsonl")
    if fits.table or fits.host or fits.links or collectives:
        return
    reasons = {str(row.get("why", ""))[:80] for row in measured.rows("skipped")}
    hint = "; ".join(sorted(reasons))[:300]
    expected = "kernels, steps, copies or files"
    raise InputError(
        Mistake(measured.name, "", "nothing that was measured", expected, hint)
    )


def _how_sure(measured: Measured, paths: Paths) -> list[str]:
    """Intervals of NCCL's constants, if they were fitted."""
    rows = measured.file("collectives.jsonl")
    if rows is None or not paths.nccl.exists():
        return []
    note = _note(paths.nccl, _intervals(rows, paths.cluster))
    return ["", "# how sure the constants are", note]


def _intervals(rows: Path, cluster: Path) -> dict[str, Estimate]:
    """By algorithm and protocol: the middle of predicted over measured among held-out rows, and its interval.

    Parameters
    ----------
    cluster
        The cluster file that was written, which names the constants.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    for row in collective_reader.read_lines(rows, str(cluster))[0]:
        if row.skip or not row.held_out:
            continue
        prediction = predict_collective.predict_row(row)
        if not prediction.error:
            errors[f"{prediction.algo} {prediction.proto}"].append(
                prediction.time / row.time
            )
    return {
        name: of_ratios(ratios)
        for name, ratios in sorted(errors.items())
        if len(ratios) >= LEAST_ROWS
    }


def _note(path: Path, intervals: dict[str, Estimate]) -> str:
    """Writes the intervals to the head of the file of constants; what was written."""
    lines = [f"{name}: {interval}" for name, interval in intervals.items()]
    if lines:
        head = [
            "# Predicted over measured, held-out rows, with 90 % bootstrap intervals:",
            *(f"# {x}" for x in lines),
        ]
        files.write_text(path, "\n".join([*head, path.read_text(encoding="utf-8")]))
    return (
        "\n".join(["predicted over measured, held-out rows:", *lines]) if lines else ""
    )


def _written(paths: Paths) -> tuple[str, str]:
    """The files that were written, and how the cluster is used."""
    output = paths.cluster
    there = (paths.cluster, paths.gpu, paths.table, paths.nccl, paths.base)
    names = ", ".join(path.name for path in there if path.exists())
    use = f'to use it: file = "{output}" in a scenario\'s [cluster], or `prestep collective --cluster {output}`'
    return f"wrote {names}", use


def forget() -> None:
    """Files of these names may have been read before they were replaced."""
    for cached in (
        measured_gpu.load_file,
        machine.load_file,
        predict_collective._fabric,
    ):
        cached.cache_clear()


def _with_gpu(base: str, gpu_file: Path, output: Path) -> str:
    """A cluster as `base` with the GPU of a file, written beside the others."""
    load_file(str(gpu_file))  # what is wrong with it, before anything is written
    head = "# Written by `prestep calibrate`: the cluster before calibration, with a GPU of its own."
    below = f'extends = "{named(base, output)}"'
    kernels = f'kernels = "{gpu_file.resolve()}"'
    files.write_text(output, "\n".join([head, below, kernels, ""]))
    return str(output)


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
